package lease

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
)

// reportWriter reports on the leases that Services have: by their conditions, and by events about what is newly wrong.
type reportWriter struct {
	refusals *addressRefusals
	recorder events.EventRecorder
	schedule *schedule
	state    *state
	api      *api
	decider  *leaseDecider
}

// reportConditions sets the conditions of the leases that Services have: whether they are announced, and in use.
func (w *reportWriter) reportConditions(ctx context.Context) (changed bool, err error) {
	retained := map[netip.Addr]bool{}
	for _, o := range w.state.leases {
		retained[leaseAddress(o)] = retained[leaseAddress(o)] || o.DeletionTimestamp == nil
	}
	w.refusals.retainAddresses(w.state.namespace, retained)
	byRef := map[leaseports.ServiceRef]*leaseports.Service{}
	for i := range w.state.serviceStates {
		byRef[w.state.serviceStates[i].ServiceRef] = &w.state.serviceStates[i]
	}
	for _, o := range w.state.leases {
		if w.state.isUnmanaged(o) || o.DeletionTimestamp != nil {
			continue
		}
		announced, ask := w.decider.announcedCondition(o)
		if ask {
			if announced, err = w.askMetalLB(ctx); err != nil {
				return false, err
			}
		}
		next := o.DeepCopy()
		next.Status.Conditions = w.decider.decideConditions(o, announced, inUseCondition(o, byRef))
		if slices.Equal(next.Status.Conditions, o.Status.Conditions) {
			continue
		}
		done, err := w.api.patchConditions(ctx, next, o)
		if err != nil {
			return false, fmt.Errorf("setting the condition of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		if !done {
			continue
		}
		w.recordEventsForLease(o, announced)
		changed = true
	}
	return changed, nil
}

// askMetalLB returns that MetalLB refuses its configuration, nil if it does not report that.
func (w *reportWriter) askMetalLB(ctx context.Context) (*metav1.Condition, error) {
	why, err := metallb.DescribeRefusal(ctx, w.api.Live)
	w.schedule.requeueWithin(recheckInterval) // MetalLB reports it where no watch sees it
	if why == "" || err != nil {
		return nil, err
	}
	return newCondition(v1alpha1.AnnouncedCondition, false, v1alpha1.MetalLBRefusesReason, why), nil
}

// recordEventsForLease records events for the lease and the Services that have its ports, if something is wrong that
// its condition newly shows.
func (w *reportWriter) recordEventsForLease(o *v1alpha1.IPLease, announced *metav1.Condition) {
	if announced == nil {
		return
	}
	old, on := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition), w.state.hostStatuses[o.UID]
	switch {
	case announced.Status == metav1.ConditionFalse && (old == nil || old.Reason != announced.Reason):
		w.recordEventsForServices(o, announced, on)
	case announced.Status == metav1.ConditionTrue && on != nil && len(on.FullPorts()) > 0 && (old == nil || old.Message != announced.Message):
		full := *announced
		full.Reason = v1alpha1.PortFullReason
		w.recordEventsForServices(o, &full, on)
	}
}

// recordEventsForServices records an event for the lease, and for the Services that have its ports, that it is not
// announced. on is what hosts report about it, if they show it: if that concerns single ports, only the Services that
// have one of them get the event.
func (w *reportWriter) recordEventsForServices(o *v1alpha1.IPLease, c *metav1.Condition, on *leaseports.HostStatus) {
	w.recorder.Eventf(o, nil, corev1.EventTypeWarning, c.Reason, "Announce", "%s", c.Message)
	recorded := map[leaseports.ServiceRef]bool{}
	for _, h := range leaseports.NewLease(o).PortTable {
		if recorded[h.Service] || (on != nil && !on.ConcernsPort(h.Port)) {
			continue
		}
		recorded[h.Service] = true
		for i, s := range w.state.services {
			if w.state.serviceStates[i].ServiceRef == h.Service {
				w.recorder.Eventf(s, nil, corev1.EventTypeWarning, c.Reason, "Announce", "IPLease %s: %s", o.Name, c.Message)
			}
		}
	}
}
