package lease

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// observation is a state that two live reads must show: no Service is shown behind a port of a lease, or behind any
// port; or a state that must last: no host has its address, MetalLB has not assigned an address to a Service, or a
// Service does not find its lease.
type observation struct {
	leaseUID types.UID
	port     leaseports.Port
	// formerService is the Service that had the port; if it is empty, the address itself is released.
	formerService leaseports.ServiceRef
	// withoutHost reports whether no host has the address.
	withoutHost bool
	// serviceUID is the Service that has no address from MetalLB, or, if leaseNotFound is set, no lease that it names.
	serviceUID    types.UID
	leaseNotFound bool
}

// observations has what one reconcile observes, each with the time of the first of the consecutive reconciles that have
// observed it. What a reconcile does not observe starts again: it may have ended unobserved, as when a Service requests
// a port for a moment.
type observations struct {
	// earlier were made before this reconcile; current are made by it.
	earlier, current balancer.FirstSeen[observation]
	// checkedLeases are the leases for which this reconcile has checked whether they are still shown.
	checkedLeases map[types.UID]bool
	clock         func() time.Time
	schedule      *schedule
}

// confirmedTwice reports whether a live read has shown something now and once before, some time ago. Otherwise the
// namespace is requeued.
func (ob *observations) confirmedTwice(o observation) bool {
	wait := ob.continueFrom(o).Confirm(o, ob.schedule.now, ob.clock()) // the reconcile began before the read, which has ended
	ob.schedule.requeueWithin(wait)
	return wait <= 0
}

// awaitTimeout records something that counts once it has lasted for timeout. The namespace is requeued then.
func (ob *observations) awaitTimeout(o observation, timeout time.Duration) {
	since := ob.continueFrom(o).Record(o, ob.schedule.now)
	ob.schedule.requeueWithin(timeout - ob.schedule.now.Sub(since))
}

// continueFrom returns the observations of this reconcile, with what earlier ones have recorded of o.
func (ob *observations) continueFrom(o observation) *balancer.FirstSeen[observation] {
	if since, before := ob.earlier[o]; before {
		ob.current.Record(o, since)
	}
	return &ob.current
}

// age returns how long something has been observed; made reports whether this reconcile observes it.
func (ob *observations) age(o observation) (age time.Duration, made bool) {
	since, made := ob.current[o]
	return ob.schedule.now.Sub(since), made
}

// keepUnchecked keeps the earlier observations that the addresses of leases are released, if this reconcile has not
// checked them, as an earlier step has changed something. A lease that is being deleted does not get back what it has
// lost.
func (ob *observations) keepUnchecked(leases []*v1alpha1.IPLease) {
	for o, since := range ob.earlier {
		_, again := ob.current[o]
		ofRelease := o.formerService == (leaseports.ServiceRef{}) && !o.withoutHost
		if ofRelease && !again && slices.ContainsFunc(leases, func(l *v1alpha1.IPLease) bool { return l.UID == o.leaseUID && !ob.checkedLeases[l.UID] }) {
			ob.current.Record(o, since)
		}
	}
}
