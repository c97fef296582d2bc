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

// uncountedHostBits is the number of host bits from which on MetalLB does not count a network: the count becomes
// 2^63-1, and the IPv6 addresses before it in the pool are forgotten.
const uncountedHostBits = 62

// familyCounts is the number of addresses of each family in a pool.
type familyCounts [2]int64

// expectedCount returns the number of addresses that MetalLB counts in a pool with these entries (its poolCount, with
// all its peculiarities). ok is false if an entry cannot be parsed: MetalLB has not applied that pool.
func expectedCount(addresses []string, avoidBuggyIPs bool) (n familyCounts, ok bool) {
	for _, text := range addresses {
		r, err := parseRange(text)
		if err != nil {
			return familyCounts{}, false
		}
		for _, p := range r.Prefixes() {
			n.addPrefix(p, avoidBuggyIPs)
		}
	}
	return n, true
}

// addPrefix adds the addresses of a network.
func (n *familyCounts) addPrefix(p netip.Prefix, avoidBuggyIPs bool) {
	family, host := elastic.AddressFamily(p.Addr()), p.Addr().BitLen()-p.Bits()
	if host >= uncountedHostBits {
		n[family] = math.MaxInt64
		return
	}
	size := int64(1) << host
	if avoidBuggyIPs && family == elastic.IPv4 {
		if p.Bits() <= 24 {
			size -= 2 << (24 - p.Bits())
		} else {
			r := netipx.RangeOfPrefix(p)
			size -= countIfBuggy(r.From()) + countIfBuggy(r.To())
		}
	}
	n[family] += size // as in MetalLB: after a network that is not counted this overflows
}

// countIfBuggy returns 1 for an address that a pool with avoidBuggyIPs leaves out, else 0. A network of a single such
// address counts as -1, because MetalLB subtracts both its first and its last address.
func countIfBuggy(a netip.Addr) int64 {
	if elastic.IsBuggyAddress(a) {
		return 1
	}
	return 0
}

// reportedCount returns the number of addresses that MetalLB has counted in a pool. ok is false if the pool was
// never part of a valid configuration, or if MetalLB is older than 0.15, which does not count. With avoidBuggyIPs the
// count may be 0: then the managers of the status show that there is one.
func reportedCount(p *metallbv1beta1.IPAddressPool) (n familyCounts, ok bool) {
	s := p.Status
	n = familyCounts{s.AssignedIPv4 + s.AvailableIPv4, s.AssignedIPv6 + s.AvailableIPv6}
	return n, n != familyCounts{} || slices.ContainsFunc(p.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "status" })
}

// isCounted reports whether MetalLB's count of the addresses of a pool matches the current spec. It returns true for
// a pool without a count.
func isCounted(p *metallbv1beta1.IPAddressPool) bool {
	reported, hasCount := reportedCount(p)
	if !hasCount {
		return true
	}
	want, ok := expectedCount(p.Spec.Addresses, p.Spec.AvoidBuggyIPs)
	return ok && reported == want
}

// matchesReportedCount reports whether the count that MetalLB has reported for an IPAddressPool equals the count of
// these addresses, with or without avoidBuggyIPs, which a user may change. It returns false if MetalLB has not
// counted yet, or is of a release that does not count.
func matchesReportedCount(p *metallbv1beta1.IPAddressPool, to []string) bool {
	reported, hasCount := reportedCount(p)
	return hasCount && slices.ContainsFunc([]bool{false, true}, func(avoidBuggyIPs bool) bool {
		n, ok := expectedCount(to, avoidBuggyIPs)
		return ok && reported == n
	})
}
