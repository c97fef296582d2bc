// Package guard has what the controllers share: whom to leave alone, writes that overwrite nobody's, and how often to
// look again, whatever the watches say.
package guard

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
)

// How often a Cluster is looked at, whatever the watches say: one that waits, and one that is served.
const (
	WaitingBackstop = 30 * time.Second
	ServedBackstop  = 5 * time.Minute
)

// LeavesAlone reports whether a Cluster is moved away, paused, or not this manager's.
func LeavesAlone(cluster *clusterv1.Cluster, watchFilter string) bool {
	return ending.IsMoved(cluster) || annotations.IsPaused(cluster, cluster) || IsAnothers(cluster, watchFilter)
}

// IsAnothers reports whether an object is for another manager than the one with that --watch-filter; empty: it serves all.
func IsAnothers(o metav1.Object, watchFilter string) bool {
	return watchFilter != "" && o.GetLabels()[clusterv1.WatchLabel] != watchFilter
}

// Label gives an IPAllocation the label without which a manager with --watch-filter does not serve it. It reports
// whether that was missing.
func Label(a *v1alpha1.IPAllocation, watchFilter string) bool {
	if watchFilter == "" || a.Labels[clusterv1.WatchLabel] == watchFilter {
		return false
	}
	metav1.SetMetaDataLabel(&a.ObjectMeta, clusterv1.WatchLabel, watchFilter)
	return true
}

// IsLeft reports whether a Cluster is being deleted and only we and the garbage collector hold it: its machines
// are gone, and its Nodes with them.
func IsLeft(c *clusterv1.Cluster) bool {
	return controllerutil.ContainsFinalizer(c, v1alpha1.TenantNetworkFinalizer) && ending.IsLeft(c, v1alpha1.TenantNetworkFinalizer)
}

// SinceRead patches an object with what was changed since it was read, if nobody else has written it.
func SinceRead(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// Retry makes a conflict a quiet retry: what is there now is read first, and is on its way to us. A write that is delayed (pace.Writes)
// is one, too.
func Retry(err error, doing string) (reconcile.Result, error) {
	after, err := pace.Split(err)
	switch {
	case err == nil && after > 0:
		return reconcile.Result{RequeueAfter: after}, nil
	case err == nil:
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return Behind(), nil
	}
	return reconcile.Result{}, fmt.Errorf("%s: %w", doing, err)
}
