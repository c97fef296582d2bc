package lease

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// atRest is how long the allocator of a world keeps an address in cooling: shorter than an hour, so that a story sees
// the end of it.
const atRest = time.Minute

// inUseByOthers makes a foreign machine answer for an address that no host has, for a while; 0 means for good.
func inUseByOthers(address string, howLong time.Duration) action {
	return sim.NewAction("a foreign device has "+address, func(w *world) {
		a := netip.MustParseAddr(address)
		if w.hasOtherResponder(a, nil) || w.foreign[a] {
			return
		}
		w.foreign[a] = true
		if howLong > 0 {
			w.DelayStep(0, howLong, func() {
				w.Tracef("no foreign machine has %s any more", a)
				delete(w.foreign, a)
				w.LastChange = time.Now()
			})
		}
	})
}

// inUseStory is a story that seldom happens by chance: of two addresses one is in use, or both, for good.
func inUseStory(all bool) []action {
	script := []action{inUseByOthers(poolAddresses["c"], 0), endpoints("h0"), newServiceOnHosts(ns, "h0", "", []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}})}
	if all {
		script = append([]action{inUseByOthers(poolAddresses["d"], 0)}, script...)
	}
	return script
}

// quarantineAddress keeps an address from being granted for a while.
func (w *world) quarantineAddress(address string) {
	w.restingUntil[address] = time.Now().Add(atRest)
	w.DelayStep(0, atRest, func() { w.LastChange = time.Now() })
}

// checkReplaced checks the deletion of a lease while a Service has a port of it: a foreign machine answers for its
// address, and that is on record (P7).
func (w *world) checkReplaced(l *v1alpha1.IPLease, s *corev1.Service) {
	if s == nil || !slices.Contains(leaseports.NewService(s, ns).TriedAddresses, leaseAddress(l)) {
		w.Failf("P7: lease %s is deleted, and no Service says that %s was tried", l.Name, l.Status.Address)
	}
}

// examineInUse checks a lease for whose address a foreign machine answers, at rest: its condition shows that, and it
// stays because a user created it, or because its Service has had its attempts.
func (w *world) examineInUse(o *v1alpha1.IPLease, asking []leaseports.Service, most int) {
	lease := leaseports.NewLease(o)
	if !lease.AddressInUse {
		w.Failf("lease %s does not report that a foreign machine answers for %s", o.Name, o.Status.Address)
	}
	for i := range asking {
		if next := leaseports.DecideNextAddress(&lease, &asking[i], most); next.RecordTried || next.ReplaceLease {
			w.Failf("lease %s is to be made anew: %+v", o.Name, next)
		}
	}
}
