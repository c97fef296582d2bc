package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// addressSpace is the addresses that a pool hands out, in units: addresses, or prefixes. It does not change.
type addressSpace struct {
	// unitBits is the prefix length of a unit; addressBits is the length of an address of the space in bits, 0 for an
	// empty space.
	unitBits, addressBits int
	ranges                []netipx.IPRange
}

func newAddressSpace(set *netipx.IPSet, unitBits int) *addressSpace {
	out := &addressSpace{unitBits: unitBits}
	if set != nil {
		out.ranges = set.Ranges()
	}
	if len(out.ranges) > 0 {
		out.addressBits = out.ranges[0].From().BitLen()
	}
	return out
}

// countUnits returns the number of units that the pool hands out in a range. A range of another family than the
// pool's counts by address, because its spans are cut at addresses.
func (as *addressSpace) countUnits(r netipx.IPRange) poolutil.Count {
	if bits := r.From().BitLen(); as.addressBits != 0 && as.addressBits != bits {
		return poolutil.CountPrefixes(r, bits)
	}
	return poolutil.CountPrefixes(r, as.unitBits)
}

// IsInSpace reports whether a range lies completely in the space of the pool.
func (as *addressSpace) IsInSpace(r netipx.IPRange) bool {
	for part := range as.partsInSpace(r) {
		return part == r
	}
	return false
}

// UnitRange returns the whole unit (address or prefix) that contains an address.
func (as *addressSpace) UnitRange(a netip.Addr) netipx.IPRange {
	return as.widenToUnits(netipx.IPRangeFrom(a, a))
}

// partsInSpace yields the parts of a range that lie in the space.
func (as *addressSpace) partsInSpace(r netipx.IPRange) func(func(netipx.IPRange) bool) {
	return func(yield func(netipx.IPRange) bool) {
		i, _ := slices.BinarySearchFunc(as.ranges, r.From(), func(s netipx.IPRange, a netip.Addr) int {
			return s.To().Compare(a)
		})
		for ; i < len(as.ranges) && as.ranges[i].From().Compare(r.To()) <= 0; i++ {
			from, to := as.ranges[i].From(), as.ranges[i].To()
			if from.Less(r.From()) {
				from = r.From()
			}
			if r.To().Less(to) {
				to = r.To()
			}
			if !yield(netipx.IPRangeFrom(from, to)) {
				return
			}
		}
	}
}

// widenToUnits widens a range to whole units, so that a stray address makes its whole prefix taken. It does not widen
// an address of another family than the pool's.
func (as *addressSpace) widenToUnits(r netipx.IPRange) netipx.IPRange {
	bits := r.From().BitLen()
	if as.unitBits >= bits || (as.addressBits != 0 && as.addressBits != bits) {
		return r
	}
	first, err1 := r.From().Prefix(as.unitBits)
	last, err2 := r.To().Prefix(as.unitBits)
	if err1 != nil || err2 != nil {
		return r
	}
	return netipx.IPRangeFrom(first.Addr(), netipx.RangeOfPrefix(last).To())
}
