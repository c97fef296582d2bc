// Package guard has what the controllers share: which objects to skip, writes that overwrite no other writer's changes,
// and how often to reconcile, whatever the watches show.
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

// A Cluster is reconciled at least once in these periods, whatever the watches show: one that waits, and one that is
// served.
const (
	WaitingResyncPeriod = 30 * time.Second
	ServedResyncPeriod  = 5 * time.Minute
)

// ShouldSkipCluster reports whether a Cluster is moved away, paused, or served by another manager.
func ShouldSkipCluster(cluster *clusterv1.Cluster, watchFilter string) bool {
	return ending.IsMoved(cluster) || annotations.IsPaused(cluster, cluster) || IsFilteredOut(cluster, watchFilter)
}

// IsFilteredOut reports whether an object is for another manager than the one with that --watch-filter; an empty filter
// matches all objects.
func IsFilteredOut(o metav1.Object, watchFilter string) bool {
	return watchFilter != "" && o.GetLabels()[clusterv1.WatchLabel] != watchFilter
}

// AddWatchLabel sets on an IPAllocation the label without which a manager with --watch-filter does not serve it. It
// reports whether the label has changed.
func AddWatchLabel(a *v1alpha1.IPAllocation, watchFilter string) bool {
	if watchFilter == "" || a.Labels[clusterv1.WatchLabel] == watchFilter {
		return false
	}
	metav1.SetMetaDataLabel(&a.ObjectMeta, clusterv1.WatchLabel, watchFilter)
	return true
}

// HasOnlyOurFinalizer reports whether a Cluster is being deleted and only our finalizer and those of the garbage
// collector are on it: its Machines are gone, and its Nodes with them.
func HasOnlyOurFinalizer(c *clusterv1.Cluster) bool {
	return controllerutil.ContainsFinalizer(c, v1alpha1.TenantNetworkFinalizer) && ending.HasOnlyFinalizers(c, v1alpha1.TenantNetworkFinalizer)
}

// NewOptimisticPatch returns a patch with the changes since an object was read, which fails if another writer has
// written the object since.
func NewOptimisticPatch(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// RequeueOnConflict turns a conflict into a quiet retry: the current state must be read first, and the watch brings it.
// A delayed write (pace.WritePacer) is retried in the same way. action is the context of other errors.
func RequeueOnConflict(err error, action string) (reconcile.Result, error) {
	after, err := pace.SplitDelayed(err)
	switch {
	case err == nil && after > 0:
		return reconcile.Result{RequeueAfter: after}, nil
	case err == nil:
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return RequeueWithBackoff(), nil
	}
	return reconcile.Result{}, fmt.Errorf("%s: %w", action, err)
}
