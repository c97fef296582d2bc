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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// report says on the leases that Services have whether they are announced, and in use.
func (l *look) report(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	l.refusals.keep(l.namespace, func(a netip.Addr) bool {
		return slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool { return addressOf(o) == a && o.DeletionTimestamp == nil })
	})
	for _, o := range l.leases {
		if l.leftAlone(o) || o.DeletionTimestamp != nil {
			continue
		}
		next := o.DeepCopy()
		announced, err := l.announced(ctx, o)
		if err != nil {
			return false, err
		}
		for _, c := range []*metav1.Condition{announced, l.inUse(o)} {
			if c == nil {
				continue
			}
			c.ObservedGeneration, c.LastTransitionTime, c.Message = o.Generation, metav1.NewTime(l.now), text.Message(c.Message)
			if was := meta.FindStatusCondition(o.Status.Conditions, c.Type); was != nil && was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message {
				continue
			}
			meta.SetStatusCondition(&next.Status.Conditions, *c)
		}
		if len(next.Status.Conditions) == len(o.Status.Conditions) && slices.Equal(next.Status.Conditions, o.Status.Conditions) {
			continue
		}
		if err := l.Client.Status().Patch(ctx, next, guard.SinceRead(o)); err != nil {
			return false, fmt.Errorf("saying on IPLease %s/%s whether it is announced: %w", o.Namespace, o.Name, err)
		}
		if was := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition); announced != nil && announced.Status == metav1.ConditionFalse && (was == nil || was.Reason != announced.Reason) {
			l.tellServices(o, announced)
		}
		changed = true
	}
	return changed, nil
}

// tellServices tells those that have ports of a lease that it is not announced.
func (l *look) tellServices(o *v1alpha1.IPLease, c *metav1.Condition) {
	l.Recorder.Eventf(o, nil, corev1.EventTypeWarning, c.Reason, "Announce", "%s", c.Message)
	told := map[leaseports.Ref]bool{}
	for _, h := range leaseports.LeaseOf(o).Table {
		if told[h.Service] {
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

// announced says whether MetalLB has the address of a lease that a Service has; nil: nothing new is known.
func (l *look) announced(ctx context.Context, o *v1alpha1.IPLease) (*metav1.Condition, error) {
	if o.Status.ShownBy != v1alpha1.ShownByMetalLB || len(o.Status.Ports) == 0 {
		return nil, nil //nolint:nilnil // none is an answer
	}
	refuses := func(why string) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.MetalLBRefusesReason, Message: why}
	}
	name := l.poolOf(o).Name()
	if why, _ := l.refusals.find(l.namespace, addressOf(o), l.now); why != "" {
		return refuses(why + "; correct the IPAddressPool that has the address too, or delete this lease"), nil
	}
	p := l.pools[name]
	switch {
	case !metallb.HasAddress(p, addressOf(o)):
		return nil, nil //nolint:nilnil // it is about to be
	case metallb.Took(p):
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

// inUse says whether a Service of a lease has a ready endpoint; nil: it never had a Service.
func (l *look) inUse(o *v1alpha1.IPLease) *metav1.Condition {
	is := leaseports.LeaseOf(o)
	if len(is.Table) == 0 && meta.FindStatusCondition(o.Status.Conditions, v1alpha1.InUseCondition) == nil {
		return nil
	}
	for _, h := range is.Table {
		for i := range l.asking {
			if s := &l.asking[i]; s.Ref == h.Service && s.Ready {
				return &metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.InUseReason, Message: "a Service that has the lease has a ready endpoint"}
			}
		}
	}
	return &metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.IdleReason, Message: "no Service that has the lease has a ready endpoint"}
}
