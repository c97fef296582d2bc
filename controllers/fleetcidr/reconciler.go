// Package fleetcidr assigns pod CIDRs to the Nodes of workload clusters. Each enrolled Cluster has an allocator, which
// is fed with the Nodes of the workload cluster, and with the ClusterCIDRs that select the Cluster. The decisions are
// made in internal/nodeipam; controllers/nodecidr runs the allocator of the manager's own cluster.
package fleetcidr

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
	jobs "github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=clustercidrs,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=clustercidrs/status,verbs=patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=clustercidrs/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;clusters/status,verbs=patch

// Reconciler assigns pod CIDRs to the Nodes of each Cluster with the label butler.butlerlabs.dev/node-cidrs.
type Reconciler struct {
	Client client.Client
	// EntryClient writes the entries that keep a ClusterCIDR from being deleted.
	EntryClient client.Client
	// Live reads the current state of the management cluster.
	Live client.Reader
	// Clusters connects to the workload clusters.
	Clusters clustercache.ClusterCache
	// Blocks are the blocks of each Cluster; HasSynced reports whether all existing ones were read. A block that no
	// Node uses stays for BlockGracePeriod.
	Blocks           *index.BlockIndex
	HasSynced        func() bool
	BlockGracePeriod time.Duration
	// Elected reports whether the manager works only while it is the leader.
	Elected bool
	// WriteWorkers run the writes for all Clusters.
	WriteWorkers *jobs.Workers[nodeipam.ClusterKey]
	WatchFilter  string
	// Shard selects which Clusters are served.
	Shard shard.Shard
	Now   func() time.Time

	// ctx ends when the manager does.
	ctx        context.Context //nolint:containedctx // the life of the manager
	controller controller.Controller
	// enqueueCluster enqueues a Cluster.
	enqueueCluster    func(nodeipam.ClusterKey)
	connectedClusters connectedClusters
	rangeUsages       rangeUsages
	// apiServerAnswers are the answers of API servers that are not connected.
	apiServerAnswers workloads.AccessProber
	slowClusters     workloads.SlowClusters
}

// NeedsWorkloadAccess reports whether a connection to a Cluster is needed.
func (r *Reconciler) NeedsWorkloadAccess(ctx context.Context, c *clusterv1.Cluster) bool {
	key := client.ObjectKeyFromObject(c)
	return isEnrolled(c) || len(r.Blocks.PodBlocks(key)) > 0 || len(r.clusterCIDRsInUse(ctx, key)) > 0
}

// listClusterCIDRs returns all ClusterCIDRs. The caller must not modify them.
func (r *Reconciler) listClusterCIDRs(ctx context.Context) ([]v1alpha1.ClusterCIDR, error) {
	var out v1alpha1.ClusterCIDRList
	if err := r.Client.List(ctx, &out, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("reading ClusterCIDRs: %w", err)
	}
	return out.Items, nil
}

// clusterCIDRsInUse returns the names of the ClusterCIDRs in which a Cluster has an entry.
func (r *Reconciler) clusterCIDRsInUse(ctx context.Context, key nodeipam.ClusterKey) (names []string) {
	all, err := r.listClusterCIDRs(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to read which ClusterCIDRs a Cluster uses; checking again later", "cluster", key.String())
	}
	for i := range all {
		if nodeipam.EntryForCluster(&all[i], key) != nil {
			names = append(names, all[i].Name)
		}
	}
	return names
}

// forgetCluster forgets a Cluster that is gone. Its entries are removed with it; controllers/cluster releases its
// blocks.
func (r *Reconciler) forgetCluster(ctx context.Context, key nodeipam.ClusterKey) {
	r.stopServing(ctx, key)
	r.apiServerAnswers.ForgetCluster(key)
	r.slowClusters.ForgetCluster(key)
}

