package fleetcidr

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// numbersInterval bounds how often the numbers of a ClusterCIDR are written, as many Clusters may use it.
const numbersInterval = time.Minute

// outdatedTimeout is how long a number stays outdated before the holder of the Cluster's Nodes counts as gone: longer
// than a write is delayed.
const outdatedTimeout = 2 * numbersInterval

// rangeUsages is what is known of how Clusters use ClusterCIDRs. Its zero value knows nothing.
type rangeUsages struct {
	mu sync.Mutex
	// usageByCluster is the last known usage by each Cluster.
	usageByCluster map[nodeipam.ClusterKey]map[podcidr.Ref]nodeipam.Usage
	queue          queue
	// statusWrittenAt is when the status of each ClusterCIDR was last written.
	statusWrittenAt map[types.UID]time.Time
}

// recordReport records the report on a Cluster, and enqueues the ClusterCIDRs whose usage has changed.
func (r *rangeUsages) recordReport(key nodeipam.ClusterKey, found nodeipam.Report) {
	previous := r.replaceUsage(key, found.UsageByRange)
	for ref, usage := range found.UsageByRange {
		if old, known := previous[ref]; !known || !old.Equal(usage) {
			r.enqueueClusterCIDR(ref.Name)
		}
	}
}

func (r *rangeUsages) replaceUsage(key nodeipam.ClusterKey, found map[podcidr.Ref]nodeipam.Usage) (previous map[podcidr.Ref]nodeipam.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.usageByCluster == nil {
		r.usageByCluster = map[nodeipam.ClusterKey]map[podcidr.Ref]nodeipam.Usage{}
	}
	previous, r.usageByCluster[key] = r.usageByCluster[key], found
	return previous
}

// dropUsage drops the usage by a Cluster whose Nodes another manager holds: what this manager has seen is soon
// outdated.
func (r *rangeUsages) dropUsage(key nodeipam.ClusterKey) { r.removeUsage(key) }

// dropAndEnqueue drops the usage by a Cluster that is gone, is served by another manager, or is no longer enrolled, and
// enqueues its ClusterCIDRs.
func (r *rangeUsages) dropAndEnqueue(key nodeipam.ClusterKey) {
	for ref := range r.removeUsage(key) {
		r.enqueueClusterCIDR(ref.Name)
	}
}

func (r *rangeUsages) removeUsage(key nodeipam.ClusterKey) (previous map[podcidr.Ref]nodeipam.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	previous = r.usageByCluster[key]
	delete(r.usageByCluster, key)
	return previous
}

// enqueueClusterCIDR enqueues a ClusterCIDR. Before its controller has started, it does nothing, as the start
// reconciles all.
func (r *rangeUsages) enqueueClusterCIDR(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue != nil {
		r.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
}

func (r *rangeUsages) setQueue(q queue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = q
}

// usageForRange returns how Clusters use a ClusterCIDR, as far as this manager knows.
func (r *rangeUsages) usageForRange(ref podcidr.Ref) map[nodeipam.ClusterKey]nodeipam.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[nodeipam.ClusterKey]nodeipam.Usage{}
	for key, all := range r.usageByCluster {
		if usage, ok := all[ref]; ok {
			out[key] = usage
		}
	}
	return out
}

// hasUsage reports whether the usage by a Cluster is known, and whether it includes a ClusterCIDR.
func (r *rangeUsages) hasUsage(key nodeipam.ClusterKey, ref podcidr.Ref) (known, reported bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, known := r.usageByCluster[key]
	_, reported = all[ref]
	return known, reported
}

// timeToWrite returns how long until a change of numbers alone may be written; 0 or less means now. recordWrite records
// that it was.
func (r *rangeUsages) timeToWrite(uid types.UID, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return numbersInterval - now.Sub(r.statusWrittenAt[uid])
}

func (r *rangeUsages) recordWrite(uid types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.statusWrittenAt == nil {
		r.statusWrittenAt = map[types.UID]time.Time{}
	}
	maps.DeleteFunc(r.statusWrittenAt, func(_ types.UID, at time.Time) bool { return now.Sub(at) > 2*numbersInterval })
	r.statusWrittenAt[uid] = now
}

