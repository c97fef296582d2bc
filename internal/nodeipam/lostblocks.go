package nodeipam

import (
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
)

// A block is lost if its IPAllocation is gone, by force or by a restore, while it is open on record. Another block
// replaces it: that requests the same addresses from the same pool and, where something else has the name by now, under
// another name.

// replacementForBlock returns the name of the block that has the addresses of an open one that is lost; "" means that
// none has, or that it is not lost.
func (kb *knownBlocks) replacementForBlock(on fence.OpenRange) string {
	if !kb.isBlockLost(on) {
		return ""
	}
	for name, b := range kb.byName {
		if b.GrantedPrefix() == on.CIDRs[0] && kb.ranges.isFromSamePool(on, b) {
			return name
		}
	}
	return ""
}

// isReplacementRequested reports whether a block requests the addresses of an open one, or has a record of them.
func (kb *knownBlocks) isReplacementRequested(on fence.OpenRange) bool {
	for _, b := range kb.byName {
		asks := b.PinnedPrefix == on.CIDRs[0] || slices.Contains(b.RecordedPrefixes(), on.CIDRs[0])
		if asks && !b.Deleting && kb.ranges.isFromSamePool(on, b) {
			return true
		}
	}
	return false
}

// matchesOpenBlock reports whether an open entry belongs to the block of its name: the block has its addresses, or has
// none and is the one that had them.
func matchesOpenBlock(on fence.OpenRange, b Block) bool {
	return b.GrantedPrefix() == on.CIDRs[0] || (!b.GrantedPrefix().IsValid() && b.UID == on.UID)
}

// isOpenBlock reports whether a block is the open one of its name. A block that requests the addresses of an open one
// because that is lost is not.
func (kb *knownBlocks) isOpenBlock(b Block) bool {
	on, ok := kb.openBlockByName(b.Name)
	return ok && (on.UID == b.UID || slices.Contains(b.RecordedPrefixes(), on.CIDRs[0]))
}

// isReplacement reports whether a block requests the addresses of an open one that is lost.
func (kb *knownBlocks) isReplacement(b Block) bool {
	if !b.PinnedPrefix.IsValid() {
		return false
	}
	for _, on := range kb.open {
		if b.PinnedPrefix == on.CIDRs[0] && kb.isBlockLost(on) && kb.ranges.isFromSamePool(on, b) {
			return true
		}
	}
	return false
}

// isBlockLost reports whether the IPAllocation of an open block is gone, as far as is known, or does not have its
// addresses.
func (kb *knownBlocks) isBlockLost(on fence.OpenRange) bool {
	b, there := kb.byName[on.Name]
	return !there || b.GrantedPrefix() != on.CIDRs[0]
}

// isPrefixReplaced reports whether another block of the same pool has a prefix of a block, is open with it on record,
// and stays.
func (kb *knownBlocks) isPrefixReplaced(b Block, p netip.Prefix) bool {
	for _, on := range kb.open {
		by := kb.byName[on.Name]
		if on.CIDRs[0] == p && by.GrantedPrefix() == p && by.UID == on.UID && by.UID != b.UID && by.PoolRef == b.PoolRef && by.HasFinalizer && !by.Deleting {
			return true
		}
	}
	return false
}

// openBlockByName returns the entry of an open block in the state on record; false means that it is not open.
func (kb *knownBlocks) openBlockByName(name string) (fence.OpenRange, bool) {
	on, ok := kb.open[name]
	return on, ok
}
