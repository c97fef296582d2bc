package poolutil

import (
	"math"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
)

const (
	last4 = "255.255.255.255"
	last6 = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
)

func blocksOf(f *Free) []string {
	var out []string
	for r := range f.All() {
		out = append(out, FormatRange(r))
	}
	return out
}

func TestFreeEdges(t *testing.T) {
	cases := map[string]struct {
		reason string
		free   []string
		do     func(f *Free) string
		want   string
		left   []string
	}{
		"B60: the smallest that fits": {
			free: []string{"10.0.0.0/26", "10.0.1.0/28", "10.0.2.0/27"},
			do:   func(f *Free) string { return rangeOutcome(f.BestFit(12)).Got },
			want: "10.0.1.0-10.0.1.11", left: []string{"10.0.0.0/26", "10.0.1.12/30", "10.0.2.0/27"},
		},
		"B60: the lowest of one size": {
			free: []string{"10.0.3.0/28", "10.0.1.0/28", "10.0.2.0/28"},
			do:   func(f *Free) string { return rangeOutcome(f.BestFit(16)).Got },
			want: "10.0.1.0-10.0.1.15", left: []string{"10.0.2.0/28", "10.0.3.0/28"},
		},
		"B62: a pinned range splits a block": {
			free: []string{"10.0.0.0/24"},
			do: func(f *Free) string {
				return rangeOutcome(rangeOf("10.0.0.64/26"), f.Take(rangeOf("10.0.0.64/26"))).Got
			},
			want: "10.0.0.64-10.0.0.127", left: []string{"10.0.0.0/26", "10.0.0.128/25"},
		},
		"B61: a pinned range lies in one block": {
			free: []string{"10.0.0.0-10.0.0.9", "10.0.0.11-10.0.0.20"},
			do:   func(f *Free) string { return rangeOutcome(netipx.IPRange{}, f.Take(rangeOf("10.0.0.9-10.0.0.11"))).Got },
			left: []string{"10.0.0.0-10.0.0.9", "10.0.0.11-10.0.0.20"},
		},
		"F11: up to the end of IPv4": {
			free: []string{"255.255.255.0/24"},
			do: func(f *Free) string {
				f.BestFit(255)
				return rangeOutcome(f.BestFit(1)).Got
			},
			want: last4 + "-" + last4,
		},
		"the end of IPv6": {
			free: []string{last6},
			do: func(f *Free) string {
				return rangeOutcome(f.BestFit(1)).Got
			},
			want: last6 + "-" + last6,
		},
		"a /64 is more than can be asked for": {
			free: []string{"2001:db8::/64"},
			do:   func(f *Free) string { return rangeOutcome(f.BestFit(math.MaxUint64)).Got },
			want: "2001:db8::-2001:db8::ffff:ffff:ffff:fffe", left: []string{"2001:db8::ffff:ffff:ffff:ffff/128"},
		},
		"all of IPv4 as one prefix": {
			free: []string{"0.0.0.0/0"},
			do:   func(f *Free) string { return prefixText(f.BestFitPrefix(0)) },
			want: "0.0.0.0/0",
		},
		"all of IPv6 as one prefix": {
			free: []string{"::/0"},
			do:   func(f *Free) string { return prefixText(f.BestFitPrefix(0)) },
			want: "::/0",
		},
		"a prefix in an IPv6 /48": {
			free: []string{"2001:db8::1-2001:db8:0:ffff:ffff:ffff:ffff:ffff"},
			do:   func(f *Free) string { return prefixText(f.BestFitPrefix(64)) },
			want: "2001:db8:0:1::/64", left: []string{"2001:db8::1-2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:2::-2001:db8:0:ffff:ffff:ffff:ffff:ffff"},
		},
		"a prefix from a larger block": {
			reason: "the smaller block is larger than a /28 but holds none aligned",
			free:   []string{"10.0.0.1-10.0.0.30", "10.0.1.0/27"},
			do:     func(f *Free) string { return prefixText(f.BestFitPrefix(28)) },
			want:   "10.0.1.0/28", left: []string{"10.0.0.1-10.0.0.30", "10.0.1.16/28"},
		},
		"no prefix past the end of IPv6": {
			free: []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1-" + last6},
			do:   func(f *Free) string { return prefixText(f.BestFitPrefix(124)) },
			left: []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1-" + last6},
		},
		"no such prefix length": {
			free: []string{"10.0.0.0/8"},
			do:   func(f *Free) string { return prefixText(f.BestFitPrefix(33)) + prefixText(f.BestFitPrefix(-1)) },
			left: []string{"10.0.0.0/8"},
		},
		"all of IPv6, but for one address": {
			free: []string{"::/0"},
			do: func(f *Free) string {
				f.TakeAny(rangeOf("8000::"))
				return ""
			},
			left: []string{"::/1", "8000::1-" + last6},
		},
		"all of IPv6, taken and put back": {
			free: []string{"::/0"},
			do: func(f *Free) string {
				f.TakeAny(rangeOf("::/0"))
				f.Put(rangeOf("8000::/1"))
				f.Put(rangeOf("::/1"))
				return ""
			},
			left: []string{"::/0"},
		},
		"the other family is not free": {
			free: []string{"::/0"},
			do: func(f *Free) string {
				r := rangeOf("10.0.0.0/8")
				f.TakeAny(r)
				if f.Take(r) {
					return "free"
				}
				return ""
			},
			left: []string{"::/0"},
		},
		"what is not valid is not free": {
			free: []string{"fe80::/64"},
			do: func(f *Free) string {
				var r netipx.IPRange
				f.TakeAny(r)
				if f.Take(r) {
					return "free"
				}
				return ""
			},
			left: []string{"fe80::/64"},
		},
		"an empty one takes either family": {
			do: func(f *Free) string {
				f.Put(rangeOf("10.0.0.0/31"))
				f.TakeAny(rangeOf("10.0.0.0/31"))
				f.Put(rangeOf("2001:db8::/127"))
				return ""
			},
			left: []string{"2001:db8::/127"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := NewFree(setOf(tc.free...))
			got := tc.do(f)
			if diff := cmp.Diff([]any{tc.want, tc.left}, []any{got, blocksOf(f)}); diff != "" {
				t.Errorf("%s\nresult, left (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func prefixText(p netip.Prefix, ok bool) string {
	if !ok {
		return ""
	}
	return p.String()
}

func TestFreeStats(t *testing.T) {
	cases := map[string]struct {
		free          []string
		size, largest int64
		blocks        int
		percent       int32
	}{
		"nothing":                  {},
		"B63: a single block":      {free: []string{"10.0.0.0/24"}, size: 256, largest: 256, blocks: 1},
		"B63: two halves":          {free: []string{"10.0.0.0/24", "10.0.2.0/24"}, size: 512, largest: 256, blocks: 2, percent: 50},
		"B63: rounded down":        {free: []string{"10.0.0.0/24", "10.0.2.0"}, size: 257, largest: 256, blocks: 2},
		"B63: a third":             {free: []string{"10.0.0.0/31", "10.0.2.0"}, size: 3, largest: 2, blocks: 2, percent: 33},
		"F11: all of IPv4":         {free: []string{"0.0.0.0/0"}, size: 1 << 32, largest: 1 << 32, blocks: 1},
		"IPv6 /64":                 {free: []string{"2001:db8::/64"}, size: math.MaxInt64, largest: math.MaxInt64, blocks: 1},
		"IPv6 /64s":                {free: []string{"2001:db8::/64", "2001:db8:1::/64", "2001:db8:2::/64"}, size: math.MaxInt64, largest: math.MaxInt64, blocks: 3, percent: 66},
		"sum saturates":            {free: []string{"2001:db8::/66", "2001:db8:1::/66"}, size: math.MaxInt64, largest: 1 << 62, blocks: 2, percent: 50},
		"all of IPv6":              {free: []string{"::/0"}, size: math.MaxInt64, largest: math.MaxInt64, blocks: 1},
		"most of IPv6, and halves": {free: []string{"::-7fff::", "8000::-" + last6}, size: math.MaxInt64, largest: math.MaxInt64, blocks: 2, percent: 49},
		"IPv6 and a crumb":         {free: []string{"::/1", last6}, size: math.MaxInt64, largest: math.MaxInt64, blocks: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := NewFree(setOf(tc.free...))
			want := []any{tc.size, tc.largest, tc.blocks, tc.percent, tc.blocks == 0}
			got := []any{freeCount(f), f.Largest(), f.Blocks(), f.FragmentationPercent(), f.Empty()}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("size, largest, blocks, fragmentation, empty (-want +got):\n%s", diff)
			}
		})
	}
	if f := NewFree(nil); !f.Empty() {
		t.Error("no set is not empty")
	}
}

// TestPutPanics checks that an impossible state stops the program instead of handing out an address twice, and that a
// failed Put changes nothing.
func TestPutPanics(t *testing.T) {
	for name, r := range map[string]netipx.IPRange{
		"all free already": rangeOf("10.0.0.4/30"),
		"first free":       rangeOf("10.0.0.15-10.0.0.20"),
		"last free":        rangeOf("9.255.255.0-10.0.0.0"),
		"around":           rangeOf("10.0.0.16-10.0.1.255"),
		"other family":     rangeOf("2001:db8::/64"),
		"not valid":        {},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewFree(setOf("10.0.0.0/28", "10.0.1.0/28"))
			if !panics(func() { f.Put(r) }) {
				t.Errorf("Put(%s) did not panic", r)
			}
			want := NewFree(setOf("10.0.0.0/28", "10.0.1.0/28"))
			if diff := cmp.Diff(statsOf(want), statsOf(f)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if !panics(func() { NewFree(setOf("10.0.0.0/8", "::/0")) }) {
		t.Error("NewFree took both families")
	}
}

// TestNoAllocationsInOneBlock checks that no tree becomes empty while the only block shrinks or grows: it would allocate
// its root again.
func TestNoAllocationsInOneBlock(t *testing.T) {
	f := NewFree(setOf("10.0.0.0/30"))
	if n := testing.AllocsPerRun(1000, func() {
		r, _ := f.BestFit(1)
		p, _ := f.BestFitPrefix(31)
		f.Put(netipx.RangeOfPrefix(p))
		f.Put(r)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