// stopServing ends the allocator of a Cluster. What the status of ClusterCIDRs reports about the Cluster is withdrawn,
// also where it has no entry, as nothing was granted there, and also what another manager has written, or this one
// before it was restarted.
func (r *Reconciler) stopServing(ctx context.Context, key nodeipam.ClusterKey) {
	r.connectedClusters.disconnect(key)
	r.rangeUsages.dropAndEnqueue(key)
	all, err := r.listClusterCIDRs(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to read which ClusterCIDRs report about a Cluster; checking again later", "cluster", key.String())
	}
	for i := range all {
		if nodeipam.EntryForCluster(&all[i], key) != nil || len(nodeipam.ConditionsForCluster(&all[i], key)) > 0 {
			r.rangeUsages.enqueueClusterCIDR(all[i].Name)
		}
	}
}

// isEnrolled reports whether the Nodes of a Cluster should get pod CIDRs.
func isEnrolled(c *clusterv1.Cluster) bool {
	_, ok := c.Labels[v1alpha1.NodeCIDRsLabel]
	return ok
}

// selectableLabels returns the labels by which ClusterCIDRs select a Cluster; nil means that it must not get anything
// new.
func selectableLabels(c *clusterv1.Cluster) labels.Set {
	if !isEnrolled(c) {
		return nil
	}
	return c.Labels
}

// Reconcile reconciles one Cluster.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key, cluster := req.NamespacedName, &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, key, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.forgetCluster(ctx, key)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	if !r.HasSynced() {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if guard.ShouldSkipCluster(cluster, r.WatchFilter) {
		r.stopServing(ctx, key) // another manager may serve it now
		return reconcile.Result{}, nil
	}
	if guard.HasOnlyOurFinalizer(cluster) {
		r.stopServing(ctx, key) // its Nodes are gone with its machines
		return reconcile.Result{}, nil
	}
	all, err := r.listClusterCIDRs(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	clusterLabels := selectableLabels(cluster)
	objects := rangeObjectsForCluster(all, key, clusterLabels)
	if clusterLabels == nil && len(objects) == 0 && len(r.Blocks.PodBlocks(key)) == 0 {
		r.stopServing(ctx, key)
		return guard.RequeueOnConflict(r.removeCondition(ctx, cluster), "taking the condition off")
	}
	next, err := r.slowClusters.RunBounded(ctx, key, func(ctx context.Context) (time.Duration, error) {
		return r.reconcileCluster(ctx, cluster, all, objects)
	})
	after, err := pace.SplitDelayed(err)
	if apierrors.IsConflict(err) {
		return guard.RequeueWithBackoff(), nil // the cache will show the current version
	}
	if after > 0 && (next == 0 || after < next) {
		next = after
	}
	return reconcile.Result{RequeueAfter: next}, err
}

// rangeObjectsForCluster returns the ClusterCIDRs as they apply to a Cluster with the given labels; nil labels mean
// that it must not get anything new.
func rangeObjectsForCluster(all []v1alpha1.ClusterCIDR, key nodeipam.ClusterKey, clusterLabels labels.Set) []nodeipam.RangeObject {
	out := []nodeipam.RangeObject{}
	for i := range all {
		if o, ok := nodeipam.RangeObjectForCluster(&all[i], key, clusterLabels); ok {
			out = append(out, o)
		}
	}
	return out
}

// reconcileCluster does one reconcile of an enrolled Cluster, or of one that still uses CIDRs.
func (r *Reconciler) reconcileCluster(ctx context.Context, cluster *clusterv1.Cluster, all []v1alpha1.ClusterCIDR, objects []nodeipam.RangeObject) (time.Duration, error) {
	key := client.ObjectKeyFromObject(cluster)
	s, err := r.connectCluster(ctx, key)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		r.connectedClusters.disconnect(key)
		return guard.WaitingResyncPeriod, r.reportUnreachable(ctx, cluster)
	}
	if err != nil {
		return 0, err
	}
	r.apiServerAnswers.ForgetCluster(key) // an earlier refusal must not be reported in the next outage
	if err := s.updateServiceCIDRs(cluster); err != nil {
		return 0, err
	}
	refused, read := s.feedError(), s.hasSynced()
	if !read && refused == nil {
		return guard.WaitingResyncPeriod, nil // the feeds enqueue the Cluster
	}
	s.SetReadError(refused, !read)
	s.SetRangeObjects(objects)
	s.SetBlocks(r.blocksForCluster(key))
	var wait time.Duration
	var failed error
	if read {
		wait, failed = s.Reconcile(ctx)
	}
	again, err := r.reportStatus(ctx, cluster, s, len(objects) > 0, all)
	next := guard.ServedResyncPeriod
	for _, w := range []time.Duration{wait, again} {
		if w > 0 {
			next = min(next, w)
		}
	}
	if s.EmitEvents() {
		next = min(next, time.Second)
	}
	return next, errors.Join(failed, err)
}

