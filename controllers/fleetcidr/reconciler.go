// Package fleetcidr has the Nodes of workload clusters get their pod CIDRs. For each Cluster that wants it there is a site:
// it is fed with the Nodes of the workload cluster, and with the ClusterCIDRs that select the Cluster. What is decided is
// in internal/nodeipam, whose site of the manager's own cluster controllers/nodecidr runs.
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

// Reconciler has the Nodes of each Cluster with the label get their pod CIDRs.
type Reconciler struct {
	Client client.Client
	// Holder writes the entries that keep a ClusterCIDR from being deleted.
	Holder client.Client
	// Live reads what the management cluster has.
	Live client.Reader
	// Clusters connects to the workload clusters.
	Clusters clustercache.ClusterCache
	// Blocks of each Cluster; Synced reports whether all that exist were read. One that no Node uses stays for BlockGrace.
	Blocks     *index.Blocks
	Synced     func() bool
	BlockGrace time.Duration
	// Elected reports whether the manager works only while it is the leader.
	Elected bool
	// Writers write for all Clusters.
	Writers     *jobs.Workers[nodeipam.Key]
	WatchFilter string
	// Shard says which Clusters are served.
	Shard shard.Shard
	Now   func() time.Time

	// ctx ends when the manager does.
	ctx        context.Context //nolint:containedctx // the life of the manager
	controller controller.Controller
	// wake queues a Cluster.
	wake   func(nodeipam.Key)
	sites  sites
	ranges ranges
	// answers are those of API servers that are not connected to.
	answers workloads.Answers
	slow    workloads.Slow
}

// Wants reports whether a Cluster is to be connected to.
func (r *Reconciler) Wants(ctx context.Context, c *clusterv1.Cluster) bool {
	key := client.ObjectKeyFromObject(c)
	return enrolled(c) || len(r.Blocks.Pods(key)) > 0 || len(r.using(ctx, key)) > 0
}

// all are the ClusterCIDRs that there are. They are not to be changed.
func (r *Reconciler) all(ctx context.Context) ([]v1alpha1.ClusterCIDR, error) {
	var out v1alpha1.ClusterCIDRList
	if err := r.Client.List(ctx, &out, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("reading ClusterCIDRs: %w", err)
	}
	return out.Items, nil
}

// using are the names of the ClusterCIDRs that a Cluster has an entry in.
func (r *Reconciler) using(ctx context.Context, key nodeipam.Key) (names []string) {
	all, err := r.all(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "What a Cluster uses is looked at later", "cluster", key.String())
	}
	for i := range all {
		if nodeipam.EntryOf(&all[i], key) != nil {
			names = append(names, all[i].Name)
		}
	}
	return names
}

// forget forgets a Cluster that is gone. Its entries go; its blocks, controllers/cluster lets go of.
func (r *Reconciler) forget(ctx context.Context, key nodeipam.Key) {
	r.leave(ctx, key)
	r.answers.Forget(key)
	r.slow.Forget(key)
}

// leave ends the site of a Cluster. What was said of it is taken back, also on a ClusterCIDR in which it has no entry, as nothing
// was given there, and also what another manager has said, or this one before it was restarted.
func (r *Reconciler) leave(ctx context.Context, key nodeipam.Key) {
	r.sites.end(key)
	r.ranges.forget(key)
	all, err := r.all(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "What is said of a Cluster is looked at later", "cluster", key.String())
	}
	for i := range all {
		if nodeipam.EntryOf(&all[i], key) != nil || len(nodeipam.SaidOf(&all[i], key)) > 0 {
			r.ranges.look(all[i].Name)
		}
	}
}

// enrolled reports whether the Nodes of a Cluster are to get pod CIDRs.
func enrolled(c *clusterv1.Cluster) bool {
	_, is := c.Labels[v1alpha1.NodeCIDRsLabel]
	return is
}

// labelsOf are the labels by which ClusterCIDRs select a Cluster; nil: it is to get nothing new.
func labelsOf(c *clusterv1.Cluster) labels.Set {
	if !enrolled(c) {
		return nil
	}
	return c.Labels
}

// Reconcile brings one Cluster forward.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key, cluster := req.NamespacedName, &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, key, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(ctx, key)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	if !r.Synced() {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if guard.LeavesAlone(cluster, r.WatchFilter) {
		r.leave(ctx, key) // another manager may have it now
		return reconcile.Result{}, nil
	}
	if guard.IsLeft(cluster) {
		r.leave(ctx, key) // its Nodes are gone with its machines
		return reconcile.Result{}, nil
	}
	all, err := r.all(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	has := labelsOf(cluster)
	objects := objectsFor(all, key, has)
	if has == nil && len(objects) == 0 && len(r.Blocks.Pods(key)) == 0 {
		r.leave(ctx, key)
		return guard.Retry(r.withdraw(ctx, cluster), "taking the condition off")
	}
	next, err := r.slow.Look(ctx, key, func(ctx context.Context) (time.Duration, error) { return r.look(ctx, cluster, all, objects) })
	after, err := pace.Split(err)
	if apierrors.IsConflict(err) {
		return guard.Behind(), nil // what is there now is on its way to us
	}
	if after > 0 && (next == 0 || after < next) {
		next = after
	}
	return reconcile.Result{RequeueAfter: next}, err
}

