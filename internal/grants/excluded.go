package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// rangesFrom returns the ranges that do not end before an address. The ranges must be in ascending order.
func rangesFrom(ranges []netipx.IPRange, a netip.Addr) []netipx.IPRange {
	i, _ := slices.BinarySearchFunc(ranges, a, func(r netipx.IPRange, a netip.Addr) int { return r.To().Compare(a) })
	return ranges[i:]
}

// intersectRanges returns the intersection of two ranges. They must overlap.
func intersectRanges(a, b netipx.IPRange) netipx.IPRange {
	from, to := a.From(), a.To()
	if from.Less(b.From()) {
		from = b.From()
	}
	if b.To().Less(to) {
		to = b.To()
	}
	return netipx.IPRangeFrom(from, to)
}

// SpecVersion identifies a version of the spec of a pool, as far as the spec determines the addresses of the pool.
// Generation is 0 for a carved pool: its status, not its spec, determines its addresses.
type SpecVersion struct {
	UID        types.UID
	Generation int64
}

// SpecVersionForPool returns the version of the spec that a pool has.
func SpecVersionForPool(pool v1alpha1.Pool) SpecVersion {
	if pool.PoolSpec().Carve != nil {
		return SpecVersion{UID: pool.GetUID()}
	}
	return SpecVersion{pool.GetUID(), pool.GetGeneration()}
}

// commonRanges returns the intersections of ranges with other ranges.
func commonRanges(ranges, with []netipx.IPRange) (out []netipx.IPRange) {
	for _, r := range ranges {
		for _, w := range with {
			if r.Overlaps(w) {
				out = append(out, intersectRanges(r, w))
			}
		}
	}
	return out
}

// UnwatchedUsage is the result of the last read of an older pool that no watch of this manager shows: the ranges of
// this pool that the older pool uses. Generation is the generation of this pool at the time of the read.
// BlockedReason is why this pool may not grant anything yet.
type UnwatchedUsage struct {
	ReadAt        time.Time
	Generation    int64
	UsedRanges    []netipx.IPRange
	BlockedReason string
}

// OverlapUpdate is the state of a younger pool that the older pools of its network wait for.
type OverlapUpdate struct {
	YieldsVersion string
	UsedAddresses int64
}
