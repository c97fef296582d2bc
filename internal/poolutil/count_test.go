package poolutil

import (
	"math"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

func TestCountPrefixes(t *testing.T) {
	cases := map[string]struct {
		in     string
		length int
		want   int64
	}{
		"one prefix":                {in: "10.0.0.16/28", length: 28, want: 1},
		"several":                   {in: "10.0.0.16-10.0.0.63", length: 28, want: 3},
		"addresses":                 {in: "10.0.0.1-10.0.0.9", length: 32, want: 9},
		"F11: all of IPv4":          {in: "0.0.0.0/0", length: 32, want: 1 << 32},
		"F11: all of IPv4, by 24":   {in: "0.0.0.0/0", length: 24, want: 1 << 24},
		"F11: as one":               {in: "0.0.0.0/0", length: 0, want: 1},
		"F11: the last of IPv4":     {in: "255.255.255.240/28", length: 28, want: 1},
		"IPv6 addresses":            {in: "fd00::1-fd00::9", length: 128, want: 9},
		"where the halves meet":     {in: "fd00:0:0:ffff::-fd00:0:1:0:ffff:ffff:ffff:ffff", length: 64, want: 2},
		"longer than half":          {in: "fd00::ffff:ffff:ffff:0-fd00:0:0:1::ffff", length: 112, want: 2},
		"shorter than half":         {in: "fd00::/8", length: 56, want: 1 << 48},
		"all of IPv6, as one":       {in: "::/0", length: 0, want: 1},
		"the last of IPv6":          {in: last6, length: 128, want: 1},
		"2^62":                      {in: "c000::/2", length: 64, want: 1 << 62},
		"2^63 is one too many":      {in: "8000::/1", length: 64, want: math.MaxInt64},
		"2^63-1":                    {in: "::-7fff:ffff:ffff:fffe:ffff:ffff:ffff:ffff", length: 64, want: math.MaxInt64},
		"2^63-2":                    {in: "::-7fff:ffff:ffff:fffd:ffff:ffff:ffff:ffff", length: 64, want: math.MaxInt64 - 1},
		"2^64":                      {in: "::/0", length: 64, want: math.MaxInt64},
		"2^128":                     {in: "::/0", length: 128, want: math.MaxInt64},
		"a length IPv4 has not got": {in: "10.0.0.0/31", length: 64, want: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := CountPrefixes(rangeOf(tc.in), tc.length).Int64(); got != tc.want {
				t.Errorf("CountPrefixes(%s, %d) = %d, want %d", tc.in, tc.length, got, tc.want)
			}
		})
	}
	backwards := netipx.IPRangeFrom(rangeOf("10.0.0.64").From(), rangeOf("10.0.0.31").To())
	for _, r := range []netipx.IPRange{{}, backwards} {
		for _, length := range []int{0, 28, 32, 128} {
			if got := CountPrefixes(r, length).Int64(); got != 0 {
				t.Errorf("CountPrefixes(%v, %d) = %d, and it is no range", r, length, got)
			}
		}
	}
}

// TestCountPrefixesAgainstBestFit checks that as many prefixes are counted as can be taken one by one.
func TestCountPrefixesAgainstBestFit(t *testing.T) {
	for _, universe := range universes {
		t.Run(universe, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newOracle(rangeOf(universe))
				i := rapid.IntRange(0, len(w.addrs)-1).Draw(t, "from")
				n := rapid.IntRange(1, len(w.addrs)-i).Draw(t, "n")
				length := w.addrs[0].BitLen() - rapid.IntRange(0, 4).Draw(t, "host bits")
				whole, err := TrimToPrefixes(setOf(w.span(i, n).String()), length)
				if err != nil {
					t.Fatal(err)
				}
				var counted, taken int64
				for _, r := range whole.Ranges() {
					counted += CountPrefixes(r, length).Int64()
				}
				for f := NewFree(whole); !f.Empty(); taken++ {
					if _, ok := f.BestFitPrefix(length); !ok {
						t.Fatalf("%v are left of whole prefixes", blocksOf(f))
					}
				}
				if counted != taken {
					t.Fatalf("%d prefixes are counted in %v, %d can be taken", counted, whole.Ranges(), taken)
				}
				if free := NewFree(setOf(w.span(i, n).String())).Prefixes(length).Int64(); free != taken {
					t.Fatalf("%d prefixes are free in %v, %d can be taken", free, whole.Ranges(), taken)
				}
			})
		})
	}
}

func TestLargestBlock(t *testing.T) {
	cases := map[string]struct {
		free []string
		want string
	}{
		"nothing is free":     {},
		"one address":         {free: []string{"10.0.0.5"}, want: "10.0.0.5-10.0.0.5"},
		"not the last":        {free: []string{"10.0.0.0/28", "10.0.1.0/29"}, want: "10.0.0.0-10.0.0.15"},
		"not the first":       {free: []string{"10.0.0.0/29", "10.0.1.0/28"}, want: "10.0.1.0-10.0.1.15"},
		"by one address":      {free: []string{"10.0.0.0-10.0.0.8", "10.0.1.0/29"}, want: "10.0.0.0-10.0.0.8"},
		"F11: end of IPv4":    {free: []string{"10.0.0.0/29", "255.255.255.240/28"}, want: "255.255.255.240-" + last4},
		"F11: all of IPv4":    {free: []string{"0.0.0.0/0"}, want: "0.0.0.0-" + last4},
		"all of IPv6":         {free: []string{"::/0"}, want: "::-" + last6},
		"beyond what counts":  {free: []string{"2001:db8::/64", "2001:db9::/63"}, want: "2001:db9::-2001:db9:0:1:ffff:ffff:ffff:ffff"},
		"end of IPv6":         {free: []string{"::/126", last6}, want: "::-::3"},
		"the end, by one":     {free: []string{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127"}, want: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-" + last6},
		"where halves differ": {free: []string{"::1:0:0:0:0/64", "2001:db8::/65"}, want: "0:0:0:1::-::1:ffff:ffff:ffff:ffff"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := NewFree(setOf(tc.free...))
			r, ok := f.LargestBlock()
			if got := rangeOutcome(r, ok).Got; got != tc.want || ok != (tc.want != "") {
				t.Fatalf("LargestBlock = %q, %v, want %q", got, ok, tc.want)
			}
			if f.Largest() != Size(r) {
				t.Errorf("Largest = %d, the largest block has %d", f.Largest(), Size(r))
			}
		})
	}
	f := NewFree(setOf("10.0.0.0/28", "10.0.1.0/29"))
	f.Take(rangeOf("10.0.0.4"))
	if r, _ := f.LargestBlock(); r != rangeOf("10.0.0.5-10.0.0.15") {
		t.Errorf("after a part of it is taken the largest block is %s", r)
	}
	f.Take(rangeOf("10.0.0.5-10.0.0.15"))
	if r, _ := f.LargestBlock(); r != rangeOf("10.0.1.0/29") {
		t.Errorf("after it is taken the largest block is %s", r)
	}
}
