package poolspec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Holder is an object that holds a range.
type Holder struct {
	Kind, Namespace, Name string
	Range                 netipx.IPRange
	// Network is the network of its IPAddress; the zero value where it has none.
	Network Network
}

// Network has the prefix length and the gateway of an IPAddress. An empty gateway means none.
type Network struct {
	Prefix  int32
	Gateway string
}

// maxNamedHolders limits the holders that an error names; the others are counted.
const maxNamedHolders = 5

// ValidateNoCutOff returns an error that names the holders of addresses that the old layout covers and the next one
// does not. A nil old layout covers everything: the old spec was not valid.
func ValidateNoCutOff(old, next *Layout, holders []Holder) field.ErrorList {
	var names []string
	n := 0
	for _, h := range holders {
		if coversHolder(next, h) || (old != nil && !coversHolder(old, h)) {
			continue
		}
		if n++; n <= maxNamedHolders {
			names = append(names, fmt.Sprintf("%s (%s %s/%s)", poolutil.ShowRange(h.Range), h.Kind, h.Namespace, h.Name))
		}
	}
	if n == 0 {
		return nil
	}
	message := fmt.Sprintf("would cut off addresses that are in use: %s; delete their claims first, or keep the addresses in the pool", text.JoinSomeNames(names, n))
	return field.ErrorList{field.Forbidden(field.NewPath("spec"), message)}
}

// PinsInUseWarnings returns a warning for each preAllocation that the next spec adds or changes, and whose address a
// claim of another name has.
func PinsInUseWarnings(old, next *Layout, holders []Holder) (out []string) {
	for _, name := range newPinNames(old, next) {
		unit := netip.PrefixFrom(next.pins[name], min(next.unitBits, next.pins[name].BitLen()))
		i := slices.IndexFunc(holders, func(h Holder) bool { return h.Name != name && h.Range.Overlaps(netipx.RangeOfPrefix(unit)) })
		if i >= 0 {
			h := holders[i]
			out = append(out, fmt.Sprintf("spec.preAllocations[%s]: %s is held by %s %s/%s; a claim named %s gets it when that is released",
				name, next.pins[name], h.Kind, h.Namespace, h.Name, name))
		}
	}
	return out
}

// HasNewPins reports whether PinsInUseWarnings can find anything. It is a cheap check before the holders are read.
func HasNewPins(old, next *Layout) bool { return len(newPinNames(old, next)) > 0 }

// newPinNames returns the names of preAllocations that are new, or have another address.
func newPinNames(old, next *Layout) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(next.pins)) {
		if old == nil || old.pins[name] != next.pins[name] {
			names = append(names, name)
		}
	}
	return names
}

// IsNarrowed reports whether ValidateNoCutOff can find anything: whether the old layout hands out an address that the
// next one does not. A nil old layout covers everything.
func IsNarrowed(old, next *Layout) bool {
	if old == nil || old.unitBits != next.unitBits {
		return true
	}
	// A pool may have tens of thousands of ranges, so they are not compared pairwise.
	var lost netipx.IPSetBuilder
	lost.AddSet(old.allocatable)
	lost.RemoveSet(next.allocatable)
	if set, err := lost.IPSet(); err != nil || len(set.Ranges()) > 0 {
		return true
	}
	for name, a := range old.pins {
		if kept, ok := next.pins[name]; !next.allocatable.Contains(a) && (!ok || kept != a) {
			return true
		}
	}
	return false
}

// coversHolder reports whether a layout may grant a holder its range: as one that is free for any claim, or as the
// preAllocation of its name.
func coversHolder(l *Layout, h Holder) bool {
	if l.Contains(h.Range) {
		return true
	}
	name, pinned := l.PinOwner(h.Range.From())
	return pinned && name == h.Name && (h.Range.From() == h.Range.To() || l.unitBits < h.Range.From().BitLen())
}
