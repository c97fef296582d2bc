package poolspec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
)

// HasNetworkChanges reports whether KeptNetworkWarnings can find anything: whether an address that the old layout
// declares may have another prefix length, or another gateway, in the next one. Pools of prefixes have neither.
func HasNetworkChanges(old, next *Layout) bool {
	if old == nil {
		return true
	}
	if next.unitBits != next.addressBits() {
		return false
	}
	touches := func(p netip.Prefix) bool { return p.IsValid() && old.declared.OverlapsPrefix(p) }
	return old.gateway != next.gateway || !ptr.Equal(old.prefixLength, next.prefixLength) ||
		slices.ContainsFunc(symmetricDifference(old.subnets, next.subnets), func(s subnet) bool { return touches(s.prefix) }) ||
		next.prefixLength == nil && slices.ContainsFunc(symmetricDifference(old.specNetworks(), next.specNetworks()), touches)
}

// addressBits returns the length of the addresses of the pool's family.
func (l *Layout) addressBits() int {
	if l.is6 {
		return 128
	}
	return 32
}

// symmetricDifference returns the elements that exactly one of two lists has.
func symmetricDifference[T comparable](a, b []T) (out []T) {
	in := func(list []T) map[T]struct{} {
		set := map[T]struct{}{}
		for _, t := range list {
			set[t] = struct{}{}
		}
		return set
	}
	before, after := in(a), in(b)
	for t := range before {
		if _, both := after[t]; !both {
			out = append(out, t)
		}
	}
	for t := range after {
		if _, both := before[t]; !both {
			out = append(out, t)
		}
	}
	return out
}

// KeptNetworkWarnings returns a warning for each combination of prefix length and gateway that holders keep although
// the next layout has another one for their addresses: an IPAddress is never changed.
func KeptNetworkWarnings(next *Layout, holders []Holder) []string {
	type keepers struct {
		n     int
		first Holder
	}
	by := map[string]*keepers{}
	for _, h := range holders {
		if h.Network == (Network{}) || !next.declared.Contains(h.Range.From()) {
			continue
		}
		prefix, gateway := next.NetworkForAddress(h.Range.From())
		var keptSettings []string
		if h.Network.Prefix != prefix {
			keptSettings = append(keptSettings, fmt.Sprintf("the prefix length %d", h.Network.Prefix))
		}
		if h.Network.Gateway != gateway {
			kept := "no gateway"
			if h.Network.Gateway != "" {
				kept = "the gateway " + h.Network.Gateway
			}
			keptSettings = append(keptSettings, kept)
		}
		if len(keptSettings) == 0 {
			continue
		}
		key := strings.Join(keptSettings, " and ")
		if by[key] == nil {
			by[key] = &keepers{first: h}
		}
		by[key].n++
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(by)) {
		k := by[key]
		keep := fmt.Sprintf("%d addresses in use keep", k.n)
		if k.n == 1 {
			keep = "1 address in use keeps"
		}
		out = append(out, fmt.Sprintf("%s %s, such as %s (%s %s/%s): a machine gets the values of the spec when it is recreated",
			keep, key, k.first.Range.From(), k.first.Kind, k.first.Namespace, k.first.Name))
	}
	return out
}
