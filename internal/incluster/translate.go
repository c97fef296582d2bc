package incluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// The limits of our spec.
const (
	maxRanges       = 256
	maxGraceSeconds = 30 * 24 * 60 * 60
)

// defaultPrefixLength is the prefix length of prefix pools that do not set one.
const defaultPrefixLength = 64

// ToNetworkPoolSpec translates the spec of a pool of addresses, or of prefixes, to one of ours. Notes list the fields
// that are expressed differently, with the same meaning; problems list what cannot be translated. With any problem the
// result must not be used.
func (s Spec) ToNetworkPoolSpec(prefixes bool) (out v1alpha1.NetworkPoolSpec, notes, problems []string) {
	from, but := "addresses", "excludedAddresses"
	all, excluded := s.Addresses, s.ExcludedAddresses
	if prefixes {
		from, but = "prefixes", "excludedPrefixes"
		all, excluded = s.Prefixes, s.ExcludedPrefixes
		out.AllocationPrefixLength = ptr.To(s.AllocationPrefixLength)
		if s.AllocationPrefixLength == 0 {
			out.AllocationPrefixLength = ptr.To[int32](defaultPrefixLength)
		}
	} else {
		out.Prefix, out.Gateway, out.AllocateReservedIPAddresses = ptr.To(s.Prefix), s.Gateway, s.AllocateReservedIPAddresses
	}
	declared, texts, bad := parseRanges(all, from)
	without, withoutTexts, alsoBad := parseRanges(excluded, but)
	if problems = slices.Concat(bad, alsoBad); len(problems) > 0 {
		return out, nil, problems
	}
	if out.Addresses = texts; len(texts) > maxRanges {
		out.Addresses = formatRanges(declared)
		notes = append(notes, from+" that follow each other are written as one range")
	}
	// Our reservations must be within the pool, and addresses outside need none.
	var inside netipx.IPSetBuilder
	inside.AddSet(without)
	inside.Intersect(declared)
	both, err := inside.IPSet()
	if err != nil {
		return out, nil, []string{fmt.Sprintf("spec.%s: %v", but, err)}
	}
	if !both.Equal(without) {
		notes = append(notes, but+" outside the pool are left out: they need no reservation")
		withoutTexts = formatRanges(both)
	} else if len(withoutTexts) > maxRanges {
		notes = append(notes, but+" that follow each other are written as one range")
		withoutTexts = formatRanges(both)
	}
	for _, text := range withoutTexts {
		out.Reserved = append(out.Reserved, v1alpha1.ReservedRange{Addresses: text, Description: but + " of the in-cluster provider"})
	}
	if g := ptr.Deref(s.AddressReuseGracePeriodSeconds, 0); g > maxGraceSeconds {
		out.AddressReuseGracePeriodSeconds = ptr.To[int64](maxGraceSeconds)
		notes = append(notes, fmt.Sprintf("addressReuseGracePeriodSeconds is %d here, the most there is, instead of %d", maxGraceSeconds, g))
	} else if g > 0 {
		out.AddressReuseGracePeriodSeconds = ptr.To(g)
	}
	if n := max(len(out.Addresses), len(out.Reserved)); n > maxRanges {
		problems = append(problems, fmt.Sprintf("the pool has %d separate ranges; a pool of this provider has at most %d: split the pool", n, maxRanges))
	}
	_, errs := poolspec.Compile(&out)
	for _, err := range errs {
		problems = append(problems, "this provider cannot serve this spec: "+err.Error())
	}
	return out, notes, problems
}

// parseRanges parses ranges as the in-cluster provider does: a CIDR may have host bits.
func parseRanges(in []string, field string) (set *netipx.IPSet, texts, problems []string) {
	var b netipx.IPSetBuilder
	for _, text := range in {
		if p, err := netip.ParsePrefix(text); err == nil {
			text = p.Masked().String()
		} else if first, last, isRange := strings.Cut(text, "-"); isRange {
			text = strings.TrimSpace(first) + "-" + strings.TrimSpace(last)
		}
		r, err := poolutil.ParseRange(text)
		if err != nil {
			problems = append(problems, fmt.Sprintf("spec.%s: %v", field, err))
			continue
		}
		b.AddRange(r)
		texts = append(texts, text)
	}
	set, err := b.IPSet()
	if err != nil {
		return &netipx.IPSet{}, texts, append(problems, fmt.Sprintf("spec.%s: %v", field, err))
	}
	return set, texts, problems
}

func formatRanges(set *netipx.IPSet) (out []string) {
	for _, r := range set.Ranges() {
		out = append(out, poolutil.ShowRange(r))
	}
	return out
}