// reportStatus records what is known of a Cluster, and publishes it. It returns how long until there is more to
// publish.
func (r *Reconciler) reportStatus(ctx context.Context, cluster *clusterv1.Cluster, s *connectedCluster, selected bool, all []v1alpha1.ClusterCIDR) (time.Duration, error) {
	now := r.Now()
	if since := now.Sub(s.reportedAt); since < reportInterval {
		return reportInterval - since, nil
	}
	s.reportedAt = now
	found, ok := s.BuildReport()
	if !ok {
		r.rangeUsages.dropUsage(s.ClusterKey)
		return s.TakeOverIfOutdated(r.findOutdatedStatuses(cluster, found, conditionFromReport(found, selected), all), outdatedTimeout), nil
	}
	r.rangeUsages.recordReport(s.ClusterKey, found)
	return r.setCondition(ctx, cluster, s, conditionFromReport(found, selected))
}

// findOutdatedStatuses returns the statuses that the holder of a Cluster's Nodes has not written since what they report
// about the Cluster has changed: those of ClusterCIDRs, and the condition of the Cluster, which any manager writes that
// cannot connect to it.
func (r *Reconciler) findOutdatedStatuses(cluster *clusterv1.Cluster, found nodeipam.Report, condition metav1.Condition, all []v1alpha1.ClusterCIDR) map[string]nodeipam.StatusDifference {
	out, key := map[string]nodeipam.StatusDifference{}, client.ObjectKeyFromObject(cluster)
	condition.Message = text.SanitizeMessage(condition.Message)
	old := ptr.Deref(conditions.Get(cluster, condition.Type), metav1.Condition{})
	if published := nodeipam.FormatCondition(old); published != nodeipam.FormatCondition(condition) {
		out[clusterv1.ClusterKind] = nodeipam.StatusDifference{DifferingFields: fmt.Sprint(old.Status, old.Reason), PublishedStatus: published}
	}
	for i := range all {
		c := &all[i]
		usage, known := found.UsageByRange[nodeipam.RefForClusterCIDR(c)]
		if !known || usage.NodesUnread {
			continue
		}
		free := usage.Free
		if entry := nodeipam.EntryForCluster(c, key); entry != nil {
			free = entry.Free
		}
		next := c.DeepCopy()
		nodeipam.ApplyFleetStatus(next, map[nodeipam.ClusterKey]nodeipam.Usage{key: usage.WithPublishedStatus(usage.Capacity, free, nodeipam.ConditionsForCluster(c, key))}, r.Shard.IsWhole(), r.Now())
		if d, differs := nodeipam.CompareStatuses(&c.Status, &next.Status); differs {
			out[v1alpha1.ClusterCIDRKind+" "+c.Name] = d
		}
	}
	return out
}

// reportUnreachable sets the condition that nothing is known of the Nodes of a Cluster. They keep their CIDRs. A new
// connection enqueues the Cluster.
func (r *Reconciler) reportUnreachable(ctx context.Context, cluster *clusterv1.Cluster) error {
	why, err := workloads.MissingKubeconfigReason(ctx, r.Live, cluster)
	if err != nil {
		return err
	}
	tried := r.Clusters.GetHealthCheckingState(ctx, client.ObjectKeyFromObject(cluster))
	if why == "" && tried.ConsecutiveFailures == 0 {
		return nil // it is being provisioned, or no connection was tried yet
	}
	condition := newUnreachableCondition(why)
	key := client.ObjectKeyFromObject(cluster)
	if refused := r.apiServerAnswers.LastAccessError(ctx, r.Live, key, func() { r.enqueueCluster(key) }); why == "" && refused != nil {
		condition = newRefusedCondition(newRefusalError(key, refused))
	}
	_, err = r.setCondition(ctx, cluster, nil, condition)
	return err
}
