package grants

import (
	"net/netip"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

// A set of held ranges finds the same ranges as a netipx.IPSet, for both IP families.
func TestHeldRangesAgainstSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := func(label string) netipx.IPRange {
			ip := netip.AddrFrom4([4]byte{10, 0, 0, 0})
			if rapid.Bool().Draw(t, label+" is of IPv6") {
				ip = netip.MustParseAddr("2001:db8::")
			}
			last := ip.AsSlice()
			last[len(last)-1] = rapid.Byte().Draw(t, label+" begins")
			from, _ := netip.AddrFromSlice(last)
			last[len(last)-1] = max(last[len(last)-1], rapid.Byte().Draw(t, label+" ends"))
			to, _ := netip.AddrFromSlice(last)
			return netipx.IPRangeFrom(from, to)
		}
		var b netipx.IPSetBuilder
		for range rapid.IntRange(0, 9).Draw(t, "ranges") {
			b.AddRange(drawn("range"))
		}
		set, err := b.IPSet()
		if err != nil {
			t.Fatal(err)
		}
		asked := drawn("asked")
		if got, want := append(heldRangeSet{}, set.Ranges()...).containsRange(asked), set.ContainsRange(asked); got != want {
			t.Errorf("%v holds %v: %v", set.Ranges(), asked, got)
		}
	})
	if !heldRangeSet(nil).containsRange(netipx.IPRangeFrom(netip.AddrFrom4([4]byte{1}), netip.AddrFrom4([4]byte{2}))) {
		t.Error("a pool that is not there gives nothing")
	}
}
