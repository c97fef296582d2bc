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

type queue = workqueue.TypedRateLimitingInterface[nodeipam.Key]

// SetupWithManager registers the watches. Nodes come by a feed: an informer's cache would keep every Node a second time,
// with its images and conditions.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, nodes feed.Source, live client.Reader, options controller.TypedOptions[nodeipam.Key]) error {
	gvk := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	_, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("asking the API server whether it has ServiceCIDRs: %w", err)
	}
	r.watchesServices = err == nil
	r.feed = feed.New(&corev1.Node{}, "", nodes, live, r.Site)
	r.written = map[string]time.Time{}
	if n := r.NetworkingX; n != nil {
		n.said, n.at = map[types.UID]map[string]bool{}, map[types.UID]map[string]time.Time{}
	}
	options.RecoverPanic = ptr.To(false) // the books are in a state that cannot be: the next process begins anew
	options.RateLimiter = guard.Backoff[nodeipam.Key]()
	b := builder.TypedControllerManagedBy[nodeipam.Key](mgr).
		Named("nodecidr").
		WithOptions(options).
		WatchesRawSource(source.TypedFunc[nodeipam.Key](func(_ context.Context, q queue) error {
			r.Site.Wake = q.Add
			q.Add(r.Site.Key)
			return nil
		})).
		WatchesRawSource(source.TypedKind(mgr.GetCache(), &v1alpha1.ClusterCIDR{}, wake(r.Site.Key, differs[*v1alpha1.ClusterCIDR]))).
		WatchesRawSource(r.feed)
	if r.NetworkingX != nil {
		b = b.WatchesRawSource(source.TypedKind(mgr.GetCache(), nodeipam.NewNetworkingX(), wake(r.Site.Key, differs[*unstructured.Unstructured])))
	}
	if r.watchesServices {
		b = b.WatchesRawSource(source.TypedKind(mgr.GetCache(), &networkingv1.ServiceCIDR{}, wake(r.Site.Key, func(a, b *networkingv1.ServiceCIDR) bool {
			return !slices.Equal(a.Spec.CIDRs, b.Spec.CIDRs)
		})))
	}
	return b.Complete(r)
}

// wake wakes the site when an object comes, goes, or differs in what counts.
func wake[O client.Object](key nodeipam.Key, differs func(a, b O) bool) handler.TypedEventHandler[O, nodeipam.Key] {
	return handler.TypedFuncs[O, nodeipam.Key]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[O], q queue) { q.Add(key) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[O], q queue) {
			if differs(e.ObjectOld, e.ObjectNew) {
				q.Add(key)
			}
		},
		DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[O], q queue) { q.Add(key) },
	}
}

// differs reports whether a ClusterCIDR was changed by more than a status: its spec never is.
func differs[O client.Object](a, b O) bool {
	return a.GetUID() != b.GetUID() || a.GetDeletionTimestamp().IsZero() != b.GetDeletionTimestamp().IsZero() || !slices.Equal(a.GetFinalizers(), b.GetFinalizers())
}
