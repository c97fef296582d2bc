package lease

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

const (
	// placementTimeout is how long MetalLB may leave a Service without an address that it has on record, until the
	// condition shows it. MetalLB takes milliseconds.
	placementTimeout = 10 * time.Second
	// leaseNotFoundDelay is how long a Service may name a lease that does not exist, until the condition shows it: both
	// may be in one file, and be created a moment after each other.
	leaseNotFoundDelay = 5 * time.Second
)

// delays decides which faults must last before a condition shows them: no host has an address, MetalLB has not assigned
// one, or a lease does not exist. Each is observed at the beginning of the reconcile, and the conditions go by that.
type delays struct {
	observations *observations
	state        *state
}

// trackMissingHosts records which addresses no host has, and since when.
func (d *delays) trackMissingHosts() {
	for uid, status := range d.state.hostStatuses {
		if !status.HasReport() {
			d.observations.awaitTimeout(observation{leaseUID: uid, withoutHost: true}, noHostTimeout)
		}
	}
}

// trackPlacement records which Services have no address from MetalLB although their condition shows that they have
// their ports, and since when.
func (d *delays) trackPlacement() {
	for i, s := range d.state.services {
		if !d.state.isPlaced(&d.state.serviceStates[i]) && isReportedSatisfied(s) {
			d.observations.awaitTimeout(observation{serviceUID: s.UID}, placementTimeout)
		}
	}
}

// trackMissingLeases records which Services name leases that do not exist, and since when.
func (d *delays) trackMissingLeases() {
	for i, s := range d.state.services {
		if d.state.hasMissingLease(&d.state.serviceStates[i]) {
			d.observations.awaitTimeout(observation{serviceUID: s.UID, leaseNotFound: true}, leaseNotFoundDelay)
		}
	}
}

// isHostOverdue reports whether no host has had the address of a lease for so long that the condition shows it.
func (d *delays) isHostOverdue(lease types.UID) bool {
	age, missing := d.observations.age(observation{leaseUID: lease, withoutHost: true})
	return missing && age >= noHostTimeout
}

// placementReason returns the reason for a Service that has its ports: that of the grant, unless MetalLB has not
// assigned the address for some time.
func (d *delays) placementReason(s *corev1.Service, service *leaseports.Service, granted leaseports.Reason) leaseports.Reason {
	age, missing := d.observations.age(observation{serviceUID: s.UID})
	if !missing || (age < placementTimeout && !isReportedNotPlaced(s)) {
		return granted
	}
	return leaseports.Reason{Reason: v1alpha1.NotPlacedReason, Message: fmt.Sprintf(
		"the Service %s, and MetalLB has not given it the address; see its events, and the condition Announced of IPLease %s", granted.Message, strings.Join(service.LeaseNames, " and "))}
}

// isAwaitingLease reports whether a Service gets the reason that its lease is not found, and has not waited long enough
// for it. A Service whose condition shows that it has its ports gets that reason at once.
func (d *delays) isAwaitingLease(s *corev1.Service, v leaseports.Reason) bool {
	if v.Reason != v1alpha1.LeaseNotFoundReason && v.Reason != v1alpha1.NotAllowedReason {
		return false
	}
	age, missing := d.observations.age(observation{serviceUID: s.UID, leaseNotFound: true})
	return missing && !isReportedSatisfied(s) && age < leaseNotFoundDelay
}
