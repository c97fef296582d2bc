// Package incluster has the pools of the in-cluster provider served by pools of ours.
package incluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Reconciler mirrors the pools of the in-cluster provider: each of them is served by a pool of ours that
// has its spec, and says how many addresses are in use. Its rights are a role of their own,
// config/rbac/in_cluster_role.yaml.
type Reconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Pools reads the pools that are mirrored: a cache.
	Pools client.Reader

	kind incluster.Kind
}

// Setup sets up one controller for each kind of pool that the API server has.
func Setup(mgr ctrl.Manager, recorder events.EventRecorder, part shard.Shard) error {
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
		r := &Reconciler{Client: mgr.GetClient(), Recorder: recorder, Pools: mgr.GetCache(), kind: kind}
		err = ctrl.NewControllerManagedBy(mgr).Named(strings.ToLower(kind.Name)).For(kind.New()).Owns(kind.NewMirror()).Complete(guard.OfShard(part, kind.Name, r))
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
		return reconcile.Result{}, r.end(ctx, pool, mirror)
	}
	if err := r.finalizer(ctx, pool, controllerutil.AddFinalizer); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.handOver(ctx, pool); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.mirror(ctx, pool, mirror); err != nil {
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, "NotServed", "Mirror", "%s", err.Error())
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.report(ctx, pool, mirror)
}

// handOver pauses a pool that somebody hands over for good, before anybody may name its mirror: from then on the
// in-cluster provider serves no claim of it, should it ever be started again.
func (r *Reconciler) handOver(ctx context.Context, pool *unstructured.Unstructured) error {
	if !incluster.Given(pool) || incluster.HandedOver(pool) {
		return nil
	}
	before := pool.DeepCopy()
	annotate(pool, clusterv1.PausedAnnotation, "", true)
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
		if mirror.GetUID() != "" && !metav1.IsControlledBy(mirror, pool) {
			return fmt.Errorf("%s exists and is not the mirror of this pool; delete it, or create it again under another name", client.ObjectKeyFromObject(mirror))
		}
		*mirror.PoolSpec() = is.Spec
		given, known := incluster.HandedOver(pool), incluster.Given(mirror)
		if value, paused := pool.GetAnnotations()[clusterv1.PausedAnnotation]; !given || !known {
			annotate(mirror, clusterv1.PausedAnnotation, value, paused && !given)
		}
		annotate(mirror, incluster.HandedOverAnnotation, "", given)
		annotate(mirror, incluster.GatewayAnnotation, is.Gateway, is.Gateway != "")
		annotate(mirror, incluster.ProblemAnnotation, "", false)
		return controllerutil.SetControllerReference(pool, mirror, r.Client.Scheme())
	})
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return err // our cache is behind
	}
	if err != nil {
		return fmt.Errorf("this pool is not served: %w", err)
	}
	return nil
}

// tellProblem has a mirror that exists already grant nothing by a spec that its pool does not have any more, and say
// why. What is in use is counted on.
func (r *Reconciler) tellProblem(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool, problem error) error {
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(mirror), mirror); err != nil || !metav1.IsControlledBy(mirror, pool) {
		return client.IgnoreNotFound(err)
	}
	if text := text.Message(problem.Error()); mirror.GetAnnotations()[incluster.ProblemAnnotation] != text {
		before := mirror.DeepCopyObject().(client.Object)
		annotate(mirror, incluster.ProblemAnnotation, text, true)
		if err := r.Client.Patch(ctx, mirror, client.MergeFrom(before)); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return r.report(ctx, pool, mirror)
}

// annotate sets an annotation, or removes it.
func annotate(o client.Object, key, value string, set bool) {
	annotations := o.GetAnnotations()
	switch {
	case !set:
		delete(annotations, key)
	case annotations == nil:
		annotations = map[string]string{key: value}
	default:
		annotations[key] = value
	}
	o.SetAnnotations(annotations)
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

// end lets a deleted pool go when its mirror is gone: that stays while addresses are in use.
func (r *Reconciler) end(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) error {
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(mirror), mirror)
	if apierrors.IsNotFound(err) {
		return r.finalizer(ctx, pool, controllerutil.RemoveFinalizer)
	}
	if err != nil || !metav1.IsControlledBy(mirror, pool) || mirror.GetDeletionTimestamp() != nil {
		return err
	}
	return client.IgnoreNotFound(r.Client.Delete(ctx, mirror, client.Preconditions{UID: new(mirror.GetUID())}))
}

// finalizer adds the in-cluster provider's finalizer to a pool, or removes it.
func (r *Reconciler) finalizer(ctx context.Context, pool *unstructured.Unstructured, change func(client.Object, string) bool) error {
	before := pool.DeepCopy()
	if !change(pool, incluster.PoolFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Patch(ctx, pool, guard.SinceRead(before)))
}
