package poolspec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"k8s.io/utils/ptr"
)

func holder(name, text string) Holder {
	r, err := netipx.ParseIPRange(text)
	if err != nil {
		r = netipx.MustParseIPRange(text + "-" + text)
	}
	return Holder{Kind: "IPAddressClaim", Namespace: "ns", Name: name, Range: r}
}

// TestValidateNoCutOff checks that a change that cuts off addresses in use is refused (U23).
func TestValidateNoCutOff(t *testing.T) {
	whole := spec{CIDR: "10.0.0.0/24"}
	tests := map[string]struct {
		reason    string
		old, next spec
		invalid   bool // the old spec does not compile
		holders   []Holder
		want      string // the named holders; empty if the change is allowed
	}{
		"Shrink": {
			reason: "who would lose an address is named",
			old:    whole, next: spec{CIDR: "10.0.0.0/25"},
			holders: []Holder{holder("a", "10.0.0.9"), holder("b", "10.0.0.200")},
			want:    "10.0.0.200 (IPAddressClaim ns/b)",
		},
		"Reserve": {
			reason: "a reservation takes away too",
			old:    whole, next: spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.8/29")},
			holders: []Holder{holder("a", "10.0.0.9")},
			want:    "10.0.0.9 (IPAddressClaim ns/a)",
		},
		"Gateway": {
			reason: "so does a gateway",
			old:    whole, next: spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.9"},
			holders: []Holder{holder("a", "10.0.0.9")},
			want:    "10.0.0.9 (IPAddressClaim ns/a)",
		},
		"ReserveFree": {
			reason: "what no claim holds may go",
			old:    whole, next: spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.8/29")},
			holders: []Holder{holder("a", "10.0.0.90")},
		},
		"OutsideBefore": {
			reason: "what was outside before loses nothing by this change",
			old:    whole, next: spec{CIDR: "10.0.0.0/25"},
			holders: []Holder{holder("a", "10.9.0.9"), holder("b", "10.0.0.0")},
		},
		"InvalidBefore": {
			reason:  "of a spec that could not be read, everything in use counts",
			invalid: true, next: spec{CIDR: "10.0.0.0/25"},
			holders: []Holder{holder("a", "10.9.0.9")},
			want:    "10.9.0.9 (IPAddressClaim ns/a)",
		},
		"Pinned": {
			reason: "a holder keeps its reserved address if it is pinned to its name",
			old:    whole, next: spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.8/29"), PreAllocations: map[string]string{"a": "10.0.0.9"}},
			holders: []Holder{holder("a", "10.0.0.9")},
		},
		"PinnedToAnother": {
			reason: "and not if it is pinned to another name",
			old:    whole, next: spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.8/29"), PreAllocations: map[string]string{"b": "10.0.0.9"}},
			holders: []Holder{holder("a", "10.0.0.9")},
			want:    "10.0.0.9 (IPAddressClaim ns/a)",
		},
		"PinRemoved": {
			reason: "the holder of a reserved address needs its pin",
			old:    spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.8/29"), PreAllocations: map[string]string{"a": "10.0.0.9"}},
			next:   spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.8/29")},

			holders: []Holder{holder("a", "10.0.0.9")},
			want:    "10.0.0.9 (IPAddressClaim ns/a)",
		},
		"PartOfBlock": {
			reason: "a block is covered as a whole or not",
			old:    whole, next: spec{CIDR: "10.0.0.0/25"},
			holders: []Holder{holder("a", "10.0.0.120-10.0.0.130")},
			want:    "10.0.0.120-10.0.0.130 (IPAddressClaim ns/a)",
		},
		"Prefixes": { // U14
			reason: "a reservation inside a prefix takes the prefix",
			old:    spec{CIDR: "fd00::/60", AllocationPrefixLength: ptr.To[int32](64)},
			next:   spec{CIDR: "fd00::/60", AllocationPrefixLength: ptr.To[int32](64), Reserved: reserved("fd00:0:0:1::7")},

			holders: []Holder{holder("a", "fd00:0:0:1::-fd00::1:ffff:ffff:ffff:ffff"), holder("b", "fd00:0:0:2::-fd00::2:ffff:ffff:ffff:ffff")},
			want:    "fd00:0:0:1::/64 (IPAddressClaim ns/a)",
		},
		"Many": {
			reason: "five are named, the rest is counted",
			old:    whole, next: spec{CIDR: "10.0.0.0/25"},
			holders: []Holder{holder("a", "10.0.0.201"), holder("b", "10.0.0.202"), holder("c", "10.0.0.203"), holder("d", "10.0.0.204"),
				holder("e", "10.0.0.205"), holder("f", "10.0.0.206"), holder("g", "10.0.0.207")},
			want: "10.0.0.205 (IPAddressClaim ns/e) and 2 more",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var old *Layout
			if !tc.invalid {
				old = mustCompile(t, tc.old)
			}
			next := mustCompile(t, tc.next)
			errs := ValidateNoCutOff(old, next, tc.holders)
			if tc.want == "" && len(errs) > 0 {
				t.Errorf("%s: %v", tc.reason, errs)
			}
			if tc.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Detail, tc.want)) {
				t.Errorf("%s: want an error with %q, got %v", tc.reason, tc.want, errs)
			}
			if len(errs) > 0 && !IsNarrowed(old, next) {
				t.Error("IsNarrowed must be true wherever ValidateNoCutOff can find something")
			}
		})
	}
}

func TestIsNarrowed(t *testing.T) {
	base := spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.8/29"), PreAllocations: map[string]string{"a": "10.0.0.9"}}
	tests := map[string]struct {
		reason string
		edit   func(*spec)
		want   bool
	}{
		"Same":      {reason: "no change", edit: func(*spec) {}},
		"Grow":      {reason: "more addresses", edit: func(s *spec) { s.Addresses = []string{"10.0.1.0/24"} }},
		"Free":      {reason: "a reservation less", edit: func(s *spec) { s.Reserved = nil }},
		"FreePin":   {reason: "the pin is not needed any more", edit: func(s *spec) { s.Reserved, s.PreAllocations = nil, nil }},
		"Reserve":   {reason: "a reservation more", edit: func(s *spec) { s.Reserved = reserved("10.0.0.0/28") }, want: true},
		"Unpin":     {reason: "a reserved address is granted to no claim now", edit: func(s *spec) { s.PreAllocations = nil }, want: true},
		"Repin":     {reason: "it is another's now", edit: func(s *spec) { s.PreAllocations = map[string]string{"b": "10.0.0.9"} }, want: true},
		"OtherUnit": {reason: "all that is held has another size", edit: func(s *spec) { s.AllocationPrefixLength, s.PreAllocations = ptr.To[int32](30), nil }, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := *base.DeepCopy()
			tc.edit(&s)
			if diff := cmp.Diff(tc.want, IsNarrowed(mustCompile(t, base), mustCompile(t, s))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
