package poolspec

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// carvedSpec returns the spec of a pool that is carved in blocks of /28, with changes.
func carvedSpec(change ...func(*spec)) *spec {
	s := &spec{Carve: &v1alpha1.Carve{PrefixLength: 28}}
	for _, f := range change {
		f(s)
	}
	return s
}

// inNetwork returns a block in a network of a prefix length.
func inNetwork(cidr string, prefix int32, gateway string) v1alpha1.CarvedBlock {
	return v1alpha1.CarvedBlock{Range: cidr, Prefix: prefix, Gateway: gateway}
}

func TestCompileCarved(t *testing.T) {
	reserved := func(r string) func(*spec) {
		return func(s *spec) { s.Reserved = []v1alpha1.ReservedRange{{Addresses: r}} }
	}
	tests := map[string]struct {
		spec   *spec
		blocks []v1alpha1.CarvedBlock
		want   []string
		reason string
	}{
		"None": {spec: carvedSpec(), reason: "a pool without blocks hands out nothing, and nothing is wrong with it"},
		"Parent": {
			spec: carvedSpec(), blocks: []v1alpha1.CarvedBlock{inNetwork("10.0.0.16/28", 24, "10.0.0.20")},
			want: []string{"10.0.0.16-10.0.0.19", "10.0.0.21-10.0.0.31"}, reason: "all but the gateway of the parent",
		},
		"EdgeOfTheParent": {
			spec: carvedSpec(), blocks: []v1alpha1.CarvedBlock{inNetwork("10.0.0.0/28", 24, "")},
			want: []string{"10.0.0.1-10.0.0.15"}, reason: "the first address of the network of the parent",
		},
		"Routed": {
			spec: carvedSpec(), blocks: []v1alpha1.CarvedBlock{inNetwork("10.0.0.16/28", 28, "10.0.0.17")},
			want: []string{"10.0.0.18-10.0.0.30"}, reason: "a block that is a subnet has a first, a last and a gateway of its own",
		},
		"Two": {
			spec:   carvedSpec(),
			blocks: []v1alpha1.CarvedBlock{inNetwork("10.0.0.16/28", 28, ""), inNetwork("10.0.0.64/28", 28, "")},
			want:   []string{"10.0.0.17-10.0.0.30", "10.0.0.65-10.0.0.78"},
		},
		"ReservedElsewhere": {
			spec: carvedSpec(reserved("10.9.9.0/24")), blocks: []v1alpha1.CarvedBlock{inNetwork("10.0.0.16/30", 24, "")},
			want: []string{"10.0.0.16-10.0.0.19"}, reason: "a block that comes later may have it",
		},
		"Reserved": {
			spec: carvedSpec(reserved("10.0.0.17")), blocks: []v1alpha1.CarvedBlock{inNetwork("10.0.0.16/30", 24, "")},
			want: []string{"10.0.0.16-10.0.0.16", "10.0.0.18-10.0.0.19"},
		},
		"Prefixes": {
			spec:   carvedSpec(func(s *spec) { s.AllocationPrefixLength = ptr.To[int32](64) }),
			blocks: []v1alpha1.CarvedBlock{inNetwork("fd00:0:0:100::/56", 48, "fd00::1")},
			want:   []string{"fd00:0:0:100::-fd00::1ff:ffff:ffff:ffff:ffff"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, errs := Compile(tt.spec, tt.blocks...)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			var got []string
			for _, r := range l.Allocatable().Ranges() {
				got = append(got, r.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if text := NothingAllocatableMessage(l, AdviceAddAddresses); text != "" {
				t.Error(text)
			}
		})
	}
}

// TestCarvedNetwork checks that an IPAddress gets the network of its block.
func TestCarvedNetwork(t *testing.T) {
	l, errs := Compile(carvedSpec(), inNetwork("10.0.0.16/28", 24, "10.0.0.1"), inNetwork("10.0.1.16/28", 28, "10.0.1.17"), inNetwork("10.0.2.16/28", 32, "192.0.2.1"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for a, want := range map[string]struct {
		prefix  int32
		gateway string
	}{"10.0.0.20": {24, "10.0.0.1"}, "10.0.1.20": {28, "10.0.1.17"}, "10.0.2.20": {32, "192.0.2.1"}} {
		if prefix, gateway := l.NetworkForAddress(netip.MustParseAddr(a)); prefix != want.prefix || gateway != want.gateway {
			t.Errorf("%s is of a /%d with the gateway %s", a, prefix, gateway)
		}
	}
}

// TestCarvedPins checks that a pin counts only once a block with its address is open.
func TestCarvedPins(t *testing.T) {
	s := carvedSpec(func(s *spec) { s.PreAllocations = map[string]string{"vip": "10.0.0.20", "later": "10.0.9.9"} })
	l, errs := Compile(s, inNetwork("10.0.0.16/28", 24, ""))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if a, ok := l.PinForClaim("vip"); !ok || a.String() != "10.0.0.20" {
		t.Errorf("vip has %v", a)
	}
	if a, ok := l.PinForClaim("later"); ok {
		t.Errorf("later has %v", a)
	}
}
