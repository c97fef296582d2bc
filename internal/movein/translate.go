package movein

import (
	"fmt"
	"net/netip"
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

// translate writes a spec of the in-cluster provider as one of ours. Notes are what is written differently and
// means the same; problems what cannot be taken over.
func translate(in sourceSpec) (out v1alpha1.NetworkPoolSpec, layout *poolspec.Layout, notes, problems []string) {
	declared, texts, bad := ranges(in.Addresses, "addresses")
	problems = append(problems, bad...)
	excluded, excludedTexts, bad := ranges(in.ExcludedAddresses, "excludedAddresses")
	problems = append(problems, bad...)
	if len(problems) > 0 {
		return out, nil, nil, problems
	}
	out = v1alpha1.NetworkPoolSpec{
		Addresses: texts, Prefix: ptr.To(in.Prefix), Gateway: in.Gateway,
		AllocateReservedIPAddresses: in.AllocateReservedIPAddresses,
	}
	if len(out.Addresses) > maxRanges {
		out.Addresses = formatAll(declared)
		notes = append(notes, "addresses that follow each other are written as one range")
	}
	// Ours reserves addresses of the pool: what lies outside needs no reservation.
	var inside netipx.IPSetBuilder
	inside.AddSet(excluded)
	inside.Intersect(declared)
	if both, err := inside.IPSet(); err == nil && both.Equal(excluded) && len(excludedTexts) <= maxRanges {
		out.Reserved = reserve(excludedTexts)
	} else if err == nil {
		out.Reserved = reserve(formatAll(both))
		notes = append(notes, "excludedAddresses outside the pool are left out: they need no reservation")
	}
	if g := ptr.Deref(in.AddressReuseGracePeriodSeconds, 0); g > maxGraceSeconds {
		out.AddressReuseGracePeriodSeconds = ptr.To[int64](maxGraceSeconds)
		notes = append(notes, fmt.Sprintf("addressReuseGracePeriodSeconds is %d here, the most there is, instead of %d", maxGraceSeconds, g))
	} else if g > 0 {
		out.AddressReuseGracePeriodSeconds = ptr.To(g)
	}
	if n := max(len(out.Addresses), len(out.Reserved)); n > maxRanges {
		problems = append(problems, fmt.Sprintf("the pool has %d separate ranges; ours has at most %d: split it", n, maxRanges))
	}
	layout, errs := poolspec.Compile(&out)
	for _, err := range errs {
		problems = append(problems, "ours cannot have this spec: "+err.Error())
	}
	return out, layout, notes, problems
}

// ranges reads addresses as the in-cluster provider does: a CIDR may have host bits.
func ranges(in []string, field string) (set *netipx.IPSet, texts, problems []string) {
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

func formatAll(set *netipx.IPSet) (out []string) {
	for _, r := range set.Ranges() {
		text := r.String()
		if r.From() == r.To() {
			text = r.From().String()
		}
		out = append(out, text)
	}
	return out
}

func reserve(texts []string) (out []v1alpha1.ReservedRange) {
	for _, text := range texts {
		out = append(out, v1alpha1.ReservedRange{CIDR: text, Description: "excludedAddresses of the in-cluster provider"})
	}
	return out
}
