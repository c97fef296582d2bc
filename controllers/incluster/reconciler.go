// Package incluster has the pools of the in-cluster provider served by pools of ours.
package incluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Reconciler mirrors the pools of the in-cluster provider: each of them is served by a pool of ours that
// has its spec, and says how many addresses are in use. Its rights are a role of their own,
// config/rbac/in_cluster_role.yaml.
type Reconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Pools reads the pools that are mirrored: a cache. Live reads the API server.
	Pools, Live client.Reader
	// Home is the management cluster, empty: it could not be read.
	Home string
	// Names says which claim or IPAddress is known to name what a mirror mirrors; empty: none.
	Names func(mirror pools.Key) string

	kind incluster.Kind
	// told has, by the UID of a pool, what was said last of its mirror, which has it in its conditions.
	told sync.Map
}

// Setup sets up one controller for each kind of pool that the API server has.
func Setup(mgr ctrl.Manager, c client.Client, recorder events.EventRecorder, part shard.Shard, home string, names func(mirror pools.Key) string) error {
	served := 0
	for _, kind := range incluster.Kinds {
		gvk := incluster.GroupVersion.WithKind(kind.Name)
		_, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for %s: %w", kind.Name, err)
		}
		r := &Reconciler{Client: c, Recorder: recorder, Pools: mgr.GetCache(), Live: mgr.GetAPIReader(), Home: home, Names: names, kind: kind}
		err = ctrl.NewControllerManagedBy(mgr).Named(strings.ToLower(kind.Name)).For(kind.New()).
			WithOptions(controller.Options{RateLimiter: guard.Backoff[reconcile.Request]()}).
			Watches(kind.NewMirror(), handler.EnqueueRequestsFromMapFunc(r.mirroredBy)).Complete(guard.OfShard(part, kind.Name, r))
		if err != nil {
			return fmt.Errorf("setting up the controller of %s: %w", kind.Name, err)
		}
		served++
	}
	if served == 0 {
		return fmt.Errorf("the API server has none of the in-cluster provider's kinds (%s); install its CRDs, or run without --serve-in-cluster-pools",
			incluster.GroupVersion)
	}
	return nil
}

// Reconcile brings the mirror of one pool, and what the pool says, up to date.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pool := r.kind.New()
	if err := r.Pools.Get(ctx, req.NamespacedName, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	mirror := r.kind.NewMirror()
	mirror.SetNamespace(req.Namespace)
	mirror.SetName(r.kind.MirrorName(req.Name))
	if pool.GetDeletionTimestamp() != nil {
		return r.end(ctx, pool, mirror)
	}
	if _, moves := pool.GetAnnotations()[v1alpha1.DeleteForMoveAnnotation]; moves {
		return reconcile.Result{}, nil // it goes next, and has lost its annotations
	}
	if err := r.finalizer(ctx, pool, controllerutil.AddFinalizer); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.handOver(ctx, pool); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.mirror(ctx, pool, mirror); err != nil {
		if _, rest := pace.Split(err); rest == nil || isBehind(err) {
			return guard.Retry(err, "writing "+mirror.GetName())
		}
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, "NotServed", "Mirror", "%s", err.Error())
		return reconcile.Result{}, err
	}
	r.tellOfMirror(pool, mirror)
	if err := r.note(ctx, pool, mirror); err != nil {
		return guard.Retry(err, "noting on "+pool.GetName()+" where it is served")
	}
	return reconcile.Result{}, r.report(ctx, pool, mirror)
}

// tellOfMirror says on a pool what is wrong with its mirror: users look at the pool. It is said when it begins, and when it
// is something else.
func (r *Reconciler) tellOfMirror(pool *unstructured.Unstructured, mirror v1alpha1.Pool) {
	reason, message := trouble(mirror)
	if reason == "" {
		r.told.Delete(pool.GetUID())
		return
	}
	if was, told := r.told.Swap(pool.GetUID(), message); !told || was != message {
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, reason, "Mirror", "%s", message)
	}
}

// trouble is what is wrong with a mirror; empty: nothing. Two pools of one range give one address twice, and of that only
// the mirrors have a condition.
func trouble(mirror v1alpha1.Pool) (reason, message string) {
	if mirror.GetDeletionTimestamp() != nil {
		return "NotServed", fmt.Sprintf("its mirror %s is being deleted, so nothing new is granted until all addresses of this pool are released, "+
			"and the mirror is made again; have new machines name another pool until then", pools.KeyOf(mirror))
	}
	if c := meta.FindStatusCondition(mirror.GetConditions(), v1alpha1.OverlapCondition); c != nil && c.Status == metav1.ConditionTrue {
		return v1alpha1.OverlapReason, c.Message
	}
	return "", ""
}

// note has a pool say where it is served, and that it has a mirror: the manager that makes that anew has to know.
func (r *Reconciler) note(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) error {
	before := pool.DeepCopy()
	incluster.Note(pool, mirror, r.Home)
	if equality.Semantic.DeepEqual(before.GetAnnotations(), pool.GetAnnotations()) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Patch(ctx, pool, guard.SinceRead(before)))
}

