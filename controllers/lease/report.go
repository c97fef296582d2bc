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

// report says on the leases that Services have whether they are announced, and in use.
func (l *look) report(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	is := map[netip.Addr]bool{}
	for _, o := range l.leases {
		is[addressOf(o)] = is[addressOf(o)] || o.DeletionTimestamp == nil
	}
	l.refusals.keep(l.namespace, is)
	byRef := map[leaseports.Ref]*leaseports.Service{}
	for i := range l.asking {
		byRef[l.asking[i].Ref] = &l.asking[i]
	}
	took := map[string]bool{}
	for name, p := range l.pools {
		took[name] = metallb.Took(p)
	}
	for _, o := range l.leases {
		if l.leftAlone(o) || o.DeletionTimestamp != nil {
			continue
		}
		announced, err := l.announced(ctx, o, took)
		if err != nil {
			return false, err
		}
		next := slices.Clone(o.Status.Conditions)
		if len(o.Status.Ports) == 0 && l.off(o.Status.ShownBy) == "" {
			meta.RemoveStatusCondition(&next, v1alpha1.AnnouncedCondition) // no Service has it: what was said may be over
		}
		for _, c := range []*metav1.Condition{announced, inUse(o, byRef)} {
			if c == nil {
				continue
			}
			c.ObservedGeneration, c.LastTransitionTime, c.Message = o.Generation, metav1.NewTime(l.now), text.Message(c.Message)
			if was := meta.FindStatusCondition(o.Status.Conditions, c.Type); was != nil && was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message {
				continue
			}
			meta.SetStatusCondition(&next, *c)
		}
		if slices.Equal(next, o.Status.Conditions) {
			continue
		}
		changes := o.DeepCopy()
		changes.Status.Conditions = next
		done, err := l.setConditions(ctx, changes, o)
		if err != nil {
			return false, fmt.Errorf("saying on IPLease %s/%s whether it is announced: %w", o.Namespace, o.Name, err)
		}
		if !done {
			continue
		}
		l.tellOf(o, announced)
		changed = true
	}
	return changed, nil
}

// tellOf informs those that have ports of a lease of what its condition says from now on, if something is wrong.
func (l *look) tellOf(o *v1alpha1.IPLease, announced *metav1.Condition) {
	if announced == nil {
		return
	}
	was, on := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition), l.onHosts[o.UID]
	switch {
	case announced.Status == metav1.ConditionFalse && (was == nil || was.Reason != announced.Reason):
		l.tellServices(o, announced, on)
	case announced.Status == metav1.ConditionTrue && on != nil && len(on.Full()) > 0 && (was == nil || was.Message != announced.Message):
		full := *announced
		full.Reason = v1alpha1.PortFullReason
		l.tellServices(o, &full, on)
	}
}

// tellServices tells those that have ports of a lease that it is not announced. On is what hosts say of it, if they show it: of
// single ports, those are told that have one of them.
func (l *look) tellServices(o *v1alpha1.IPLease, c *metav1.Condition, on *leaseports.OnHost) {
	l.Recorder.Eventf(o, nil, corev1.EventTypeWarning, c.Reason, "Announce", "%s", c.Message)
	told := map[leaseports.Ref]bool{}
	for _, h := range leaseports.LeaseOf(o).Table {
		if told[h.Service] || (on != nil && !on.Concerns(h.Port)) {
			continue
		}
		told[h.Service] = true
		for i, s := range l.services {
			if l.asking[i].Ref == h.Service {
				l.Recorder.Eventf(s, nil, corev1.EventTypeWarning, c.Reason, "Announce", "IPLease %s: %s", o.Name, c.Message)
			}
		}
	}
}

// announced says whether MetalLB, given the pools that it has taken, or a host has the address of a lease that a Service has; nil:
// nothing new is known.
func (l *look) announced(ctx context.Context, o *v1alpha1.IPLease, took map[string]bool) (*metav1.Condition, error) {
	if on := l.onHosts[o.UID]; on != nil {
		return announcedOn(on, l.waited(o.UID)), nil
	}
	if o.Status.ShownBy != v1alpha1.ShownByMetalLB || !l.MetalLB || len(o.Status.Ports) == 0 {
		return nil, nil //nolint:nilnil // none is an answer
	}
	refuses := func(why string) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.MetalLBRefusesReason, Message: why}
	}
	name := l.poolOf(o).Name()
	if why, _ := l.refusals.find(l.namespace, addressOf(o), l.now); why != "" {
		return refuses(why + "; correct the IPAddressPool that has the address too, or delete this lease"), nil
	}
	switch {
	case !l.isShown(o):
		return nil, nil //nolint:nilnil // it is about to be
	case took[name]:
		return &metav1.Condition{
			Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.AnnouncedReason, Message: "MetalLB has the address in IPAddressPool " + name,
		}, nil
	}
	why, err := metallb.Refusal(ctx, l.Live)
	l.wait = grants.Sooner(l.wait, askAgain) // it says so somewhere that is not watched
	if why == "" || err != nil {
		return nil, err
	}
	return refuses(why), nil
}

// announcedOn says whether a host has the address of a lease; nil: nothing new is known.
func announcedOn(on *leaseports.OnHost, waited bool) *metav1.Condition {
	v := on.Announced(waited)
	if v == (leaseports.Verdict{}) {
		return nil
	}
	c := &metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v.Reason, Message: v.Message}
	if v.Reason == v1alpha1.AnnouncedReason {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// inUse says whether a Service of a lease has a ready endpoint; nil: it never had a Service.
func inUse(o *v1alpha1.IPLease, services map[leaseports.Ref]*leaseports.Service) *metav1.Condition {
	is := leaseports.LeaseOf(o)
	if len(is.Table) == 0 && meta.FindStatusCondition(o.Status.Conditions, v1alpha1.InUseCondition) == nil {
		return nil
	}
	for _, h := range is.Table {
		if s := services[h.Service]; s != nil && s.Ready {
			return &metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.InUseReason, Message: "a Service that has the lease has a ready endpoint"}
		}
	}
	return &metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.IdleReason, Message: "no Service that has the lease has a ready endpoint"}
}
