package incluster

import (
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/draw"
)

// poolOf returns a pool with a spec.
func poolOf(t *testing.T, s Spec) *unstructured.Unstructured {
	t.Helper()
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&s)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
}

// handedOut returns the addresses that the in-cluster provider hands out of a spec that its webhook accepts, by its own
// rules.
func handedOut(s Spec) *netipx.IPSet {
	declared, _, _ := parseRanges(s.Addresses, "")
	excluded, _, _ := parseRanges(s.ExcludedAddresses, "")
	var b netipx.IPSetBuilder
	b.AddSet(declared)
	b.RemoveSet(excluded)
	if network := netip.PrefixFrom(declared.Ranges()[0].From(), int(s.Prefix)); !s.AllocateReservedIPAddresses {
		r := netipx.RangeOfPrefix(network)
		b.Remove(r.From())
		if r.From().Is4() {
			b.Remove(r.To())
		}
	}
	if gateway, err := netip.ParseAddr(s.Gateway); err == nil {
		b.Remove(gateway)
	}
	out, _ := b.IPSet()
	return out
}

func TestMirrorForPool(t *testing.T) {
	for name, c := range map[string]struct {
		in Spec
		// gateway is the gateway of the pool's IPAddresses where the spec of the mirror has none; problem is a part of
		// the error.
		gateway, problem string
	}{
		"a network":                     {in: Spec{Addresses: []string{"10.0.0.0/24"}, Prefix: 24, Gateway: "10.0.0.1"}},
		"all of it":                     {in: Spec{Addresses: []string{"10.0.0.0/24"}, Prefix: 24, Gateway: "10.0.0.1", AllocateReservedIPAddresses: true}},
		"part of it":                    {in: Spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: 24, ExcludedAddresses: []string{"10.0.0.12"}}},
		"two addresses":                 {in: Spec{Addresses: []string{"10.0.0.0/31"}, Prefix: 31}},
		"one address":                   {in: Spec{Addresses: []string{"10.0.0.7"}, Prefix: 32}},
		"two addresses, both allocated": {in: Spec{Addresses: []string{"10.0.0.0/31"}, Prefix: 31, AllocateReservedIPAddresses: true}},
		"an edge that is excluded":      {in: Spec{Addresses: []string{"10.0.0.0/30"}, Prefix: 30, ExcludedAddresses: []string{"10.0.0.0"}}},
		"a second network":              {in: Spec{Addresses: []string{"10.0.0.0/30", "10.0.0.4/30"}, Prefix: 30}},
		"IPv6":                          {in: Spec{Addresses: []string{"fd00::/126"}, Prefix: 64, Gateway: "fd00::1"}},
		"a gateway elsewhere":           {in: Spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: 24, Gateway: "10.9.0.1"}, gateway: "10.9.0.1"},
		"one of another network of it":  {in: Spec{Addresses: []string{"10.0.0.0/30", "10.0.0.4/30"}, Prefix: 30, Gateway: "10.0.0.5"}, gateway: "10.0.0.5"},
		"a link-local one":              {in: Spec{Addresses: []string{"fd00::10-fd00::20"}, Prefix: 64, Gateway: "fe80::1"}},
		"a link-local one of IPv4":      {in: Spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: 24, Gateway: "169.254.1.1"}, gateway: "169.254.1.1"},
		"one with a zone":               {in: Spec{Addresses: []string{"fe80::/120"}, Prefix: 64, Gateway: "fe80::1%eth0"}, gateway: "fe80::1%eth0"},
		"one of another family":         {in: Spec{Addresses: []string{"10.0.0.10"}, Prefix: 24, Gateway: "fe80::1"}, problem: "another address family"},
		"an IPv4 address as IPv6":       {in: Spec{Addresses: []string{"::ffff:10.0.0.10-::ffff:10.0.0.20"}, Prefix: 120}, problem: "this pool is not served: spec.addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			kind := PoolKinds[0]
			m, err := MirrorForPool(kind, poolOf(t, c.in))
			if c.problem != "" {
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Fatalf("%v, want %q", err, c.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			layout, errs := poolspec.Compile(&m.Spec)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if want := handedOut(c.in); !layout.Allocatable().Equal(want) {
				t.Errorf("%v are handed out, the in-cluster provider hands out %v", layout.Allocatable().Ranges(), want.Ranges())
			}
			if m.Gateway != c.gateway || (c.gateway != "") == (m.Spec.Gateway != "") && c.in.Gateway != "" {
				t.Errorf("the gateway is %q, or %q", m.Gateway, m.Spec.Gateway)
			}
			if len(m.Notes) > 0 {
				t.Errorf("%q", m.Notes)
			}
		})
	}
}

// FuzzMirror checks that a mirror hands out exactly the addresses that the in-cluster provider would.
func FuzzMirror(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x02\x00\x00\x05\x01\x00\x00\x18\x01\x09"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := draw.NewSource(b)
		var in Spec
		for range d.Int(4) {
			in.Addresses = append(in.Addresses, d.Range())
		}
		for range d.Int(4) {
			in.ExcludedAddresses = append(in.ExcludedAddresses, d.Range())
		}
		in.Prefix, in.AllocateReservedIPAddresses = int32(d.Int(130)), d.Int(2) == 1
		if d.Int(2) == 1 {
			in.Gateway = d.Address()
		}
		m, problems := in.toMirror(false)
		if len(problems) > 0 {
			return
		}
		layout, errs := poolspec.Compile(&m.Spec)
		if len(errs) > 0 {
			t.Fatalf("%+v becomes %+v: %v", in, m.Spec, errs)
		}
		if want := handedOut(in); !layout.Allocatable().Equal(want) {
			t.Errorf("%+v hands out %v, the in-cluster provider would hand out %v", in, layout.Allocatable().Ranges(), want.Ranges())
		}
	})
}
