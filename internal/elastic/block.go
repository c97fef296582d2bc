package elastic

import (
	"net/netip"
	"time"

	"go4.org/netipx"
)

// Block is what matters here of an IPAllocation of a cluster.
type Block struct {
	Name   string
	Family Family
	// Count of addresses it has, or asks for.
	Count int64
	// Range it has, invalid while it has none.
	Range netipx.IPRange
	// Grown blocks were added on demand. Others stay, as do pinned ones.
	Grown, Pinned bool
	// Deleting blocks are given up for good.
	Deleting bool
	// Draining blocks are being taken away from the cluster. They may still be given back to it.
	Draining bool
	// IdleSince is since when no Service has, or is about to be given, any of its addresses; zero: one has.
	IdleSince time.Time
}

// mayGo reports whether a block is one that is given up when nobody needs it.
func (b *Block) mayGo() bool { return b.Grown && !b.Pinned }

// held reports whether a block has any of some addresses.
func (b *Block) held(used map[netip.Addr]struct{}) bool {
	for a := range used {
		if b.Range.Contains(a) {
			return true
		}
	}
	return false
}

// Living are the ranges of the blocks that a cluster may use: those that are shown, in their order, and then those
// that are being taken away. Only who finds nothing else is a reason to keep one of these.
func Living(blocks []Block) []netipx.IPRange {
	return append(Shown(blocks), ranges(blocks, func(b *Block) bool { return !b.Deleting && b.Draining })...)
}

// Shown are the ranges that a cluster's pools are to show: those of the blocks that are not being taken away.
func Shown(blocks []Block) []netipx.IPRange {
	return ranges(blocks, func(b *Block) bool { return !b.Deleting && !b.Draining })
}

func ranges(blocks []Block, want func(*Block) bool) []netipx.IPRange {
	var out []netipx.IPRange
	for i := range blocks {
		if b := &blocks[i]; b.Range.IsValid() && want(b) {
			out = append(out, b.Range)
		}
	}
	return out
}
