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

// heedHosts notes of which leases hosts say something else by now than that their address is in use: their condition does not
// say so yet.
func (l *look) heedHosts() {
	for i := range l.known {
		if on := l.onHosts[l.known[i].UID]; on != nil {
			says := on.Announced(false)
			l.known[i].UsedByOthers = l.known[i].UsedByOthers && (says == leaseports.Verdict{} || says.Reason == v1alpha1.AddressInUseReason)
		}
	}
}

// nextAddress gives up leases that were made for Services, and for whose addresses somebody else answers (P7): the address is
// noted on the Service first, or a manager that dies in between would begin again. Then the lease is deleted, as it was read;
// what was let go of is made anew (Make). The allocator has the address rest.
func (l *look) nextAddress(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	for i := range l.known {
		is := &l.known[i]
		o := l.byName[is.Name]
		if l.leftAlone(o) {
			continue
		}
		for j, s := range l.services {
			switch next := leaseports.NextAddress(is, &l.asking[j], l.AddressAttempts); {
			case next.Note:
				noted := s.DeepCopy()
				leaseports.Tries(noted, is.Address)
				if err := l.Client.Patch(ctx, noted, guard.SinceRead(s)); err != nil {
					return false, fmt.Errorf("noting on Service %s/%s that %s is in use: %w", s.Namespace, s.Name, is.Address, err)
				}
				return true, nil // the next look sees it
			case next.Replace:
				if err := l.remove(ctx, is); err != nil {
					return false, err
				}
				l.Recorder.Eventf(s, nil, corev1.EventTypeNormal, "NextAddress", "Lease", "somebody else answers for %s, so IPLease %s is made anew, with another address", is.Address, is.Name)
				changed = true
			}
		}
	}
	return changed, nil
}

// forgetTried takes off Services which addresses were tried for them: once they are shown with what they have, and where no
// lease is made for them any more.
func (l *look) forgetTried(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		_, noted := s.Annotations[v1alpha1.TriedAddressesAnnotation]
		if !noted || !l.mine(s) || l.heldByPause(s) || (l.asking[i].Class != "" && !l.allShown(d, s, &l.asking[i])) {
			continue
		}
		next := s.DeepCopy()
		delete(next.Annotations, v1alpha1.TriedAddressesAnnotation)
		if err := l.Client.Patch(ctx, next, guard.SinceRead(s)); err != nil {
			return false, fmt.Errorf("taking off Service %s/%s which addresses were tried: %w", s.Namespace, s.Name, err)
		}
		changed = l.changes(s)
	}
	return changed, nil
}

// allShown reports whether a Service is shown with the addresses of all of its leases, and they are announced.
func (l *look) allShown(d *leaseports.Decision, s *corev1.Service, is *leaseports.Service) bool {
	if granted, recorded := l.granted(d, is); !granted || !recorded {
		return false
	}
	for _, name := range is.Leases {
		o := l.byName[name]
		if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.AnnouncedCondition) || !leaseports.Shows(s, addressOf(o)) {
			return false
		}
	}
	return true
}
