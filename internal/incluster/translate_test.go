package incluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestToNetworkPoolSpec(t *testing.T) {
	const why = "excludedAddresses of the in-cluster provider"
	for name, c := range map[string]struct {
		in Spec
		// prefixes reports whether it is a pool of prefixes.
		prefixes bool
		want     v1alpha1.NetworkPoolSpec
		// note and problem are parts of the only note or problem; empty where there must be none.
		note, problem string
	}{
		"all fields": {
			in: Spec{
				Addresses: []string{"10.0.0.0/25", "10.0.0.200-10.0.0.210", "10.0.0.220"}, Prefix: 24, Gateway: "10.0.0.1", AllocateReservedIPAddresses: true,
				ExcludedAddresses: []string{"10.0.0.5", "10.0.0.200/31"}, AddressReuseGracePeriodSeconds: ptr.To[int64](60),
			},
			want: v1alpha1.NetworkPoolSpec{
				Addresses: []string{"10.0.0.0/25", "10.0.0.200-10.0.0.210", "10.0.0.220"}, Prefix: ptr.To[int32](24), Gateway: "10.0.0.1",
				AllocateReservedIPAddresses: true, AddressReuseGracePeriodSeconds: ptr.To[int64](60),
				Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.0.5", Description: why}, {Addresses: "10.0.0.200/31", Description: why}},
			},
		},
		"host bits": {
			in:   Spec{Addresses: []string{"10.0.0.33/28"}, Prefix: 28},
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.32/28"}, Prefix: ptr.To[int32](28)},
		},
		"IPv6": {
			in:   Spec{Addresses: []string{"fd00::10-fd00::1f"}, Prefix: 64, Gateway: "fd00::1"},
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"fd00::10-fd00::1f"}, Prefix: ptr.To[int32](64), Gateway: "fd00::1"},
		},
		"IPv6, a link-local gateway": {
			in:   Spec{Addresses: []string{"fd00::10-fd00::1f"}, Prefix: 64, Gateway: "fe80::1"},
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"fd00::10-fd00::1f"}, Prefix: ptr.To[int32](64), Gateway: "fe80::1"},
		},
		"an exclusion that reaches out of the pool": {
			in: Spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: 24, ExcludedAddresses: []string{"10.0.0.0/28"}},
			want: v1alpha1.NetworkPoolSpec{
				Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: ptr.To[int32](24), Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.0.10-10.0.0.15", Description: why}},
			},
			note: "excludedAddresses outside the pool are left out",
		},
		"a rest of years": {
			in:   Spec{Addresses: []string{"10.0.0.10"}, Prefix: 24, AddressReuseGracePeriodSeconds: ptr.To[int64](1e8)},
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10"}, Prefix: ptr.To[int32](24), AddressReuseGracePeriodSeconds: ptr.To[int64](2592000)},
			note: "2592000 here",
		},
		"prefixes": {
			prefixes: true,
			in:       Spec{Prefixes: []string{"fd00:1::/48"}, ExcludedPrefixes: []string{"fd00:1::/64", "fd00:2::/64"}},
			want: v1alpha1.NetworkPoolSpec{
				Addresses: []string{"fd00:1::/48"}, AllocationPrefixLength: ptr.To[int32](64),
				Reserved: []v1alpha1.ReservedRange{{Addresses: "fd00:1::/64", Description: "excludedPrefixes of the in-cluster provider"}},
			},
			note: "excludedPrefixes outside the pool are left out",
		},
		"a gateway elsewhere": {
			in:      Spec{Addresses: []string{"10.0.0.10"}, Prefix: 24, Gateway: "10.9.0.1"},
			problem: "this provider cannot serve this spec: spec.gateway",
		},
		"no address": {in: Spec{Addresses: []string{"x"}, Prefix: 24}, problem: `spec.addresses: parsing "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, notes, problems := c.in.ToNetworkPoolSpec(c.prefixes)
			if text := strings.Join(problems, "\n"); !strings.Contains(text, c.problem) || (c.problem == "") != (text == "") || len(problems) > 1 {
				t.Errorf("problems %q, want %q", problems, c.problem)
			}
			if text := strings.Join(notes, "\n"); !strings.Contains(text, c.note) || (c.note == "") != (text == "") || len(notes) > 1 {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
			if diff := cmp.Diff(c.want, got); c.problem == "" && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSplitPoolIsTranslated checks that a pool with more ranges than one of ours may have can be translated
// after the user splits it (W29).
func TestSplitPoolIsTranslated(t *testing.T) {
	of := func(n int) []string {
		s := Spec{Prefix: 16}
		for i := range n {
			s.Addresses = append(s.Addresses, fmt.Sprintf("10.0.%d.%d", i/100, 2*(i%100)+1))
		}
		_, _, problems := s.ToNetworkPoolSpec(false)
		return problems
	}
	if problems := of(maxRanges + 1); len(problems) != 1 || !strings.Contains(problems[0], "split the pool") {
		t.Error(problems)
	}
	if problems := append(of(maxRanges), of(1)...); len(problems) > 0 {
		t.Error(problems)
	}
}
