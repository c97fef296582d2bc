package lease

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// reportConditions sets the conditions of the leases that Services have: whether they are announced, and in use.
func (l *scope) reportConditions(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	retained := map[netip.Addr]bool{}
	for _, o := range l.leases {
		retained[leaseAddress(o)] = retained[leaseAddress(o)] || o.DeletionTimestamp == nil
	}
	l.refusals.retainAddresses(l.namespace, retained)
	byRef := map[leaseports.ServiceRef]*leaseports.Service{}
	for i := range l.serviceStates {
		byRef[l.serviceStates[i].ServiceRef] = &l.serviceStates[i]
	}
	took := map[string]bool{}
	for name, p := range l.addressPools {
		took[name] = metallb.IsApplied(p)
	}
	for _, o := range l.leases {
		if l.isUnmanaged(o) || o.DeletionTimestamp != nil {
			continue
		}
		announced, err := l.announcedCondition(ctx, o, took)
		if err != nil {
			return false, err
		}
		next := slices.Clone(o.Status.Conditions)
		if len(o.Status.Ports) == 0 && l.disabledMessage(o.Status.ShownBy) == "" {
			meta.RemoveStatusCondition(&next, v1alpha1.AnnouncedCondition) // no Service has it: the condition may be out of date
		}
		for _, c := range []*metav1.Condition{announced, inUseCondition(o, byRef)} {
			if c == nil {
				continue
			}
			c.ObservedGeneration, c.LastTransitionTime, c.Message = o.Generation, metav1.NewTime(l.now), text.SanitizeMessage(c.Message)
			if old := meta.FindStatusCondition(o.Status.Conditions, c.Type); old != nil && old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
				continue
			}
			meta.SetStatusCondition(&next, *c)
		}
		if slices.Equal(next, o.Status.Conditions) {
			continue
		}
		changes := o.DeepCopy()
		changes.Status.Conditions = next
		done, err := l.patchConditions(ctx, changes, o)
		if err != nil {
			return false, fmt.Errorf("saying on IPLease %s/%s whether it is announced: %w", o.Namespace, o.Name, err)
		}
		if !done {
			continue
		}
		l.recordEventsForLease(o, announced)
		changed = true
	}
	return changed, nil
}

// recordEventsForLease records events for the lease and the Services that have its ports, if something is wrong that
// its condition newly shows.
func (l *scope) recordEventsForLease(o *v1alpha1.IPLease, announced *metav1.Condition) {
	if announced == nil {
		return
	}
	old, on := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition), l.hostStatuses[o.UID]
	switch {
	case announced.Status == metav1.ConditionFalse && (old == nil || old.Reason != announced.Reason):
		l.recordEventsForServices(o, announced, on)
	case announced.Status == metav1.ConditionTrue && on != nil && len(on.FullPorts()) > 0 && (old == nil || old.Message != announced.Message):
		full := *announced
		full.Reason = v1alpha1.PortFullReason
		l.recordEventsForServices(o, &full, on)
	}
}

// recordEventsForServices records an event for the lease, and for the Services that have its ports, that it is not
// announced. on is what hosts report about it, if they show it: if that concerns single ports, only the Services that
// have one of them get the event.
func (l *scope) recordEventsForServices(o *v1alpha1.IPLease, c *metav1.Condition, on *leaseports.HostStatus) {
	l.Recorder.Eventf(o, nil, corev1.EventTypeWarning, c.Reason, "Announce", "%s", c.Message)
	recorded := map[leaseports.ServiceRef]bool{}
	for _, h := range leaseports.NewLease(o).PortTable {
		if recorded[h.Service] || (on != nil && !on.ConcernsPort(h.Port)) {
			continue
		}
		recorded[h.Service] = true
		for i, s := range l.services {
			if l.serviceStates[i].ServiceRef == h.Service {
				l.Recorder.Eventf(s, nil, corev1.EventTypeWarning, c.Reason, "Announce", "IPLease %s: %s", o.Name, c.Message)
			}
		}
	}
}

// announcedCondition returns whether MetalLB, by the pools that it has applied, or a host has the address of a lease
// that a Service has; nil if nothing new is known.
func (l *scope) announcedCondition(ctx context.Context, o *v1alpha1.IPLease, took map[string]bool) (*metav1.Condition, error) {
	if on := l.hostStatuses[o.UID]; on != nil {
		return hostAnnouncedCondition(on, l.isHostOverdue(o.UID)), nil
	}
	if o.Status.ShownBy != v1alpha1.ShownByMetalLB || !l.MetalLB || len(o.Status.Ports) == 0 {
		return nil, nil //nolint:nilnil // none is an answer
	}
	refuses := func(why string) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.MetalLBRefusesReason, Message: why}
	}
	name := l.leasePoolFor(o).Name()
	if why, _ := l.refusals.findRefusal(l.namespace, leaseAddress(o), l.now); why != "" {
		return refuses(why + "; correct the IPAddressPool that has the address too, or delete this lease"), nil
	}
	switch {
	case !l.isInLeasePool(o):
		return nil, nil //nolint:nilnil // it is about to be
	case took[name]:
		return &metav1.Condition{
			Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.AnnouncedReason, Message: "MetalLB has the address in IPAddressPool " + name,
		}, nil
	}
	why, err := metallb.DescribeRefusal(ctx, l.Live)
	l.requeueAfter = grants.MinWait(l.requeueAfter, recheckInterval) // MetalLB reports it where no watch sees it
	if why == "" || err != nil {
		return nil, err
	}
	return refuses(why), nil
}

// hostAnnouncedCondition returns whether a host has the address of a lease; nil if nothing new is known.
func hostAnnouncedCondition(on *leaseports.HostStatus, waited bool) *metav1.Condition {
	v := on.AnnouncedReason(waited)
	if v == (leaseports.Reason{}) {
		return nil
	}
	c := &metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v.Reason, Message: v.Message}
	if v.Reason == v1alpha1.AnnouncedReason {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// inUseCondition returns whether a Service of a lease has a ready endpoint; nil if the lease never had a Service.
func inUseCondition(o *v1alpha1.IPLease, services map[leaseports.ServiceRef]*leaseports.Service) *metav1.Condition {
	state := leaseports.NewLease(o)
	if len(state.PortTable) == 0 && meta.FindStatusCondition(o.Status.Conditions, v1alpha1.InUseCondition) == nil {
		return nil
	}
	for _, h := range state.PortTable {
		if s := services[h.Service]; s != nil && s.HasReadyEndpoint {
			return &metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.InUseReason, Message: "a Service that has the lease has a ready endpoint"}
		}
	}
	return &metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.IdleReason, Message: "no Service that has the lease has a ready endpoint"}
}
