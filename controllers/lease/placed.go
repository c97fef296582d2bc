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

// notPlacedAfter is for how long MetalLB may leave a Service without an address that it has on record, until that is said. It
// takes milliseconds.
const notPlacedAfter = 10 * time.Second

// awaitMetalLB notes which Services were told that they have their ports, and have no address of MetalLB, and since when.
func (l *look) awaitMetalLB() {
	for i, s := range l.services {
		if l.isPlaced(&l.asking[i]) || !satisfied(s) {
			continue
		}
		at := sight{service: s.UID}
		since, before := l.before[at]
		if !before {
			since = l.now
		}
		if l.seen[at] = since; l.now.Sub(since) < notPlacedAfter {
			l.wait = grants.Sooner(l.wait, notPlacedAfter-l.now.Sub(since))
		}
	}
}

// isPlaced reports whether the status of a Service has the addresses of all of its leases, or whether that is not for MetalLB to
// bring about.
func (l *look) isPlaced(is *leaseports.Service) bool {
	return !l.MetalLB || is.By != v1alpha1.ShownByMetalLB || !slices.ContainsFunc(is.Leases, func(name string) bool {
		o := l.byName[name]
		return o == nil || !slices.Contains(is.Given, addressOf(o))
	})
}

// placed is what a Service is told that has its ports: that it has, unless MetalLB has not given it the address for some time.
func (l *look) placed(s *corev1.Service, is *leaseports.Service, granted leaseports.Verdict) leaseports.Verdict {
	since, waits := l.seen[sight{service: s.UID}]
	if !waits || (l.now.Sub(since) < notPlacedAfter && !notPlaced(s)) {
		return granted
	}
	return leaseports.Verdict{Reason: v1alpha1.NotPlacedReason, Message: fmt.Sprintf(
		"the Service %s, and MetalLB has not given it the address; see its events, and the condition Announced of IPLease %s", granted.Message, strings.Join(is.Leases, " and "))}
}

// notPlaced reports whether a Service was told that MetalLB has not given it its address.
func notPlaced(s *corev1.Service) bool {
	c := conditionOf(s)
	return c != nil && c.Reason == v1alpha1.NotPlacedReason
}
