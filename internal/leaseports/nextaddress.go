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

// Next is what comes next for a lease for whose address somebody answers whom nobody gave it (P7). The zero one: nothing.
type Next struct {
	// Note: its address is to be noted on the Service, before anything else. Replace: it is noted, and the lease is to be deleted,
	// so that another one is made.
	Note, Replace bool
	// Told is what the Service is told, for which there are no more attempts.
	Told Verdict
}

// NextAddress is what comes next for a lease and the Service that it was made for, which gets so many addresses at most, one
// after another. What a person made, a Service asks for by its address, or is published with, stays as it is.
func NextAddress(l *Lease, s *Service, most int) Next {
	mine := l.Made && l.For == s.Name && s.Namespace == "" && s.Class != "" && slices.Contains(s.Leases, l.Name)
	known := slices.Contains(s.Published, l.Address) // clients have it: a person decides
	if !mine || !l.UsedByOthers || known || l.Deleting || !l.Address.IsValid() || s.Off != "" || s.Deleting {
		return Next{}
	}
	var tried []string // of its family: a lease of the other one has attempts of its own
	for _, a := range s.Tried {
		if familyOf(a) == familyOf(l.Address) {
			tried = append(tried, a.String())
		}
	}
	switch {
	case !slices.Contains(s.Tried, l.Address):
		return Next{Note: true}
	case len(tried) < most:
		return Next{Replace: true}
	}
	return Next{Told: Verdict{v1alpha1.AddressAttemptsExhaustedReason, fmt.Sprintf(
		"exhausted all IP allocation attempts: somebody else answers for each of %s; take %s off the machine that has it, or free another one and remove the annotation %s, to try again",
		strings.Join(tried, ", "), l.Address, v1alpha1.TriedAddressesAnnotation)}}
}

// Exhaust tells the Services that have no more attempts. They keep their ports: their lease stays, and serves them when nobody
// else answers for its address any more.
func (d *Decision) Exhaust(leases []Lease, services []Service, most int) {
	for _, l := range leases {
		for i := range services {
			s := &services[i]
			if n := NextAddress(&l, s, most); n.Told != (Verdict{}) && d.Verdicts[s.UID].Reason == v1alpha1.GrantedReason {
				d.Verdicts[s.UID] = n.Told
			}
		}
	}
}

// Tries notes an address on a Service.
func Tries(s *corev1.Service, a netip.Addr) {
	var texts []string
	for _, t := range append(triedAddresses(s), a) {
		texts = append(texts, t.String())
	}
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1alpha1.TriedAddressesAnnotation, strings.Join(texts, ","))
}

// triedAddresses are those that were noted on a Service. What cannot be read counts as nothing: it is tried again.
func triedAddresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for text := range strings.SplitSeq(s.Annotations[v1alpha1.TriedAddressesAnnotation], ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
