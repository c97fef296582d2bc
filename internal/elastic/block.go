package elastic

import (
	"net/netip"
	"time"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
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
	// Emptied blocks have a pool of their own that was seen to serve nobody any more.
	Emptied bool
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

// leaving reports whether a block is being taken away, for good or for the time being.
func (b *Block) leaving() bool { return b.Deleting || b.Draining }

// Free is how many addresses that a cluster may use are not used.
func Free(blocks []Block, used map[netip.Addr]struct{}) int64 {
	var free int64
	for i := range blocks {
		b := &blocks[i]
		if b.Deleting || !b.Range.IsValid() {
			continue
		}
		free += poolutil.Size(b.Range)
		for addr := range used {
			if b.Range.Contains(addr) {
				free--
			}
		}
	}
	return free
}
