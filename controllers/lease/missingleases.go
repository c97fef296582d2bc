package lease

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// leaseNotFoundDelay is how long a Service may name a lease that does not exist, until the condition shows it: both may
// be in one file, and be created a moment after each other.
const leaseNotFoundDelay = 5 * time.Second

// trackMissingLeases records which Services name leases that do not exist, and since when.
func (l *scope) trackMissingLeases() {
	for i, s := range l.services {
		if !l.hasMissingLease(&l.serviceStates[i]) {
			continue
		}
		at := observation{serviceUID: s.UID, leaseNotFound: true}
		since, before := l.earlierObservations[at]
		if !before {
			since = l.now
		}
		if l.observations[at] = since; l.now.Sub(since) < leaseNotFoundDelay {
			l.requeueAfter = grants.MinWait(l.requeueAfter, leaseNotFoundDelay-l.now.Sub(since))
		}
	}
}

// hasMissingLease reports whether a lease that a Service names does not exist, or, for a Service of another namespace,
// does not allow it: that Service cannot distinguish the two, not even by a delay.
func (l *scope) hasMissingLease(state *leaseports.Service) bool {
	return slices.ContainsFunc(state.LeaseNames, func(name string) bool {
		o := l.leasesByName[name]
		if o == nil || state.Namespace == "" {
			return o == nil
		}
		lease := leaseports.NewLease(o)
		return !lease.AllowsService(state)
	})
}

// isAwaitingLease reports whether a Service gets the reason that its lease is not found, and has not waited long enough
// for it. A Service whose condition shows that it has its ports gets that reason at once.
func (l *scope) isAwaitingLease(s *corev1.Service, v leaseports.Reason) bool {
	if v.Reason != v1alpha1.LeaseNotFoundReason && v.Reason != v1alpha1.NotAllowedReason {
		return false
	}
	since, unfound := l.observations[observation{serviceUID: s.UID, leaseNotFound: true}]
	return unfound && !isReportedSatisfied(s) && l.now.Sub(since) < leaseNotFoundDelay
}
