// Package nodecidr assigns pod CIDRs to the Nodes of the manager's own cluster: it feeds an allocator with Nodes,
// ClusterCIDRs and ServiceCIDRs, runs its reconciles, and publishes its reports. The decisions are made in
// internal/nodeipam.
package nodecidr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
)

const (
	// resyncPeriod is how often the cluster is reconciled without an event of a watch.
	resyncPeriod = time.Minute
	// reportInterval bounds how often a report is built, numbersInterval how often the numbers of one ClusterCIDR are
	// written: a burst of Nodes must not cause as many writes of ClusterCIDRs.
	reportInterval  = time.Second
	numbersInterval = 10 * time.Second
	// outdatedTimeout is how long a status stays outdated before its holder counts as gone: several times as long as a
	// write takes, and longer than a manager adopts what another allocator has set.
	outdatedTimeout = 2 * time.Minute
)

// Reconciler assigns pod CIDRs to the Nodes of the manager's own cluster.
type Reconciler struct {
	Client    client.Client
	Allocator *nodeipam.ClusterAllocator
	// StaticServiceCIDRs are CIDRs of Services that no ServiceCIDR object has.
	StaticServiceCIDRs []netip.Prefix
	// Flags creates the ClusterCIDR of the flags; nil means that no flags are set.
	Flags *FlagsReconciler
	// NetworkingX reports on the ClusterCIDRs of node-ipam-controller, which are served too; nil means that they are
	// not.
	NetworkingX *NetworkingXReporter
	Now         func() time.Time

	// watchesServiceCIDRs reports whether the cluster has ServiceCIDR objects.
	watchesServiceCIDRs bool
	nodeFeed            *feed.Feed[nodeipam.ClusterKey]
	reportedAt          time.Time
	// statusWrittenAt is when the status of each ClusterCIDR was last written, by name.
	statusWrittenAt map[string]time.Time
}

// Reconcile does one reconcile of the cluster.
func (r *Reconciler) Reconcile(ctx context.Context, _ nodeipam.ClusterKey) (reconcile.Result, error) {
	var all v1alpha1.ClusterCIDRList
	if err := r.Client.List(ctx, &all); err != nil {
		return reconcile.Result{}, fmt.Errorf("reading ClusterCIDRs: %w", err)
	}
	var objects []nodeipam.RangeObject
	for i := range all.Items {
		if c := &all.Items[i]; nodeipam.IsLocal(c) {
			objects = append(objects, nodeipam.RangeObjectFromClusterCIDR(c))
		}
	}
	others, err := r.NetworkingX.listRangeObjects(ctx, r.Client)
	if err != nil {
		return reconcile.Result{}, err
	}
	services, err := r.listServiceCIDRs(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.Allocator.SetRangeObjects(append(objects, others...))
	r.Allocator.SetServiceCIDRs(services)
	if r.Flags.needsHolder(all.Items) {
		r.Allocator.RequestTakeover()
	}
	wait, failed := r.Allocator.Reconcile(ctx)
	var later time.Duration
	if failed == nil && r.Allocator.IsHolder() {
		later, failed = r.Flags.ensureClusterCIDR(ctx)
	}
	again, err := r.reportStatus(ctx, all.Items)
	next := resyncPeriod
	for _, w := range []time.Duration{wait, later, again} {
		if w > 0 {
			next = min(next, w)
		}
	}
	if r.Allocator.EmitEvents() {
		next = min(next, time.Second)
	}
	delayed, err := pace.SplitDelayed(errors.Join(failed, err))
	if err != nil {
		return reconcile.Result{}, err
	}
	if delayed > 0 {
		next = min(next, delayed)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// listServiceCIDRs returns the CIDRs of Services.
func (r *Reconciler) listServiceCIDRs(ctx context.Context) ([]netip.Prefix, error) {
	if !r.watchesServiceCIDRs {
		return r.StaticServiceCIDRs, nil
	}
	var all networkingv1.ServiceCIDRList
	if err := r.Client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("reading ServiceCIDRs: %w", err)
	}
	return append(nodeipam.ServiceCIDRPrefixes(all.Items), r.StaticServiceCIDRs...), nil
}

// reportStatus publishes the report in the status of ClusterCIDRs and as metrics. It returns how long until there is
// more to publish.
func (r *Reconciler) reportStatus(ctx context.Context, all []v1alpha1.ClusterCIDR) (time.Duration, error) {
	now := r.Now()
	if since := now.Sub(r.reportedAt); since < reportInterval {
		return reportInterval - since, nil
	}
	r.reportedAt = now
	found, ok := r.Allocator.BuildReport()
	if !ok {
		statuses := findOutdatedStatuses(found, all, now)
		r.NetworkingX.addUnemitted(found, statuses)
		return r.Allocator.TakeOverIfOutdated(statuses, outdatedTimeout), nil
	}
	wait := r.NetworkingX.emitEvents(found)
	var errs []error
	for i := range all {
		c := &all[i]
		usage, known := found.UsageByRange[nodeipam.RefForClusterCIDR(c)]
		if !known {
			continue
		}
		next := c.DeepCopy()
		changed, urgent := usage.ApplyStatus(next, now)
		if !changed {
			continue
		}
		if since := now.Sub(r.statusWrittenAt[c.Name]); !urgent && since < numbersInterval {
			wait = min(cmp.Or(wait, numbersInterval), numbersInterval-since)
			continue
		}
		r.statusWrittenAt[c.Name] = now
		err := r.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			wait = min(cmp.Or(wait, reportInterval), reportInterval) // the cache is behind, and no status enqueues the cluster
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("writing the status of ClusterCIDR %s: %w", c.Name, err))
		}
	}
	return wait, errors.Join(errs...)
}

// findOutdatedStatuses returns the statuses that their holder has not written since their content has changed.
func findOutdatedStatuses(found nodeipam.Report, all []v1alpha1.ClusterCIDR, now time.Time) map[string]nodeipam.StatusDifference {
	out := map[string]nodeipam.StatusDifference{}
	for i := range all {
		c := &all[i]
		usage, known := found.UsageByRange[nodeipam.RefForClusterCIDR(c)]
		if !known || usage.NodesUnread {
			continue
		}
		next := c.DeepCopy()
		usage.WithPublishedStatus(c.Status.Capacity, c.Status.Free, c.Status.Conditions).ApplyStatus(next, now)
		if d, differs := nodeipam.CompareStatuses(&c.Status, &next.Status); differs {
			out[c.Name] = d
		}
	}
	return out
}

// CheckSynced returns nil once all existing Nodes were read.
func (r *Reconciler) CheckSynced(context.Context) error {
	if !r.nodeFeed.HasSynced() {
		return errors.New("the Nodes are not read yet")
	}
	return nil
}
