package lease

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// leaseDecider decides what is due for each lease: whether it is held to be shown, what keeps it when it is deleted,
// and its conditions. It decides by what was read, and has no client; where only a load balancer knows the answer, it
// returns that it must be asked.
type leaseDecider struct {
	refusals *addressRefusals
	schedule *schedule
	state    *state
	decision *leaseports.Decision
	delays   *delays
}

// findLeasesToHold returns the leases that are about to be shown, and do not have our finalizer yet. Hosts show the
// leases that have ports. Once a namespace has an IPAddressPool, its other leases are in it too, before they have a
// Service: whenever a pool changes, MetalLB writes the status of every Service that it has, so one change for all of
// them is better than one for each.
func (d *leaseDecider) findLeasesToHold() []*v1alpha1.IPLease {
	hasPool := d.state.MetalLB && slices.ContainsFunc(d.state.leases, func(o *v1alpha1.IPLease) bool {
		return len(o.Status.Ports) > 0 && o.Status.ShownBy == v1alpha1.ShownByMetalLB && !d.state.isUnmanaged(o)
	})
	var out []*v1alpha1.IPLease
	for _, o := range d.state.leases {
		isForHosts := isShownByHost(o) || (o.Status.ShownBy == "" && d.state.isPoolShownByHosts(o))
		joinsPool := hasPool && !isForHosts && !d.decision.ExcludedLeases[o.Name]
		goesOnHost := d.state.Hosts && isShownByHost(o) && len(o.Status.Ports) > 0
		isHeld := controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer)
		if (joinsPool || goesOnHost) && isShowable(o) && !isHeld && !d.state.isUnmanaged(o) {
			out = append(out, o)
		}
	}
	return out
}

// findDrainingLeases returns the leases that are being deleted and have our finalizer.
func (d *leaseDecider) findDrainingLeases() []*v1alpha1.IPLease {
	var out []*v1alpha1.IPLease
	for _, o := range d.state.leases {
		isHeldByOther := o.Status.ShownBy == "" && !d.state.MetalLB // the finalizer of another manager
		isDraining := o.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer)
		if isDraining && !isHeldByOther && !d.state.isUnmanaged(o) {
			out = append(out, o)
		}
	}
	return out
}

// drainingReason returns what keeps a lease that is being deleted; the zero Reason if nothing does any more. ask
// reports whether the load balancer must be asked whether it still shows the address.
func (d *leaseDecider) drainingReason(o *v1alpha1.IPLease) (why leaseports.Reason, ask bool) {
	_, confirmed := o.Annotations[v1alpha1.ReleaseUnconfirmedAnnotation]
	off := d.state.disabledMessage(cmp.Or(o.Status.ShownBy, v1alpha1.ShownByMetalLB))
	switch {
	case confirmed:
		return leaseports.Reason{}, false
	case len(o.Status.Ports) > 0:
		return newConfirmingReason(fmt.Sprintf("Service %s still has a port of it", leaseports.NewLease(o).PortTable[0].Service)), false
	case !leaseAddress(o).IsValid():
		return leaseports.Reason{}, false
	case off != "":
		return newConfirmingReason(off + "; it cannot verify that the address is no longer announced. Set the flag"), false
	}
	return leaseports.Reason{}, true
}

func newConfirmingReason(why string) leaseports.Reason {
	return leaseports.Reason{Reason: v1alpha1.ConfirmingReason, Message: why}
}

// announcedCondition returns whether MetalLB, by the pools that it has applied, or a host has the address of a lease
// that a Service has; nil if nothing new is known. ask reports whether MetalLB must be asked whether it refuses its
// configuration.
func (d *leaseDecider) announcedCondition(o *v1alpha1.IPLease) (c *metav1.Condition, ask bool) {
	if on := d.state.hostStatuses[o.UID]; on != nil {
		return hostAnnouncedCondition(on, d.delays.isHostOverdue(o.UID)), false
	}
	if o.Status.ShownBy != v1alpha1.ShownByMetalLB || !d.state.MetalLB || len(o.Status.Ports) == 0 {
		return nil, false
	}
	why, _ := d.refusals.findRefusal(d.state.namespace, leaseAddress(o), d.schedule.now)
	name := d.state.leasePoolFor(o).Name()
	switch {
	case why != "":
		return newCondition(v1alpha1.AnnouncedCondition, false, v1alpha1.MetalLBRefusesReason, why+"; correct the IPAddressPool that has the address too, or delete this lease"), false
	case !d.state.isInLeasePool(o):
		return nil, false // it is about to be
	case metallb.IsApplied(d.state.addressPools[name]):
		return newCondition(v1alpha1.AnnouncedCondition, true, v1alpha1.AnnouncedReason, "MetalLB has the address in IPAddressPool "+name), false
	}
	return nil, true
}

// hostAnnouncedCondition returns whether a host has the address of a lease; nil if nothing new is known.
func hostAnnouncedCondition(on *leaseports.HostStatus, waited bool) *metav1.Condition {
	v := on.AnnouncedReason(waited)
	if v == (leaseports.Reason{}) {
		return nil
	}
	return newCondition(v1alpha1.AnnouncedCondition, v.Reason == v1alpha1.AnnouncedReason, v.Reason, v.Message)
}

// decideConditions returns the conditions that a lease should have. It completes announced and inUse, which are nil if
// nothing new is known.
func (d *leaseDecider) decideConditions(o *v1alpha1.IPLease, announced, inUse *metav1.Condition) []metav1.Condition {
	out := slices.Clone(o.Status.Conditions)
	if len(o.Status.Ports) == 0 && d.state.disabledMessage(o.Status.ShownBy) == "" {
		meta.RemoveStatusCondition(&out, v1alpha1.AnnouncedCondition) // no Service has it: the condition may be out of date
	}
	for _, c := range []*metav1.Condition{announced, inUse} {
		if c == nil {
			continue
		}
		c.ObservedGeneration, c.LastTransitionTime, c.Message = o.Generation, metav1.NewTime(d.schedule.now), text.SanitizeMessage(c.Message)
		if !isSameCondition(meta.FindStatusCondition(o.Status.Conditions, c.Type), c) {
			meta.SetStatusCondition(&out, *c)
		}
	}
	return out
}

// inUseCondition returns whether a Service of a lease has a ready endpoint; nil if the lease never had a Service.
func inUseCondition(o *v1alpha1.IPLease, services map[leaseports.ServiceRef]*leaseports.Service) *metav1.Condition {
	state := leaseports.NewLease(o)
	if len(state.PortTable) == 0 && meta.FindStatusCondition(o.Status.Conditions, v1alpha1.InUseCondition) == nil {
		return nil
	}
	for _, h := range state.PortTable {
		if s := services[h.Service]; s != nil && s.HasReadyEndpoint {
			return newCondition(v1alpha1.InUseCondition, true, v1alpha1.InUseReason, "a Service that has the lease has a ready endpoint")
		}
	}
	return newCondition(v1alpha1.InUseCondition, false, v1alpha1.IdleReason, "no Service that has the lease has a ready endpoint")
}