// objectsFor are the ClusterCIDRs as they are for a Cluster with those labels; nil: it is to get nothing new.
func objectsFor(all []v1alpha1.ClusterCIDR, key nodeipam.Key, has labels.Set) []nodeipam.Object {
	out := []nodeipam.Object{}
	for i := range all {
		if o, is := nodeipam.ObjectFor(&all[i], key, has); is {
			out = append(out, o)
		}
	}
	return out
}

// look is one look at a Cluster.
func (r *Reconciler) look(ctx context.Context, cluster *clusterv1.Cluster, all []v1alpha1.ClusterCIDR, objects []nodeipam.Object) (time.Duration, error) {
	key := client.ObjectKeyFromObject(cluster)
	s, err := r.connect(ctx, key)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		r.sites.end(key)
		return guard.WaitingBackstop, r.unreachable(ctx, cluster)
	}
	if err != nil {
		return 0, err
	}
	r.answers.Forget(key) // what it refused before is no news of the next outage
	if err := s.takeServices(cluster); err != nil {
		return 0, err
	}
	refused, read := s.refused(), s.isRead()
	if !read && refused == nil {
		return guard.WaitingBackstop, nil // the feeds wake us
	}
	s.SetRefusal(refused, !read)
	s.SetObjects(objects)
	s.SetBlocks(r.blocks(key))
	var wait time.Duration
	var failed error
	if read {
		wait, failed = s.Reconcile(ctx)
	}
	again, err := r.report(ctx, cluster, s, len(objects) > 0, all)
	next := guard.ServedBackstop
	for _, w := range []time.Duration{wait, again} {
		if w > 0 {
			next = min(next, w)
		}
	}
	if s.Say() {
		next = min(next, time.Second)
	}
	return next, errors.Join(failed, err)
}

// report takes what is known of a Cluster, and shows it. It returns when there is more to show.
func (r *Reconciler) report(ctx context.Context, cluster *clusterv1.Cluster, s *site, selected bool, all []v1alpha1.ClusterCIDR) (time.Duration, error) {
	now := r.Now()
	if since := now.Sub(s.reported); since < reportEvery {
		return reportEvery - since, nil
	}
	s.reported = now
	found, speaks := s.Report()
	if !speaks {
		r.ranges.leave(s.Key)
		return s.ClaimOutdated(r.outdated(cluster, found, conditionOf(found, selected), all), outdatedFor), nil
	}
	r.ranges.take(s.Key, found)
	return r.show(ctx, cluster, s, conditionOf(found, selected))
}

// outdated are the statuses that the holder of a Cluster's Nodes has not written since what they say of it has changed: those of
// ClusterCIDRs, and the condition of the Cluster, which any manager writes that does not reach it.
func (r *Reconciler) outdated(cluster *clusterv1.Cluster, found nodeipam.Report, is metav1.Condition, all []v1alpha1.ClusterCIDR) map[string]nodeipam.Difference {
	out, key := map[string]nodeipam.Difference{}, client.ObjectKeyFromObject(cluster)
	is.Message = text.Message(is.Message)
	was := ptr.Deref(conditions.Get(cluster, is.Type), metav1.Condition{})
	if says := nodeipam.SaidBy(was); says != nodeipam.SaidBy(is) {
		out[clusterv1.ClusterKind] = nodeipam.Difference{In: fmt.Sprint(was.Status, was.Reason), Says: says}
	}
	for i := range all {
		c := &all[i]
		usage, known := found.Ranges[nodeipam.RefOf(c)]
		if !known || usage.Blind {
			continue
		}
		free := usage.Free
		if entry := nodeipam.EntryOf(c, key); entry != nil {
			free = entry.Free
		}
		next := c.DeepCopy()
		nodeipam.DescribeFleet(next, map[nodeipam.Key]nodeipam.Usage{key: usage.Beside(usage.Capacity, free, nodeipam.SaidOf(c, key))}, r.Shard.Whole(), r.Now())
		if d, differs := nodeipam.DifferenceIn(&c.Status, &next.Status); differs {
			out[v1alpha1.ClusterCIDRKind+" "+c.Name] = d
		}
	}
	return out
}

// unreachable says that nothing is known of the Nodes of a Cluster. What they have stays theirs. The connection wakes us.
func (r *Reconciler) unreachable(ctx context.Context, cluster *clusterv1.Cluster) error {
	why, err := workloads.WithoutKubeconfig(ctx, r.Live, cluster)
	if err != nil {
		return err
	}
	tried := r.Clusters.GetHealthCheckingState(ctx, client.ObjectKeyFromObject(cluster))
	if why == "" && tried.ConsecutiveFailures == 0 {
		return nil // it is being built, or was not tried yet
	}
	is := unreachableCondition(why)
	key := client.ObjectKeyFromObject(cluster)
	if refused := r.answers.Refusal(ctx, r.Live, key, func() { r.wake(key) }); why == "" && refused != nil {
		is = refusedCondition(refusal(key, refused))
	}
	_, err = r.show(ctx, cluster, nil, is)
	return err
}
