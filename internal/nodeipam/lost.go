package nodeipam

import (
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// A block is lost whose IPAllocation is gone by force, or by a restore, while it is open on record. Another one takes its place: it
// asks the same pool for the same addresses and, where something else has the name by now, under another name.

// replacementOf is the block that has the addresses of an open one which is lost; "": none has, or it is not lost.
func (m *memory) replacementOf(on fence.Open) string {
	if !m.isLost(on) {
		return ""
	}
	for name, b := range m.blocks {
		if b.Prefix == on.CIDRs[0] && m.isOfItsPool(on, b) {
			return name
		}
	}
	return ""
}

// isAskedFor reports whether a block asks for the addresses of an open one, or has a record of them.
func (m *memory) isAskedFor(on fence.Open) bool {
	for _, b := range m.blocks {
		asks := b.Pinned == on.CIDRs[0] || slices.Contains(b.Had, on.CIDRs[0])
		if asks && !b.Deleting && m.isOfItsPool(on, b) {
			return true
		}
	}
	return false
}

// isEntryOf reports whether an entry of what is open is of the block of its name: that has its addresses, or has none and is the one that
// had them.
func isEntryOf(on fence.Open, b Block) bool {
	return b.Prefix == on.CIDRs[0] || (!b.Prefix.IsValid() && b.UID == on.UID)
}

// isOpenBlock reports whether a block is the open one of its name: what asks for the addresses of that, as it is lost, is not.
func (m *memory) isOpenBlock(b Block) bool {
	on, is := m.opened(b.Name)
	return is && (on.UID == b.UID || slices.Contains(b.Had, on.CIDRs[0]))
}

// replaces reports whether a block asks for the addresses of an open one that is lost.
func (m *memory) replaces(b Block) bool {
	if !b.Pinned.IsValid() {
		return false
	}
	for _, on := range m.openBlocks {
		if b.Pinned == on.CIDRs[0] && m.isLost(on) && m.isOfItsPool(on, b) {
			return true
		}
	}
	return false
}

// isLost reports whether the IPAllocation of an open block is gone, as far as is known, or does not have its addresses.
func (m *memory) isLost(on fence.Open) bool {
	b, there := m.blocks[on.Name]
	return !there || b.Prefix != on.CIDRs[0]
}

// isOfItsPool reports whether a block is of the pool that an open one is of: the same addresses of another pool are others.
func (m *memory) isOfItsPool(on fence.Open, b Block) bool {
	for _, o := range m.objects {
		if source := o.Sources[podcidr.FamilyOf(on.CIDRs[0])]; o.Name == on.For && source != nil && source.Pool == b.Pool {
			return true
		}
	}
	return false
}

// isTakenOver reports whether another block of the pool of a block has a prefix, is open with it on record, and stays.
func (m *memory) isTakenOver(b Block, p netip.Prefix) bool {
	for _, on := range m.openBlocks {
		by := m.blocks[on.Name]
		if on.CIDRs[0] == p && by.Prefix == p && by.UID == on.UID && by.UID != b.UID && by.Pool == b.Pool && by.Protected && !by.Deleting {
			return true
		}
	}
	return false
}
