package lease

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// unfoundAfter is for how long a Service may name a lease that is not there, until that is said: both may be of one file, and
// come a moment after each other.
const unfoundAfter = 5 * time.Second

// awaitLeases notes which Services name leases that they do not find, and since when.
func (l *look) awaitLeases() {
	for i, s := range l.services {
		if !l.findsNone(&l.asking[i]) {
			continue
		}
		at := sight{service: s.UID, unfound: true}
		since, before := l.before[at]
		if !before {
			since = l.now
		}
		if l.seen[at] = since; l.now.Sub(since) < unfoundAfter {
			l.wait = grants.Sooner(l.wait, unfoundAfter-l.now.Sub(since))
		}
	}
}

// findsNone reports whether a lease that a Service names is not there, or, for one of another namespace, not for it: to that one
// both are the same, and it learns from no delay which it is.
func (l *look) findsNone(is *leaseports.Service) bool {
	return slices.ContainsFunc(is.Leases, func(name string) bool {
		o := l.byName[name]
		if o == nil || is.Namespace == "" {
			return o == nil
		}
		lease := leaseports.LeaseOf(o)
		return !lease.Allows(is)
	})
}

// awaited reports whether a verdict on a Service is that it does not find its lease, and it has not looked for that long. One that
// was told that it has its ports is told at once that it has not.
func (l *look) awaited(s *corev1.Service, v leaseports.Verdict) bool {
	if v.Reason != v1alpha1.LeaseNotFoundReason && v.Reason != v1alpha1.NotAllowedReason {
		return false
	}
	since, unfound := l.seen[sight{service: s.UID, unfound: true}]
	return unfound && !satisfied(s) && l.now.Sub(since) < unfoundAfter
}
