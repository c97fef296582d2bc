package cli

import (
	"math"
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

func TestFormatUsageBar(t *testing.T) {
	for name, c := range map[string]struct {
		percent        int
		ascii, unicode string
	}{
		"nothing":                   {0, "[----------]   0%", "          ▏  0%"},
		"something is not nothing":  {1, "[#---------]   1%", "▏         ▏  1%"},
		"a part of a character":     {23, "[##--------]  23%", "██▎       ▏ 23%"},
		"half":                      {50, "[#####-----]  50%", "█████     ▏ 50%"},
		"less than all is not full": {99, "[#########-]  99%", "█████████▉▏ 99%"},
		"all":                       {100, "[##########] 100%", "██████████▏100%"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := formatUsageBar(c.percent, false); got != c.ascii {
				t.Errorf("%q, want %q", got, c.ascii)
			}
			if got := formatUsageBar(c.percent, true); got != c.unicode {
				t.Errorf("%q, want %q", got, c.unicode)
			}
		})
	}
}

// TestPoolTableAmounts checks the counts of a pool of an IPv6 network, which may have more addresses than an int64 of
// the status can hold.
func TestPoolTableAmounts(t *testing.T) {
	for name, c := range map[string]struct {
		spec        v1alpha1.NetworkPoolSpec
		total, free string
	}{
		"of IPv4":                                {v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"}, "254", "253"},
		"of IPv6":                                {v1alpha1.NetworkPoolSpec{CIDR: "fd00:50::/64", Gateway: "fe80::1"}, ">9.2e18", ">9.2e18"},
		"the most that can be said":              {v1alpha1.NetworkPoolSpec{CIDR: "fd00:50::/65", Reserved: []v1alpha1.ReservedRange{{Addresses: "fd00:50::1"}}}, "9223372036854775806", "9223372036854775805"},
		"one more, which the name does not show": {v1alpha1.NetworkPoolSpec{CIDR: "fd00:50::/65"}, ">9.2e18", "9223372036854775806"},
	} {
		t.Run(name, func(t *testing.T) {
			layout, errs := poolspec.Compile(&c.spec)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			all := poolutil.Count{}
			for _, r := range layout.Allocatable().Ranges() {
				all = all.Plus(poolutil.CountPrefixes(r, layout.UnitBits()))
			}
			one := poolutil.CountPrefixes(netipx.IPRangeFrom(netip.IPv6Unspecified(), netip.IPv6Unspecified()), 128)
			row := inspect.PoolRow{Name: "p", Total: all.Int64(), Free: all.Minus(one).Int64()}
			cells := strings.Fields(strings.Split((&plugin{}).formatPoolTable([]inspect.PoolRow{row}), "\n")[1])
			if total, free := cells[2], cells[3]; total != c.total || free != c.free {
				t.Errorf("TOTAL %s and FREE %s, want %s and %s", total, free, c.total, c.free)
			}
		})
	}
}

func TestFreeAmounts(t *testing.T) {
	for free, want := range map[int64]string{
		1:             "1 address is free; the largest free block has 1.",
		2:             "2 addresses are free; the largest free block has 2.",
		math.MaxInt64: ">9.2e18 addresses are free; the largest free block has >9.2e18.",
	} {
		if got := (&plugin{}).formatFreeResult(freeResult{Count: 1, Fits: true, Free: free, LargestFree: free}); !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}

// TestColoursKeepColumnWidths checks that colour codes do not change the width of columns, and appear only where colour
// is wanted.
func TestColoursKeepColumnWidths(t *testing.T) {
	rows := func(e Env) string {
		tab := &table{}
		tab.addRow("NAME", "READY", "X")
		tab.addRow("a", tableCell{"True", e.green}, 1)
		return tab.String()
	}
	plain, coloured := rows(Env{}), rows(Env{Colour: true})
	if want := "NAME  READY  X\na     True   1\n"; plain != want {
		t.Errorf("%q, want %q", plain, want)
	}
	if want := "NAME  READY  X\na     \x1b[32mTrue\x1b[0m   1\n"; coloured != want {
		t.Errorf("%q, want %q", coloured, want)
	}
	if strings.Contains(plain, "\x1b") {
		t.Error("colour where there is no terminal")
	}
}
