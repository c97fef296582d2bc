// Package nodecidr has the Nodes of the manager's own cluster get their pod CIDRs: it feeds a site with Nodes, ClusterCIDRs
// and ServiceCIDRs, has it reconcile, and shows what it says. What is decided is in internal/nodeipam.
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
	// backstop has the site looked at now and then, whatever the watches say.
	backstop = time.Minute
	// reportEvery bounds how often what is known is gathered, numbersEvery how often the numbers of one ClusterCIDR are
	// written: a burst of Nodes must not be as many writes of ClusterCIDRs.
	reportEvery  = time.Second
	numbersEvery = 10 * time.Second
	// outdatedFor is how long a status stays wrong before its holder counts as gone: several times as long as it takes to write, and
	// longer than a manager adopts what another allocator gave.
	outdatedFor = 2 * time.Minute
)

// Reconciler gives the Nodes of the manager's own cluster their pod CIDRs.
type Reconciler struct {
	Client client.Client
	Site   *nodeipam.Site
	// Services are CIDRs of Services that no object names.
	Services []netip.Prefix
	// Flags are those that stand for a ClusterCIDR; nil: there are none.
	Flags *Flags
	// NetworkingX serves the ClusterCIDRs of node-ipam-controller too; nil: it does not.
	NetworkingX *NetworkingX
	Now         func() time.Time

	// watchesServices: the cluster has ServiceCIDRs.
	watchesServices bool
	feed            *feed.Feed[nodeipam.Key]
	reported        time.Time
	// written is when the status of each ClusterCIDR was written last, by name.
	written map[string]time.Time
}

// Reconcile brings the site forward.
func (r *Reconciler) Reconcile(ctx context.Context, _ nodeipam.Key) (reconcile.Result, error) {
	var all v1alpha1.ClusterCIDRList
	if err := r.Client.List(ctx, &all); err != nil {
		return reconcile.Result{}, fmt.Errorf("reading ClusterCIDRs: %w", err)
	}
	var objects []nodeipam.Object
	for i := range all.Items {
		if c := &all.Items[i]; nodeipam.IsLocal(c) {
			objects = append(objects, nodeipam.ObjectOf(c))
		}
	}
	others, err := r.NetworkingX.read(ctx, r.Client)
	if err != nil {
		return reconcile.Result{}, err
	}
	services, err := r.services(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.Site.SetObjects(append(objects, others...))
	r.Site.SetServices(services)
	if r.Flags.wants(all.Items) {
		r.Site.Claim()
	}
	wait, failed := r.Site.Reconcile(ctx)
	var later time.Duration
	if failed == nil && r.Site.Holds() {
		later, failed = r.Flags.ensure(ctx)
	}
	again, err := r.report(ctx, all.Items)
	next := backstop
	for _, w := range []time.Duration{wait, later, again} {
		if w > 0 {
			next = min(next, w)
		}
	}
	if r.Site.Say() {
		next = min(next, time.Second)
	}
	delayed, err := pace.Split(errors.Join(failed, err))
	if err != nil {
		return reconcile.Result{}, err
	}
	if delayed > 0 {
		next = min(next, delayed)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// services are the CIDRs of Services.
func (r *Reconciler) services(ctx context.Context) ([]netip.Prefix, error) {
	if !r.watchesServices {
		return r.Services, nil
	}
	var all networkingv1.ServiceCIDRList
	if err := r.Client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("reading ServiceCIDRs: %w", err)
	}
	return append(nodeipam.ServicesOf(all.Items), r.Services...), nil
}

// report shows what is known on the ClusterCIDRs and as metrics. It returns when there is more to show.
func (r *Reconciler) report(ctx context.Context, all []v1alpha1.ClusterCIDR) (time.Duration, error) {
	now := r.Now()
	if since := now.Sub(r.reported); since < reportEvery {
		return reportEvery - since, nil
	}
	r.reported = now
	found, speaks := r.Site.Report()
	if !speaks {
		statuses := outdated(found, all, now)
		r.NetworkingX.unsaid(found, statuses)
		return r.Site.ClaimOutdated(statuses, outdatedFor), nil
	}
	wait := r.NetworkingX.say(found)
	for i := range all {
		c := &all[i]
		usage, known := found.Ranges[nodeipam.RefOf(c)]
		if !known {
			continue
		}
		next := c.DeepCopy()
		changed, urgent := usage.Describe(next, now)
		if !changed {
			continue
		}
		if since := now.Sub(r.written[c.Name]); !urgent && since < numbersEvery {
			wait = min(cmp.Or(wait, numbersEvery), numbersEvery-since)
			continue
		}
		r.written[c.Name] = now
		err := r.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			wait = min(cmp.Or(wait, reportEvery), reportEvery) // the watch is behind, and a status does not wake the site
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("writing the status of ClusterCIDR %s: %w", c.Name, err)
		}
	}
	return wait, nil
}

// outdated are the statuses that their holder has not written since what they say has changed.
func outdated(found nodeipam.Report, all []v1alpha1.ClusterCIDR, now time.Time) map[string]nodeipam.Difference {
	out := map[string]nodeipam.Difference{}
	for i := range all {
		c := &all[i]
		usage, known := found.Ranges[nodeipam.RefOf(c)]
		if !known || usage.Blind {
			continue
		}
		next := c.DeepCopy()
		usage.Beside(c.Status.Capacity, c.Status.Free, c.Status.Conditions).Describe(next, now)
		if d, differs := nodeipam.DifferenceIn(&c.Status, &next.Status); differs {
			out[c.Name] = d
		}
	}
	return out
}

// Ready returns nil when all Nodes that exist were read.
func (r *Reconciler) Ready(context.Context) error {
	if !r.feed.HasSynced() {
		return errors.New("the Nodes are not read yet")
	}
	return nil
}
