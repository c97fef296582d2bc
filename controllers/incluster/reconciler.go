// Package incluster serves the pools of the in-cluster provider by pools of ours.
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

// Reconciler mirrors the pools of the in-cluster provider: each of them is served by a pool of ours that has its spec,
// and shows how many addresses are in use. Its permissions are a role of their own, config/rbac/in_cluster_role.yaml.
type Reconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	// PoolReader reads the pools that are mirrored from a cache; Live reads from the API server.
	PoolReader, Live client.Reader
	// ManagementCluster is the UID of the management cluster, empty if it could not be read.
	ManagementCluster string
	// MirroredPoolReferrer returns a claim or an IPAddress that is known to name the pool of a mirror; empty if there
	// is none.
	MirroredPoolReferrer func(mirror pools.Key) string

	kind incluster.PoolKind
	// reportedProblems holds, by the UID of a pool, what was reported last about its mirror, which has it in its
	// conditions.
	reportedProblems sync.Map
}

// SetupControllers sets up one controller for each kind of pool that the API server has.
func SetupControllers(mgr ctrl.Manager, c client.Client, recorder events.EventRecorder, part shard.Shard, home string, names func(mirror pools.Key) string) error {
	served := 0
	for _, kind := range incluster.PoolKinds {
		gvk := incluster.GroupVersion.WithKind(kind.Name)
		_, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for %s: %w", kind.Name, err)
		}
		r := &Reconciler{Client: c, Recorder: recorder, PoolReader: mgr.GetCache(), Live: mgr.GetAPIReader(), ManagementCluster: home, MirroredPoolReferrer: names, kind: kind}
		err = ctrl.NewControllerManagedBy(mgr).Named(strings.ToLower(kind.Name)).For(kind.NewPool()).
			WithOptions(controller.Options{RateLimiter: guard.NewRateLimiter[reconcile.Request]()}).
			Watches(kind.NewMirror(), handler.EnqueueRequestsFromMapFunc(r.requestsForMirror)).Complete(guard.NewShardReconciler(part, kind.Name, r))
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

// Reconcile updates the mirror of one pool, and the status of the pool.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pool := r.kind.NewPool()
	if err := r.PoolReader.Get(ctx, req.NamespacedName, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	mirror := r.kind.NewMirror()
	mirror.SetNamespace(req.Namespace)
	mirror.SetName(r.kind.MirrorName(req.Name))
	if pool.GetDeletionTimestamp() != nil {
		return r.reconcileDelete(ctx, pool, mirror)
	}
	if _, moves := pool.GetAnnotations()[v1alpha1.DeleteForMoveAnnotation]; moves {
		return reconcile.Result{}, nil // it is deleted next, and has lost its annotations
	}
	if err := r.patchFinalizer(ctx, pool, controllerutil.AddFinalizer); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.handOverPool(ctx, pool); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.reconcileMirror(ctx, pool, mirror); err != nil {
		if _, rest := pace.SplitDelayed(err); rest == nil || isCacheBehind(err) {
			return guard.RequeueOnConflict(err, "writing "+mirror.GetName())
		}
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, "NotServed", "Mirror", "%s", err.Error())
		return reconcile.Result{}, err
	}
	r.recordMirrorProblem(pool, mirror)
	if err := r.annotatePool(ctx, pool, mirror); err != nil {
		return guard.RequeueOnConflict(err, "noting on "+pool.GetName()+" where it is served")
	}
	return reconcile.Result{}, r.updatePoolCounts(ctx, pool, mirror)
}

// recordMirrorProblem records an event on a pool about what is wrong with its mirror, as users read the events of the
// pool: once when the problem begins, and again when it changes.
func (r *Reconciler) recordMirrorProblem(pool *unstructured.Unstructured, mirror v1alpha1.Pool) {
	reason, message := mirrorProblem(mirror)
	if reason == "" {
		r.reportedProblems.Delete(pool.GetUID())
		return
	}
	if last, reported := r.reportedProblems.Swap(pool.GetUID(), message); !reported || last != message {
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, reason, "Mirror", "%s", message)
	}
}

// mirrorProblem returns what is wrong with a mirror; empty if nothing is. Two pools of one range grant an address
// twice, and only their mirrors have a condition for that.
func mirrorProblem(mirror v1alpha1.Pool) (reason, message string) {
	if mirror.GetDeletionTimestamp() != nil {
		return "NotServed", fmt.Sprintf("its mirror %s is being deleted, so nothing new is granted until all addresses of this pool are released, "+
			"and the mirror is made again; have new machines name another pool until then", pools.KeyForPool(mirror))
	}
	if c := meta.FindStatusCondition(mirror.GetConditions(), v1alpha1.OverlapCondition); c != nil && c.Status == metav1.ConditionTrue {
		return v1alpha1.OverlapReason, c.Message
	}
	return "", ""
}

// annotatePool records on a pool where it is served, and that it has a mirror: a manager that creates the mirror again
// needs to know that.
func (r *Reconciler) annotatePool(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) error {
	before := pool.DeepCopy()
	incluster.RecordMirror(pool, mirror, r.ManagementCluster)
	if equality.Semantic.DeepEqual(before.GetAnnotations(), pool.GetAnnotations()) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Patch(ctx, pool, guard.NewOptimisticPatch(before)))
}

