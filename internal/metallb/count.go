package metallb

import (
	"math"
	"net/netip"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// enormous is how many bits of host a network has that MetalLB does not count: it has 2^63-1 addresses, and all IPv6
// addresses before it in the pool are forgotten.
const enormous = 62

// counts are how many addresses of each family a pool has.
type counts [2]int64

// countOf is how many addresses MetalLB counts in a pool with these entries (its poolCount, with all that is peculiar to
// it); false: an entry cannot be read, so MetalLB did not take the pool.
func countOf(addresses []string, avoidBuggyIPs bool) (n counts, ok bool) {
	for _, text := range addresses {
		r, err := rangeOf(text)
		if err != nil {
			return counts{}, false
		}
		for _, p := range r.Prefixes() {
			n.add(p, avoidBuggyIPs)
		}
	}
	return n, true
}

// add counts a network.
func (n *counts) add(p netip.Prefix, avoidBuggyIPs bool) {
	family, host := elastic.FamilyOf(p.Addr()), p.Addr().BitLen()-p.Bits()
	if host >= enormous {
		n[family] = math.MaxInt64
		return
	}
	size := int64(1) << host
	if avoidBuggyIPs && family == elastic.IPv4 {
		if p.Bits() <= 24 {
			size -= 2 << (24 - p.Bits())
		} else {
			r := netipx.RangeOfPrefix(p)
			size -= ifBuggy(r.From()) + ifBuggy(r.To())
		}
	}
	n[family] += size // as MetalLB: beyond an enormous network this overflows
}

// ifBuggy is 1 for an address that a pool with avoidBuggyIPs leaves out. A network of one such address counts as -1, as
// MetalLB subtracts its first address and its last one.
func ifBuggy(a netip.Addr) int64 {
	if elastic.Buggy(a) {
		return 1
	}
	return 0
}

// countedBy is how many addresses MetalLB has counted in a pool; false: the pool was never part of a valid configuration, or
// MetalLB is of a release before 0.15, which does not count. With avoidBuggyIPs the count may be 0: then the managers of the
// status show that there is one.
func countedBy(p *metallbv1beta1.IPAddressPool) (n counts, has bool) {
	s := p.Status
	n = counts{s.AssignedIPv4 + s.AvailableIPv4, s.AssignedIPv6 + s.AvailableIPv6}
	return n, n != counts{} || slices.ContainsFunc(p.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "status" })
}

// counted reports whether MetalLB's count of the addresses of a pool is that of the pool as it is now. A pool without a
// count counts as counted.
func counted(p *metallbv1beta1.IPAddressPool) bool {
	is, has := countedBy(p)
	if !has {
		return true
	}
	want, ok := countOf(p.Spec.Addresses, p.Spec.AvoidBuggyIPs)
	return ok && is == want
}

// seemsCounted reports whether the count that MetalLB has made of an IPAddressPool would be taken for that of these
// addresses: there are as many, with avoidBuggyIPs or without it, as a person may change that. Before MetalLB has counted at
// all, or in a release that does not, nothing can be told apart.
func seemsCounted(p *metallbv1beta1.IPAddressPool, to []string) bool {
	is, has := countedBy(p)
	return has && slices.ContainsFunc([]bool{false, true}, func(avoidBuggyIPs bool) bool {
		n, ok := countOf(to, avoidBuggyIPs)
		return ok && is == n
	})
}
