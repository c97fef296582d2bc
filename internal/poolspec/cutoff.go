package poolspec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Holder is an object that holds a range now.
type Holder struct {
	Kind, Namespace, Name string
	Range                 netipx.IPRange
	// Network is that of its IPAddress; the zero value where it has none.
	Network Network
}

// Network is what an IPAddress says of the network that its address is in. No gateway: there is none.
type Network struct {
	Prefix  int32
	Gateway string
}

// namedHolders is how many holders an error names; the rest are counted.
const namedHolders = 5

// CutOff finds the holders of addresses that the old layout covers and the next one would not. A
// nil old layout covers everything: the spec was not valid before.
func CutOff(old, next *Layout, holders []Holder) field.ErrorList {
	var names []string
	n := 0
	for _, h := range holders {
		if covers(next, h) || (old != nil && !covers(old, h)) {
			continue
		}
		if n++; n <= namedHolders {
			names = append(names, fmt.Sprintf("%s (%s %s/%s)", poolutil.ShowRange(h.Range), h.Kind, h.Namespace, h.Name))
		}
	}
	if n == 0 {
		return nil
	}
	message := "would cut off addresses that are in use: " + strings.Join(names, ", ")
	if n > namedHolders {
		message += fmt.Sprintf(" and %d more", n-namedHolders)
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec"), message+"; delete their claims first, or keep the addresses in the pool")}
}

// PinsInUse says of the preAllocations that a new spec adds, or changes, whose address another name has.
func PinsInUse(old, next *Layout, holders []Holder) (out []string) {
	for _, name := range addedPins(old, next) {
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

// AddsPins reports whether PinsInUse can find anything.
func AddsPins(old, next *Layout) bool { return len(addedPins(old, next)) > 0 }

// addedPins are the names of preAllocations that are new, or have another address.
func addedPins(old, next *Layout) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(next.pins)) {
		if old == nil || old.pins[name] != next.pins[name] {
			names = append(names, name)
		}
	}
	return names
}

// Narrows reports whether CutOff can find anything: whether the old layout gives out something that the
// next one does not. A nil old layout covers everything.
func Narrows(old, next *Layout) bool {
	if old == nil || old.unitBits != next.unitBits {
		return true
	}
	// A pool may be cut into tens of thousands of ranges: they are not compared one with another.
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

// covers reports whether a layout may give a holder what it has: by best fit, or as the preAllocation
// of its name.
func covers(l *Layout, h Holder) bool {
	if l.Contains(h.Range) {
		return true
	}
	name, pinned := l.PinOwner(h.Range.From())
	return pinned && name == h.Name && (h.Range.From() == h.Range.To() || l.unitBits < h.Range.From().BitLen())
}
