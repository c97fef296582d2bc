package nodecidr

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

type queue = workqueue.TypedRateLimitingInterface[nodeipam.ClusterKey]

// SetupWithManager registers the watches. Nodes come from a feed, as the cache of an informer would keep every Node a
// second time, with its images and conditions.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, nodes feed.Source, live client.Reader, options controller.TypedOptions[nodeipam.ClusterKey]) error {
	gvk := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	_, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("asking the API server whether it has ServiceCIDRs: %w", err)
	}
	r.watchesServiceCIDRs = err == nil
	r.nodeFeed = feed.New(&corev1.Node{}, "", nodes, live, r.Allocator)
	r.statusWrittenAt = map[string]time.Time{}
	if n := r.NetworkingX; n != nil {
		n.emitted, n.emittedAt = map[types.UID]map[string]bool{}, map[types.UID]map[string]time.Time{}
	}
	options.RecoverPanic = ptr.To(false) // after a panic the allocations may be inconsistent: the next process starts from scratch
	options.RateLimiter = guard.NewRateLimiter[nodeipam.ClusterKey]()
	b := builder.TypedControllerManagedBy[nodeipam.ClusterKey](mgr).
		Named("nodecidr").
		WithOptions(options).
		WatchesRawSource(source.TypedFunc[nodeipam.ClusterKey](func(_ context.Context, q queue) error {
			r.Allocator.Enqueue = q.Add
			q.Add(r.Allocator.ClusterKey)
			return nil
		})).
		WatchesRawSource(source.TypedKind(mgr.GetCache(), &v1alpha1.ClusterCIDR{}, enqueueOnChange(r.Allocator.ClusterKey, hasRelevantChange[*v1alpha1.ClusterCIDR]))).
		WatchesRawSource(r.nodeFeed)
	if r.NetworkingX != nil {
		b = b.WatchesRawSource(source.TypedKind(mgr.GetCache(), nodeipam.NewNetworkingXClusterCIDR(), enqueueOnChange(r.Allocator.ClusterKey, hasRelevantChange[*unstructured.Unstructured])))
	}
	if r.watchesServiceCIDRs {
		b = b.WatchesRawSource(source.TypedKind(mgr.GetCache(), &networkingv1.ServiceCIDR{}, enqueueOnChange(r.Allocator.ClusterKey, func(a, b *networkingv1.ServiceCIDR) bool {
			return !slices.Equal(a.Spec.CIDRs, b.Spec.CIDRs)
		})))
	}
	return b.Complete(r)
}

// enqueueOnChange enqueues the cluster when an object is created, deleted, or changed as differs reports.
func enqueueOnChange[O client.Object](key nodeipam.ClusterKey, differs func(a, b O) bool) handler.TypedEventHandler[O, nodeipam.ClusterKey] {
	return handler.TypedFuncs[O, nodeipam.ClusterKey]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[O], q queue) { q.Add(key) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[O], q queue) {
			if differs(e.ObjectOld, e.ObjectNew) {
				q.Add(key)
			}
		},
		DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[O], q queue) { q.Add(key) },
	}
}

// hasRelevantChange reports whether more than the status of a ClusterCIDR was changed; its spec never changes.
func hasRelevantChange[O client.Object](a, b O) bool {
	return a.GetUID() != b.GetUID() || a.GetDeletionTimestamp().IsZero() != b.GetDeletionTimestamp().IsZero() || !slices.Equal(a.GetFinalizers(), b.GetFinalizers())
}
