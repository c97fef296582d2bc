package elastic

import (
	"net/netip"
	"time"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Block is the part of an IPAllocation of a cluster that decisions here depend on.
type Block struct {
	Name   string
	Family Family
	// Count is the number of addresses that it has, or requests.
	Count int64
	// Range is its range, invalid while it has none.
	Range netipx.IPRange
	// AddedOnDemand reports whether it was added on demand; other blocks stay. Pinned reports whether its range is
	// pinned; a pinned block stays, too.
	AddedOnDemand, Pinned bool
	// Deleting reports whether it is being deleted.
	Deleting bool
	// Draining reports whether it is being withdrawn from the cluster. Draining can still end, and the cluster then
	// keeps the block.
	Draining bool
	// Emptied reports whether it has a pool of its own that was seen to serve no Service any more.
	Emptied bool
	// IdleSince is the time since when no Service has, or is about to get, any of its addresses; zero if the block is
	// in use.
	IdleSince time.Time
}

// isRemovable reports whether a block is withdrawn when no Service needs it.
func (b *Block) isRemovable() bool { return b.AddedOnDemand && !b.Pinned }

// hasAnyAddress reports whether a block contains any of the used addresses.
func (b *Block) hasAnyAddress(used map[netip.Addr]struct{}) bool {
	for a := range used {
		if b.Range.Contains(a) {
			return true
		}
	}
	return false
}

// isDrainingOrDeleting reports whether a block is being withdrawn, permanently or temporarily.
func (b *Block) isDrainingOrDeleting() bool { return b.Deleting || b.Draining }

// CountFreeAddresses returns the number of addresses that a cluster may use and that are not used.
func CountFreeAddresses(blocks []Block, used map[netip.Addr]struct{}) int64 {
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