// mirroredBy names the pool that a mirror has the name of.
func (r *Reconciler) mirroredBy(_ context.Context, mirror client.Object) []reconcile.Request {
	ref, is := incluster.MirroredBy(pools.KeyOf(mirror.(v1alpha1.Pool)).Kind, mirror.GetName())
	if !is || ref.Kind != r.kind.Name {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: mirror.GetNamespace(), Name: ref.Name}}}
}

// handOver pauses a pool that somebody hands over for good, before anybody may name its mirror: from then on the
// in-cluster provider serves no claim of it, should it ever be started again.
func (r *Reconciler) handOver(ctx context.Context, pool *unstructured.Unstructured) error {
	if !incluster.Given(pool) || incluster.HandedOver(pool) {
		return nil
	}
	before := pool.DeepCopy()
	incluster.Annotate(pool, clusterv1.PausedAnnotation, "", true)
	if err := r.Client.Patch(ctx, pool, guard.SinceRead(before)); err != nil {
		return fmt.Errorf("pausing a pool that is handed over: %w", err)
	}
	r.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "HandedOver", "Mirror",
		"The in-cluster provider does not serve this pool any more; claims may name %s", r.kind.MirrorName(pool.GetName()))
	return nil
}

// mirror gives the mirror the spec of its pool. A pool that is paused has a paused mirror, unless it is paused since
// it was handed over: then the mirror is paused by itself.
func (r *Reconciler) mirror(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) error {
	is, err := incluster.MirrorOfPool(r.kind, pool)
	if err != nil {
		return errors.Join(err, r.tellProblem(ctx, pool, mirror, err))
	}
	_, err = controllerutil.CreateOrPatch(ctx, r.Client, mirror, func() error {
		if mirror.GetUID() != "" && !incluster.Mirrors(mirror, pool) {
			return notItsMirror(mirror)
		}
		if mirror.GetUID() == "" {
			incluster.Begin(mirror, pool, r.Home)
		}
		*mirror.PoolSpec() = is.Spec
		incluster.Seal(mirror)
		given, known := incluster.HandedOver(pool), incluster.Given(mirror)
		if value, paused := pool.GetAnnotations()[clusterv1.PausedAnnotation]; !given || !known {
			incluster.Annotate(mirror, clusterv1.PausedAnnotation, value, paused && !given)
		}
		incluster.Annotate(mirror, incluster.HandedOverAnnotation, "", given)
		incluster.Annotate(mirror, incluster.GatewayAnnotation, is.Gateway, is.Gateway != "")
		incluster.Annotate(mirror, incluster.ProblemAnnotation, "", false)
		if given {
			incluster.HandOver(mirror, pool)
			return nil
		}
		incluster.Annotate(mirror, incluster.SourceUIDAnnotation, "", false)
		return controllerutil.SetControllerReference(pool, mirror, r.Client.Scheme())
	})
	if isBehind(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("this pool is not served: %w", err)
	}
	return nil
}

// isBehind reports whether a write failed because our cache is behind: a mirror that was created a moment ago, or changed.
func isBehind(err error) bool { return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) }

// tellProblem has a mirror that exists already grant nothing by a spec that its pool does not have any more, and say
// why. What is in use is counted on.
func (r *Reconciler) tellProblem(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool, problem error) error {
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(mirror), mirror); err != nil || !incluster.Mirrors(mirror, pool) {
		return client.IgnoreNotFound(err)
	}
	if text := text.Message(problem.Error()); mirror.GetAnnotations()[incluster.ProblemAnnotation] != text {
		before := mirror.DeepCopyObject().(client.Object)
		incluster.Annotate(mirror, incluster.ProblemAnnotation, text, true)
		if err := r.Client.Patch(ctx, mirror, client.MergeFrom(before)); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return r.report(ctx, pool, mirror)
}

// notItsMirror says that a pool of ours has the name that a mirror is to have.
func notItsMirror(is v1alpha1.Pool) error {
	key := pools.KeyOf(is)
	if incluster.Ended(is) {
		return fmt.Errorf("%s has the addresses of an earlier pool of this name and is a pool of its own since that ended; name it in claims, or create this pool under another name", key)
	}
	return fmt.Errorf("%s exists and is not the mirror of this pool; delete it, or create it again under another name", key)
}

// report writes how many addresses are in use.
func (r *Reconciler) report(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) error {
	if mirror.PoolStatus().Allocator == nil {
		return nil // nobody has counted yet
	}
	before := pool.DeepCopy()
	counts := incluster.CountsOf(mirror.PoolStatus())
	if was, _, _ := unstructured.NestedMap(pool.Object, "status", "ipAddresses"); equality.Semantic.DeepEqual(was, counts) {
		return nil
	}
	if err := unstructured.SetNestedMap(pool.Object, counts, "status", "ipAddresses"); err != nil {
		return err
	}
	if err := r.Client.Status().Patch(ctx, pool, client.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	return nil
}

// finalizer adds the in-cluster provider's finalizer to a pool, or removes it.
func (r *Reconciler) finalizer(ctx context.Context, pool *unstructured.Unstructured, change func(client.Object, string) bool) error {
	before := pool.DeepCopy()
	if !change(pool, incluster.PoolFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Patch(ctx, pool, guard.SinceRead(before)))
}
