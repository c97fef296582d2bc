package poolutil

import (
	"fmt"

	"go4.org/netipx"
)

// TrimToPrefixes returns the part of s that consists of whole aligned prefixes of the length bits, which is all that a
// pool of such prefixes can hand out. A nil s is empty. The cost is that of building a set of as many ranges as s has.
// It returns an error if an address of s cannot have a prefix of that length.
func TrimToPrefixes(s *netipx.IPSet, bits int) (*netipx.IPSet, error) {
	var trimmed netipx.IPSetBuilder
	if s != nil {
		for _, r := range s.Ranges() {
			v4 := r.From().Is4()
			if bits < 0 || bits > familyBits(v4) {
				return nil, fmt.Errorf("trimming %s to prefixes: %s has no prefix length %d", FormatRange(r), familyName(r.From()), bits)
			}
			if b, ok := blockFromRange(r).wholePrefixes(lowBits(familyBits(v4) - bits)); ok {
				trimmed.AddRange(b.ipRange(v4))
			}
		}
	}
	return trimmed.IPSet()
}
