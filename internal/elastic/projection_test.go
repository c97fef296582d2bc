package elastic

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
)

// ranges returns the ranges of all pools, in order.
func ranges(pools []DesiredPool) (out []netipx.IPRange) {
	for _, d := range pools {
		out = append(out, d.Ranges...)
	}
	return out
}

func (b Block) emptied() Block { return b.with(func(b *Block) { b.Emptied = true }) }

// formatPools formats pools: the name, "closed" and "leaving" where they apply, and the first addresses of the
// ranges.
func formatPools(pools []DesiredPool) string {
	var out []string
	for _, d := range pools {
		parts := []string{d.Name}
		if !d.AutoAssign {
			parts = append(parts, "closed")
		}
		if d.Draining {
			parts = append(parts, "leaving")
		}
		for _, r := range d.Ranges {
			parts = append(parts, r.From().String())
		}
		out = append(out, strings.Join(parts, " "))
	}
	return strings.Join(out, "; ")
}

// TestUsableAndProjectedPools checks that all blocks of a Cluster count (B34), and that MetalLB's pools follow them
// (B47).
func TestUsableAndProjectedPools(t *testing.T) {
	first, second, third := block("a", "10.0.0.1", 1), block("b", "10.0.0.2", 1), block("c", "10.0.0.3", 1)
	tests := map[string]struct {
		reason                        string
		blocks                        []Block
		usable, shown                 string
		usableSeparate, shownSeparate string
	}{
		"None":    {reason: "there is nothing to show"},
		"Pending": {reason: "it has no addresses yet", blocks: []Block{block("a", "", 1)}},
		"Order": {
			reason: "as they came, not as they are numbered", blocks: []Block{third, first},
			usable: "pool 10.0.0.3 10.0.0.1", shown: "pool 10.0.0.3 10.0.0.1",
			usableSeparate: "c 10.0.0.3; a 10.0.0.1", shownSeparate: "c 10.0.0.3; a 10.0.0.1",
		},
		"Draining": {
			reason: "it may be needed again, after all others", blocks: []Block{first, second.draining(), third},
			usable: "pool 10.0.0.1 10.0.0.3 10.0.0.2", shown: "pool 10.0.0.1 10.0.0.3",
			usableSeparate: "a 10.0.0.1; b leaving 10.0.0.2; c 10.0.0.3", shownSeparate: "a 10.0.0.1; b closed leaving 10.0.0.2; c 10.0.0.3",
		},
		"OldestDraining": {
			reason: "a Service that finds room in another block is no reason to keep it", blocks: []Block{first.draining(), second},
			usable: "pool 10.0.0.2 10.0.0.1", shown: "pool 10.0.0.2",
			usableSeparate: "a leaving 10.0.0.1; b 10.0.0.2", shownSeparate: "a closed leaving 10.0.0.1; b 10.0.0.2",
		},
		"Emptied": {
			reason: "no Service has any of it: its pool may go", blocks: []Block{first, second.draining().emptied()},
			usable: "pool 10.0.0.1 10.0.0.2", shown: "pool 10.0.0.1",
			usableSeparate: "a 10.0.0.1; b leaving 10.0.0.2", shownSeparate: "a 10.0.0.1",
		},
		"Deleting": {
			reason: "it is given up for good; a pool of its own stays while it serves a Service", blocks: []Block{first, second.deleting()},
			usable: "pool 10.0.0.1", shown: "pool 10.0.0.1",
			usableSeparate: "a 10.0.0.1; b closed leaving 10.0.0.2", shownSeparate: "a 10.0.0.1; b closed leaving 10.0.0.2",
		},
		"DeletingEmptied": {reason: "it serves no Service", blocks: []Block{second.deleting().emptied()}},
		"AllLeaving": {
			reason: "there is no pool without a range", blocks: []Block{second.draining(), third.draining().deleting()},
			usable:         "pool 10.0.0.2",
			usableSeparate: "b leaving 10.0.0.2; c closed leaving 10.0.0.3", shownSeparate: "b closed leaving 10.0.0.2; c closed leaving 10.0.0.3",
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			one, own := Projection{SharedPool: "pool"}, Projection{SharedPool: "pool", PoolPerAllocation: true}
			got := []string{formatPools(one.UsablePools(c.blocks)), formatPools(one.ProjectedPools(c.blocks)), formatPools(own.UsablePools(c.blocks)), formatPools(own.ProjectedPools(c.blocks))}
			if diff := cmp.Diff([]string{c.usable, c.shown, c.usableSeparate, c.shownSeparate}, got); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
	if got := fmt.Sprint(Projection{SharedPool: "pool"}.GrowthPool(), "/", Projection{SharedPool: "pool", PoolPerAllocation: true}.GrowthPool()); got != "pool/" {
		t.Errorf("growth goes to %s", got)
	}
}

func TestCountFreeAddresses(t *testing.T) {
	blocks := []Block{
		block("a", "10.0.0.0-10.0.0.3", 4), block("b", "10.0.1.0", 1).draining(), block("c", "10.0.2.0", 1).deleting(), block("d", "", 8),
	}
	if got := CountFreeAddresses(blocks, usedOf("10.0.0.1 10.0.2.0 10.9.9.9")); got != 4 {
		t.Errorf("%d addresses are free, not 3 of a and 1 of b", got)
	}
}
