package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
)

// The model that porcupine checks allows one owner at a time.
func TestHistoryAllowsOneOwner(t *testing.T) {
	x := netip.MustParseAddr("10.0.0.1")
	one := netipx.IPRangeFrom(x, x)
	two := netipx.IPRangeFrom(x, x.Next())
	life := func(asked, seen, left, gone time.Duration, addresses netipx.IPRange) *tenure {
		return &tenure{pool: "p", addresses: addresses, requestedAt: asked, seenAt: seen, deletedAt: left, goneAt: gone}
	}
	for name, c := range map[string]struct {
		tenures []*tenure
		fine    bool
	}{
		"one after the other":          {[]*tenure{life(1, 2, 3, 4, one), life(5, 6, 0, 0, one)}, true},
		"asked before it was free":     {[]*tenure{life(1, 2, 5, 6, one), life(3, 9, 0, 0, one)}, true},
		"seen before its end was seen": {[]*tenure{life(1, 2, 5, 9, one), life(3, 7, 0, 0, one)}, true},
		"both at once":                 {[]*tenure{life(1, 2, 0, 0, one), life(3, 4, 0, 0, one)}, false},
		"before it was released":       {[]*tenure{life(1, 2, 8, 9, one), life(3, 4, 0, 0, one)}, false},
		"a part of a block":            {[]*tenure{life(1, 2, 8, 9, two), life(3, 4, 0, 0, one)}, false},
		"never seen":                   {[]*tenure{life(1, 2, 0, 0, one), life(3, 0, 4, 5, one)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory()
			for i, l := range c.tenures {
				h.tenures[types.UID(rune('a'+i))] = l
			}
			if got := porcupine.CheckOperations(addressModel, h.toOperations()); got != c.fine {
				t.Errorf("porcupine says %t, want %t", got, c.fine)
			}
		})
	}
}
