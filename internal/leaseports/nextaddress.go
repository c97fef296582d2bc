package leaseports

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// NextAddressStep is the next step for a lease whose address a foreign machine answers for (P7). The zero value is no
// step.
type NextAddressStep struct {
	// RecordTried reports whether the address must be recorded on the Service, before anything else; ReplaceLease
	// reports whether it is recorded, so that the lease can be deleted and created again.
	RecordTried, ReplaceLease bool
	// ExhaustedReason is the condition of a Service that has no attempts left.
	ExhaustedReason Reason
}

// DecideNextAddress returns the next step for a lease and the Service that it was created for, which gets no more than most
// addresses, one after another. A lease that a user created, whose address a Service requests, or that a Service is
// published with stays as it is.
func DecideNextAddress(l *Lease, s *Service, most int) NextAddressStep {
	owned := l.MadeForServices && l.OnlyService == s.Name && s.Namespace == "" && s.LoadBalancerClass != "" && slices.Contains(s.LeaseNames, l.Name)
	known := slices.Contains(s.PublishedAddresses, l.Address) // clients use it: a user decides
	if !owned || !l.AddressInUse || known || l.Deleting || !l.Address.IsValid() || s.NotServedMessage != "" || s.Deleting {
		return NextAddressStep{}
	}
	var tried []string // of the same family: a lease of the other family has attempts of its own
	for _, a := range s.TriedAddresses {
		if addressFamily(a) == addressFamily(l.Address) {
			tried = append(tried, a.String())
		}
	}
	switch {
	case !slices.Contains(s.TriedAddresses, l.Address):
		return NextAddressStep{RecordTried: true}
	case len(tried) < most:
		return NextAddressStep{ReplaceLease: true}
	}
	return NextAddressStep{ExhaustedReason: Reason{v1alpha1.AddressAttemptsExhaustedReason, fmt.Sprintf(
		"exhausted all IP allocation attempts: another machine answers for each of %s; remove %s from the machine that has it, or free another one and remove the annotation %s, to try again",
		strings.Join(tried, ", "), l.Address, v1alpha1.TriedAddressesAnnotation)}}
}

// SetExhaustedReasons sets the reason of the Services that have no attempts left. They keep their ports: their lease
// stays, and serves them once no foreign machine answers for its address any more.
func (d *Decision) SetExhaustedReasons(leases []Lease, services []Service, most int) {
	for _, l := range leases {
		for i := range services {
			s := &services[i]
			if n := DecideNextAddress(&l, s, most); n.ExhaustedReason != (Reason{}) && d.Reasons[s.UID].Reason == v1alpha1.GrantedReason {
				d.Reasons[s.UID] = n.ExhaustedReason
			}
		}
	}
}

// AddTriedAddress records an address in the annotation of a Service.
func AddTriedAddress(s *corev1.Service, a netip.Addr) {
	var texts []string
	for _, t := range append(parseTriedAddresses(s), a) {
		texts = append(texts, t.String())
	}
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1alpha1.TriedAddressesAnnotation, strings.Join(texts, ","))
}

// parseTriedAddresses returns the addresses that are recorded on a Service. An entry that cannot be parsed is ignored:
// the address is tried again.
func parseTriedAddresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for text := range strings.SplitSeq(s.Annotations[v1alpha1.TriedAddressesAnnotation], ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