// requestsForMirror returns a request for the pool whose name a mirror has.
func (r *Reconciler) requestsForMirror(_ context.Context, mirror client.Object) []reconcile.Request {
	ref, ok := incluster.RefForMirror(pools.KeyForPool(mirror.(v1alpha1.Pool)).Kind, mirror.GetName())
	if !ok || ref.Kind != r.kind.Name {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: mirror.GetNamespace(), Name: ref.Name}}}
}

// handOverPool pauses a pool that a user hands over for good, before any claim may name its mirror: from then on the
// in-cluster provider serves no claim of it, should it ever be started again.
func (r *Reconciler) handOverPool(ctx context.Context, pool *unstructured.Unstructured) error {
	if !incluster.HasHandedOverAnnotation(pool) || incluster.IsHandedOver(pool) {
		return nil
	}
	before := pool.DeepCopy()
	incluster.SetOrRemoveAnnotation(pool, clusterv1.PausedAnnotation, "", true)
	if err := r.Client.Patch(ctx, pool, guard.NewOptimisticPatch(before)); err != nil {
		return fmt.Errorf("pausing a pool that is handed over: %w", err)
	}
	r.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "HandedOver", "Mirror",
		"The in-cluster provider no longer serves this pool; claims may name %s", r.kind.MirrorName(pool.GetName()))
	return nil
}

// reconcileMirror gives the mirror the spec of its pool. A pool that is paused has a paused mirror, unless it is paused
// since it was handed over: then the mirror is paused independently.
func (r *Reconciler) reconcileMirror(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) error {
	translated, err := incluster.MirrorForPool(r.kind, pool)
	if err != nil {
		return errors.Join(err, r.markMirrorProblem(ctx, pool, mirror, err))
	}
	_, err = controllerutil.CreateOrPatch(ctx, r.Client, mirror, func() error {
		if mirror.GetUID() != "" && !incluster.IsMirrorOf(mirror, pool) {
			return newNameConflictError(mirror)
		}
		if mirror.GetUID() == "" {
			incluster.InitMirrorOrigin(mirror, pool, r.ManagementCluster)
		}
		*mirror.PoolSpec() = translated.Spec
		incluster.SealSpec(mirror)
		handedOver, known := incluster.IsHandedOver(pool), incluster.HasHandedOverAnnotation(mirror)
		if value, paused := pool.GetAnnotations()[clusterv1.PausedAnnotation]; !handedOver || !known {
			incluster.SetOrRemoveAnnotation(mirror, clusterv1.PausedAnnotation, value, paused && !handedOver)
		}
		incluster.SetOrRemoveAnnotation(mirror, incluster.HandedOverAnnotation, "", handedOver)
		incluster.SetOrRemoveAnnotation(mirror, incluster.GatewayAnnotation, translated.Gateway, translated.Gateway != "")
		incluster.SetOrRemoveAnnotation(mirror, incluster.ProblemAnnotation, "", false)
		if handedOver {
			incluster.HandOverMirror(mirror, pool)
			return nil
		}
		incluster.SetOrRemoveAnnotation(mirror, incluster.SourceUIDAnnotation, "", false)
		return controllerutil.SetControllerReference(pool, mirror, r.Client.Scheme())
	})
	if isCacheBehind(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("this pool is not served: %w", err)
	}
	return nil
}

// isCacheBehind reports whether a write failed because our cache is behind: the mirror was created or changed a moment
// ago.
func isCacheBehind(err error) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)
}

// markMirrorProblem makes an existing mirror grant nothing by a spec that its pool does not have any more, and records
// why. What is in use is still counted.
func (r *Reconciler) markMirrorProblem(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool, problem error) error {
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(mirror), mirror); err != nil || !incluster.IsMirrorOf(mirror, pool) {
		return client.IgnoreNotFound(err)
	}
	if text := text.SanitizeMessage(problem.Error()); mirror.GetAnnotations()[incluster.ProblemAnnotation] != text {
		before := mirror.DeepCopyObject().(client.Object)
		incluster.SetOrRemoveAnnotation(mirror, incluster.ProblemAnnotation, text, true)
		if err := r.Client.Patch(ctx, mirror, client.MergeFrom(before)); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return r.updatePoolCounts(ctx, pool, mirror)
}

// newNameConflictError returns the error that a pool of ours already has the name of the mirror.
func newNameConflictError(existing v1alpha1.Pool) error {
	key := pools.KeyForPool(existing)
	if incluster.IsEnded(existing) {
		return fmt.Errorf("%s has the addresses of an earlier pool of this name and is a pool of its own since that ended; name it in claims, or create this pool under another name", key)
	}
	return fmt.Errorf("%s exists and is not the mirror of this pool; delete it, or create it again under another name", key)
}

// updatePoolCounts writes how many addresses are in use into the status of the pool.
func (r *Reconciler) updatePoolCounts(ctx context.Context, pool *unstructured.Unstructured, mirror v1alpha1.Pool) error {
	if mirror.PoolStatus().Allocator == nil {
		return nil // no allocator has counted yet
	}
	before := pool.DeepCopy()
	counts := incluster.CountsFromStatus(mirror.PoolStatus())
	if old, _, _ := unstructured.NestedMap(pool.Object, "status", "ipAddresses"); equality.Semantic.DeepEqual(old, counts) {
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

// patchFinalizer adds the in-cluster provider's finalizer to a pool, or removes it.
func (r *Reconciler) patchFinalizer(ctx context.Context, pool *unstructured.Unstructured, change func(client.Object, string) bool) error {
	before := pool.DeepCopy()
	if !change(pool, incluster.PoolFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Patch(ctx, pool, guard.NewOptimisticPatch(before)))
}
