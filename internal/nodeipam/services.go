package nodeipam

import (
	"cmp"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// firstServices is the ServiceCIDR that the API server makes at its start.
const firstServices = "kubernetes"

// ServicesOf are the CIDRs of ServiceCIDRs, those of the object that the API server makes at its start first: it names
// first what Services get by default. The others are in the order of their names.
func ServicesOf(all []networkingv1.ServiceCIDR) []netip.Prefix {
	rank := func(s networkingv1.ServiceCIDR) int {
		if s.Name == firstServices {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b networkingv1.ServiceCIDR) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	var out []netip.Prefix
	for i := range all {
		out = append(out, Prefixes(all[i].Spec.CIDRs)...)
	}
	return out
}

// Prefixes are those of the texts that are CIDRs.
func Prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
