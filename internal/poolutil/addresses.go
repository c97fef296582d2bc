package poolutil

import (
	"iter"
	"net/netip"

	"go4.org/netipx"
)

// MaxEnumerated limits the addresses that Enumerate lists: the list is meant for the status of an object, which must
// fit into etcd.
const MaxEnumerated = 65536

// Size returns the number of addresses in r, at most math.MaxInt64; 0 if r is not valid.
func Size(r netipx.IPRange) int64 {
	if !r.IsValid() {
		return 0
	}
	return blockFromRange(r).saturatedSize()
}

// Addresses yields every address of r in ascending order; none if r is not valid. It holds one address at a time.
func Addresses(r netipx.IPRange) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if !r.IsValid() {
			return
		}
		for a := r.From(); yield(a); a = a.Next() {
			if a == r.To() { // checked before Next: the last address of a family has no successor
				return
			}
		}
	}
}

// Enumerate returns the lowest addresses of r as text in ascending order, at most MaxEnumerated.
func Enumerate(r netipx.IPRange) []string {
	out := make([]string, 0, min(Size(r), MaxEnumerated))
	for a := range Addresses(r) {
		if len(out) == MaxEnumerated {
			break
		}
		out = append(out, a.String())
	}
	return out
}
