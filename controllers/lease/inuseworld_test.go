package lease

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// atRest is how long the allocator of a world has an address rest: shorter than an hour, so that a story sees the end of it.
const atRest = time.Minute

// inUseByOthers has somebody foreign answer for an address that no host has, for a while; 0: for good.
func inUseByOthers(address string, howLong time.Duration) action {
	return action{"somebody foreign has " + address, func(w *world) {
		a := netip.MustParseAddr(address)
		if w.isAnswered(a, nil) || w.foreign[a] {
			return
		}
		w.foreign[a] = true
		if howLong > 0 {
			w.After(0, howLong, func() {
				w.Notef("nobody foreign has %s any more", a)
				delete(w.foreign, a)
				w.lastNews = time.Now()
			})
		}
	}}
}

// attempts is a story that chance seldom tells: of two addresses one is in use, or both, for good.
func attempts(all bool) []action {
	script := []action{inUseByOthers(ofPool["c"], 0), endpoints("h0"), newServiceOnHosts(ns, "h0", "", []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}})}
	if all {
		script = append([]action{inUseByOthers(ofPool["d"], 0)}, script...)
	}
	return script
}

// rest keeps an address from everybody for a while.
func (w *world) rest(address string) {
	w.rests[address] = time.Now().Add(atRest)
	w.After(0, atRest, func() { w.lastNews = time.Now() })
}

// checkReplaced checks the end of a lease that a Service has a port of: somebody foreign answers for its address, and that is on
// record (P7).
func (w *world) checkReplaced(l *v1alpha1.IPLease, s *corev1.Service) {
	if s == nil || !slices.Contains(leaseports.ServiceOf(s, ns).Tried, addressOf(l)) {
		w.Wrongf("P7: lease %s is deleted, and no Service says that %s was tried", l.Name, l.Status.Address)
	}
}

// examineInUse checks a lease for whose address somebody foreign answers, at rest: it says so, and stays since a person made it, or
// since its Service has had its attempts.
func (w *world) examineInUse(o *v1alpha1.IPLease, asking []leaseports.Service, most int) {
	is := leaseports.LeaseOf(o)
	if !is.UsedByOthers {
		w.Wrongf("lease %s does not say that somebody else answers for %s", o.Name, o.Status.Address)
	}
	for i := range asking {
		if next := leaseports.NextAddress(&is, &asking[i], most); next.Note || next.Replace {
			w.Wrongf("lease %s is to be made anew: %+v", o.Name, next)
		}
	}
}
