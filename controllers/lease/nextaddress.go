package lease

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// updateAddressInUse clears AddressInUse for the leases about which hosts report something else by now: the condition
// of the lease does not show that yet.
func (l *scope) updateAddressInUse() {
	for i := range l.leaseStates {
		if on := l.hostStatuses[l.leaseStates[i].UID]; on != nil {
			announced := on.AnnouncedReason(false)
			l.leaseStates[i].AddressInUse = l.leaseStates[i].AddressInUse && (announced == leaseports.Reason{} || announced.Reason == v1alpha1.AddressInUseReason)
		}
	}
}

// replaceConflictingLeases gives up leases that were created for Services and for whose addresses a foreign machine
// answers (P7). The address is recorded on the Service first, or a manager that dies in between would start from the
// beginning. Then the lease is deleted, as it was read. Once it is released, it is created again (PlanLeases). The
// allocator keeps the address in cooling.
func (l *scope) replaceConflictingLeases(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	for i := range l.leaseStates {
		state := &l.leaseStates[i]
		o := l.leasesByName[state.Name]
		if l.isUnmanaged(o) {
			continue
		}
		for j, s := range l.services {
			switch next := leaseports.DecideNextAddress(state, &l.serviceStates[j], l.MaxAddressAttempts); {
			case next.RecordTried:
				noted := s.DeepCopy()
				leaseports.AddTriedAddress(noted, state.Address)
				if err := l.Client.Patch(ctx, noted, guard.NewOptimisticPatch(s)); err != nil {
					return false, fmt.Errorf("noting on Service %s/%s that %s is in use: %w", s.Namespace, s.Name, state.Address, err)
				}
				return true, nil // the next reconcile reads it
			case next.ReplaceLease:
				if err := l.deleteLease(ctx, state); err != nil {
					return false, err
				}
				l.Recorder.Eventf(s, nil, corev1.EventTypeNormal, "NextAddress", "Lease", "somebody else answers for %s, so IPLease %s is made anew, with another address", state.Address, state.Name)
				changed = true
			}
		}
	}
	return changed, nil
}

// clearTriedAddresses removes the annotation with the tried addresses from Services: once they are shown with what they
// have, and where no lease is created for them any more.
func (l *scope) clearTriedAddresses(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		_, noted := s.Annotations[v1alpha1.TriedAddressesAnnotation]
		if !noted || !l.isResponsibleFor(s) || l.isHeldByPause(s) || (l.serviceStates[i].LoadBalancerClass != "" && !l.isFullyShown(d, s, &l.serviceStates[i])) {
			continue
		}
		next := s.DeepCopy()
		delete(next.Annotations, v1alpha1.TriedAddressesAnnotation)
		if err := l.Client.Patch(ctx, next, guard.NewOptimisticPatch(s)); err != nil {
			return false, fmt.Errorf("taking off Service %s/%s which addresses were tried: %w", s.Namespace, s.Name, err)
		}
		changed = l.recordServiceWrite(s)
	}
	return changed, nil
}

// isFullyShown reports whether a Service is shown with the addresses of all of its leases, and they are announced.
func (l *scope) isFullyShown(d *leaseports.Decision, s *corev1.Service, state *leaseports.Service) bool {
	if granted, recorded := l.grantState(d, state); !granted || !recorded {
		return false
	}
	for _, name := range state.LeaseNames {
		o := l.leasesByName[name]
		if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.AnnouncedCondition) || !leaseports.ShowsAddress(s, leaseAddress(o)) {
			return false
		}
	}
	return true
}