// reconcileRange publishes on a ClusterCIDR how Clusters use it, and removes our finalizer when it is being deleted and
// no Cluster uses it.
func (r *Reconciler) reconcileRange(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c := &v1alpha1.ClusterCIDR{}
	if err := r.Client.Get(ctx, req.NamespacedName, c); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if nodeipam.IsLocal(c) {
		return reconcile.Result{}, nil
	}
	next := c.DeepCopy()
	gone, silent, err := r.findStaleClusters(ctx, c)
	if err != nil {
		return reconcile.Result{}, err
	}
	next.Status.Clusters = slices.DeleteFunc(next.Status.Clusters, func(e v1alpha1.ClusterUse) bool {
		return gone[nodeipam.ClusterKey{Namespace: e.Namespace, Name: e.Name}]
	})
	entryGone := len(next.Status.Clusters) < len(c.Status.Clusters)
	if len(c.Status.Clusters) == 0 && c.DeletionTimestamp != nil {
		if !nodeipam.RangeObjectFromClusterCIDR(c).HasFinalizer {
			return reconcile.Result{}, nil // a foreign finalizer keeps it
		}
		err := nodeipam.ClusterCIDRProtector{Client: r.Client, Live: r.Live}.UnprotectObject(ctx, nodeipam.RefForClusterCIDR(c), "")
		return guard.RequeueOnConflict(err, "removing the finalizer from ClusterCIDR "+c.Name)
	}
	now := r.Now()
	by := r.rangeUsages.usageForRange(nodeipam.RefForClusterCIDR(c))
	for key := range silent {
		by[key] = nodeipam.Usage{NodesUnread: true}
	}
	changed, urgent := nodeipam.ApplyFleetStatus(next, by, r.Shard.IsWhole(), now)
	urgent = urgent || entryGone
	if !changed && !urgent {
		return reconcile.Result{}, nil
	}
	if wait := r.rangeUsages.timeToWrite(c.UID, now); !urgent && wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	r.rangeUsages.recordWrite(c.UID, now)
	err = client.IgnoreNotFound(r.Client.Status().Patch(ctx, next, guard.NewOptimisticPatch(c)))
	return guard.RequeueOnConflict(err, "writing the status of ClusterCIDR "+c.Name)
}

// findStaleClusters returns two sets of Clusters that the status of a ClusterCIDR reports about. gone are those that do
// not exist: their Nodes are gone with them. silent are those about which it must not report any more: the ones that
// are gone, and those for which hasNothingToReport returns true.
func (r *Reconciler) findStaleClusters(ctx context.Context, c *v1alpha1.ClusterCIDR) (gone, silent map[nodeipam.ClusterKey]bool, err error) {
	gone, silent = map[nodeipam.ClusterKey]bool{}, map[nodeipam.ClusterKey]bool{}
	for _, key := range nodeipam.ClustersInStatus(c) {
		cluster := &clusterv1.Cluster{}
		err := r.Client.Get(ctx, key, cluster)
		if apierrors.IsNotFound(err) {
			err = r.Live.Get(ctx, key, cluster) // the cache is behind, or does not have all namespaces
		}
		switch {
		case apierrors.IsNotFound(err):
			gone[key], silent[key] = true, true
		case err != nil:
			return nil, nil, fmt.Errorf("reading Cluster %s, which uses ClusterCIDR %s: %w", key, c.Name, err)
		case r.hasNothingToReport(cluster, c):
			silent[key] = true
		}
	}
	return gone, silent, nil
}

// hasNothingToReport reports whether a ClusterCIDR must not report about a Cluster: no manager serves the Cluster, or
// its Nodes get nothing from the ClusterCIDR, or this manager serves the Cluster, and has no usage to report.
func (r *Reconciler) hasNothingToReport(cluster *clusterv1.Cluster, c *v1alpha1.ClusterCIDR) bool {
	key := client.ObjectKeyFromObject(cluster)
	switch {
	case guard.IsFilteredOut(cluster, r.WatchFilter):
		return false
	case guard.ShouldSkipCluster(cluster, r.WatchFilter), guard.HasOnlyOurFinalizer(cluster):
		return true
	}
	known, reported := r.rangeUsages.hasUsage(key, nodeipam.RefForClusterCIDR(c))
	if known {
		return !reported
	}
	_, concerns := nodeipam.RangeObjectForCluster(c, key, selectableLabels(cluster))
	return !concerns
}
