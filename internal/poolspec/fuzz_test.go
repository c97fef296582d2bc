package poolspec

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/draw"
)

// FuzzCompile checks that each spec compiles or has an error with a message, and that a layout keeps its promises.
func FuzzCompile(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x00\x00\x00\x18\x01\x01\x00\x09\x01\x00\x02\x01\x20\x01\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		spec := draw.NewSource(b).PoolSpec()
		l, errs := Compile(spec)
		if len(errs) > 0 {
			for _, err := range errs {
				if !strings.HasPrefix(err.Field, "spec") || err.Detail == "" {
					t.Errorf("%+v: %v", spec, err)
				}
			}
			return
		}
		for _, r := range l.Allocatable().Ranges() {
			if !l.Declared().ContainsRange(r) {
				t.Errorf("%+v hands out %s, which it does not have", spec, r)
			}
			bits, gateway := l.NetworkForAddress(r.From())
			if p, err := r.From().Prefix(int(bits)); err != nil || (gateway != "" && bits < int32(r.From().BitLen()) && !p.Contains(netip.MustParseAddr(gateway)) && !netip.MustParsePrefix("fe80::/10").Contains(netip.MustParseAddr(gateway))) {
				t.Errorf("%+v: %s is of a network /%d with gateway %q: %v", spec, r.From(), bits, gateway, err)
			}
		}
		for _, gateway := range l.Gateways() {
			if l.Allocatable().Contains(gateway) {
				t.Errorf("%+v hands out its gateway %s", spec, gateway)
			}
		}
		for name, a := range l.Pins() {
			if owner, kept := l.PinOwner(a); !kept || owner != name || !l.Declared().Contains(a) || !l.Grantable().Contains(a) {
				t.Errorf("%+v keeps %s for %q, and for %q", spec, a, name, owner)
			}
		}
		if IsNarrowed(l, l) {
			t.Errorf("%+v is narrower than itself", spec)
		}
	})
}
