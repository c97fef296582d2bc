package incluster

import (
	"testing"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/draw"
)

// FuzzTranslate checks that a translation without problems hands out only what the other provider would: addresses of
// its pool that it does not exclude.
func FuzzTranslate(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x02\x00\x00\x05\x01\x00\x00\x18\x01\x09"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := draw.NewSource(b)
		var in Spec
		prefixes := d.Int(2) == 1
		for range d.Int(4) {
			in.Addresses = append(in.Addresses, d.Range())
		}
		for range d.Int(4) {
			in.ExcludedAddresses = append(in.ExcludedAddresses, d.Range())
		}
		in.Prefixes, in.ExcludedPrefixes = in.Addresses, in.ExcludedAddresses
		in.Prefix, in.AllocationPrefixLength = int32(d.Int(140))-2, int32(d.Int(140))-2
		if d.Int(2) == 1 {
			in.Gateway = d.Address()
		}
		grace := int64(d.Int(256)-2) << d.Int(64)
		in.AddressReuseGracePeriodSeconds = &grace
		out, _, problems := in.ToNetworkPoolSpec(prefixes)
		if len(problems) > 0 {
			return
		}
		l, errs := poolspec.Compile(&out)
		if len(errs) > 0 {
			t.Fatalf("%+v becomes %+v: %v", in, out, errs)
		}
		all, _, _ := parseRanges(in.Addresses, "addresses")
		excluded, _, _ := parseRanges(in.ExcludedAddresses, "excludedAddresses")
		for _, r := range l.Allocatable().Ranges() {
			if !all.ContainsRange(r) || excluded.OverlapsRange(netipx.IPRangeFrom(r.From(), r.To())) {
				t.Errorf("%+v hands out %s of %+v", out, r, in)
			}
		}
		if g := out.AddressReuseGracePeriodSeconds; g != nil && (*g <= 0 || *g > maxGraceSeconds) {
			t.Errorf("a grace of %d becomes %d", grace, *g)
		}
	})
}
