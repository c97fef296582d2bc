package lease

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// placementTimeout is how long MetalLB may leave a Service without an address that it has on record, until the
// condition shows it. MetalLB takes milliseconds.
const placementTimeout = 10 * time.Second

// trackPlacement records which Services have no address from MetalLB although their condition shows that they have
// their ports, and since when.
func (l *scope) trackPlacement() {
	for i, s := range l.services {
		if l.isPlaced(&l.serviceStates[i]) || !isReportedSatisfied(s) {
			continue
		}
		at := observation{serviceUID: s.UID}
		since, before := l.earlierObservations[at]
		if !before {
			since = l.now
		}
		if l.observations[at] = since; l.now.Sub(since) < placementTimeout {
			l.requeueAfter = grants.MinWait(l.requeueAfter, placementTimeout-l.now.Sub(since))
		}
	}
}

// isPlaced reports whether the status of a Service has the addresses of all of its leases, or whether MetalLB is not
// responsible for that.
func (l *scope) isPlaced(state *leaseports.Service) bool {
	return !l.MetalLB || state.ShownBy != v1alpha1.ShownByMetalLB || !slices.ContainsFunc(state.LeaseNames, func(name string) bool {
		o := l.leasesByName[name]
		return o == nil || !slices.Contains(state.StatusAddresses, leaseAddress(o))
	})
}

// placementReason returns the reason for a Service that has its ports: that of the grant, unless MetalLB has not
// assigned the address for some time.
func (l *scope) placementReason(s *corev1.Service, state *leaseports.Service, granted leaseports.Reason) leaseports.Reason {
	since, waits := l.observations[observation{serviceUID: s.UID}]
	if !waits || (l.now.Sub(since) < placementTimeout && !isReportedNotPlaced(s)) {
		return granted
	}
	return leaseports.Reason{Reason: v1alpha1.NotPlacedReason, Message: fmt.Sprintf(
		"the Service %s, and MetalLB has not given it the address; see its events, and the condition Announced of IPLease %s", granted.Message, strings.Join(state.LeaseNames, " and "))}
}

// isReportedNotPlaced reports whether the condition of a Service shows that MetalLB has not assigned its address.
func isReportedNotPlaced(s *corev1.Service) bool {
	c := leaseCondition(s)
	return c != nil && c.Reason == v1alpha1.NotPlacedReason
}
