package nodeipam

import (
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// A block is lost if its IPAllocation is gone, by force or by a restore, while it is open on record. Another block
// replaces it: that requests the same addresses from the same pool and, where something else has the name by now, under
// another name.

// replacementForBlock returns the name of the block that has the addresses of an open one that is lost; "" means that
// none has, or that it is not lost.
func (m *nodeState) replacementForBlock(on fence.OpenRange) string {
	if !m.isBlockLost(on) {
		return ""
	}
	for name, b := range m.blocks {
		if b.GrantedPrefix == on.CIDRs[0] && m.isFromSamePool(on, b) {
			return name
		}
	}
	return ""
}

// isReplacementRequested reports whether a block requests the addresses of an open one, or has a record of them.
func (m *nodeState) isReplacementRequested(on fence.OpenRange) bool {
	for _, b := range m.blocks {
		asks := b.PinnedPrefix == on.CIDRs[0] || slices.Contains(b.PossiblePrefixes, on.CIDRs[0])
		if asks && !b.Deleting && m.isFromSamePool(on, b) {
			return true
		}
	}
	return false
}

// matchesOpenBlock reports whether an open entry belongs to the block of its name: the block has its addresses, or has
// none and is the one that had them.
func matchesOpenBlock(on fence.OpenRange, b Block) bool {
	return b.GrantedPrefix == on.CIDRs[0] || (!b.GrantedPrefix.IsValid() && b.UID == on.UID)
}

// isOpenBlock reports whether a block is the open one of its name. A block that requests the addresses of an open one
// because that is lost is not.
func (m *nodeState) isOpenBlock(b Block) bool {
	on, ok := m.openBlockByName(b.Name)
	return ok && (on.UID == b.UID || slices.Contains(b.PossiblePrefixes, on.CIDRs[0]))
}

// isReplacement reports whether a block requests the addresses of an open one that is lost.
func (m *nodeState) isReplacement(b Block) bool {
	if !b.PinnedPrefix.IsValid() {
		return false
	}
	for _, on := range m.openBlocks {
		if b.PinnedPrefix == on.CIDRs[0] && m.isBlockLost(on) && m.isFromSamePool(on, b) {
			return true
		}
	}
	return false
}

// isBlockLost reports whether the IPAllocation of an open block is gone, as far as is known, or does not have its
// addresses.
func (m *nodeState) isBlockLost(on fence.OpenRange) bool {
	b, there := m.blocks[on.Name]
	return !there || b.GrantedPrefix != on.CIDRs[0]
}

// isFromSamePool reports whether a block is from the same pool as an open one: the same addresses of another pool are
// different addresses.
func (m *nodeState) isFromSamePool(on fence.OpenRange, b Block) bool {
	for _, o := range m.rangeObjects {
		if source := o.BlockSources[podcidr.FamilyForPrefix(on.CIDRs[0])]; o.Name == on.ClusterCIDRName && source != nil && source.PoolRef == b.PoolRef {
			return true
		}
	}
	return false
}

// isPrefixReplaced reports whether another block of the same pool has a prefix of a block, is open with it on record,
// and stays.
func (m *nodeState) isPrefixReplaced(b Block, p netip.Prefix) bool {
	for _, on := range m.openBlocks {
		by := m.blocks[on.Name]
		if on.CIDRs[0] == p && by.GrantedPrefix == p && by.UID == on.UID && by.UID != b.UID && by.PoolRef == b.PoolRef && by.HasFinalizer && !by.Deleting {
			return true
		}
	}
	return false
}
