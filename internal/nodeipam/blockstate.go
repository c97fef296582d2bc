package nodeipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// cacheLagTimeout is how long a block counts as existing that a live read, or the answer to a request, has shown, and
// the watch has not.
const cacheLagTimeout = 30 * time.Second

// setBlocks sets the blocks that the watch shows. What a live read has shown since takes precedence.
func (m *nodeState) setBlocks(all []Block, now time.Time) {
	next := make(map[string]Block, len(all))
	for name, b := range m.blocks {
		if m.notYetInCache[b.UID].After(now) {
			next[name] = b
		}
	}
	for _, b := range all {
		old, known := m.blocks[b.Name]
		switch newer := known && term.IsNewerVersion(old.ResourceVersion, b.ResourceVersion); {
		case newer && old.UID == b.UID:
			b = old // a live read has shown a later version
		case newer && m.notYetInCache[old.UID].After(now):
			continue // that block is gone
		}
		delete(m.notYetInCache, b.UID)
		next[b.Name] = b.withHistory(old)
	}
	m.blocks = next
	there := map[types.UID]bool{}
	for _, b := range next {
		there[b.UID] = true
	}
	for _, times := range []map[types.UID]time.Time{m.idleSince, m.notYetInCache} {
		maps.DeleteFunc(times, func(uid types.UID, _ time.Time) bool { return !there[uid] })
	}
	for _, known := range []map[types.UID]bool{m.verifiedLive, m.closedInTerm} {
		maps.DeleteFunc(known, func(uid types.UID, _ bool) bool { return !there[uid] })
	}
	maps.DeleteFunc(m.conflictingNames, func(_ string, until time.Time) bool { return !until.After(now) })
	m.updateRangeBlocks()
}

// recordLiveBlock records a block that a live read, or the answer to a request, has shown.
func (m *nodeState) recordLiveBlock(b Block, now time.Time) {
	old := m.blocks[b.Name]
	if old.UID != b.UID {
		m.notYetInCache[b.UID] = now.Add(cacheLagTimeout)
	}
	m.blocks[b.Name] = b.withHistory(old)
	m.verifiedLive[b.UID] = true
	delete(m.missingNames, b.Name)
	m.updateRangeBlocks()
}

// setOpenRanges sets the open ranges of the state on record.
func (m *nodeState) setOpenRanges(open []fence.OpenRange) {
	m.openRanges, m.nextOpenBlocks = open, nil
	m.openBlocks = map[string]fence.OpenRange{}
	for _, o := range open {
		if o.ClusterCIDRName != "" {
			m.nextOpenBlocks = append(m.nextOpenBlocks, o)
			m.openBlocks[o.Name] = o
		}
	}
	m.updateRangeBlocks()
}

// openBlockByName returns the entry of an open block in the state on record; false means that it is not open.
func (m *nodeState) openBlockByName(name string) (fence.OpenRange, bool) {
	on, ok := m.openBlocks[name]
	return on, ok
}

// updateRangeBlocks sets on each range which blocks it has, and which of them may be granted from: those that are open.
// A manager that is not the holder does not know which are open, and assumes that each block is open that can be.
func (m *nodeState) updateRangeBlocks() {
	less, blocks := false, m.blocksByObject()
	for _, o := range m.rangeObjects {
		for f, source := range o.BlockSources {
			if source == nil || o.Range == nil {
				continue
			}
			all, allocatable := m.prefixesForFamily(o, podcidr.Family(f), blocks[o.Name])
			old := o.Range.AllocatableCIDRs(podcidr.Family(f))
			if slices.Equal(allocatable, old) && slices.Equal(all, o.Range.CIDRsForFamily(podcidr.Family(f))) {
				continue
			}
			less = less || slices.ContainsFunc(old, func(p netip.Prefix) bool { return !slices.Contains(allocatable, p) })
			o.Range.SetBlocks(podcidr.Family(f), all, allocatable)
			delete(m.uselessRanges, o.Range)
			m.invalidateUsage()
			m.requeueRefused()
		}
	}
	if less {
		m.rebuildAllocations() // the allocations track what may be granted from
	}
}

// blocksByObject returns the blocks by the name of the object that they are for.
func (m *nodeState) blocksByObject() map[string][]Block {
	out := map[string][]Block{}
	for _, b := range m.blocks {
		on, _ := m.openBlockByName(b.Name)
		of := cmp.Or(on.ClusterCIDRName, b.ClusterCIDRName)
		out[of] = append(out[of], b)
	}
	return out
}

func (m *nodeState) prefixesForFamily(o RangeObject, f podcidr.Family, blocks []Block) (all, allocatable []netip.Prefix) {
	for _, on := range m.openBlocks {
		if on.ClusterCIDRName == o.Name && podcidr.FamilyForPrefix(on.CIDRs[0]) == f {
			all = append(all, on.CIDRs[0])
		}
	}
	for _, b := range blocks {
		if !b.GrantedPrefix.IsValid() || podcidr.FamilyForPrefix(b.GrantedPrefix) != f {
			continue
		}
		on, open := m.openBlockByName(b.Name)
		if !slices.Contains(all, b.GrantedPrefix) {
			all = append(all, b.GrantedPrefix)
		}
		recordMatches := open && !on.Draining && slices.Equal(on.CIDRs, []netip.Prefix{b.GrantedPrefix}) && on.UID == b.UID
		if !b.Deleting && o.BlockSources[f].matchesBlock(b) && (recordMatches || !m.isHolder) {
			allocatable = append(allocatable, b.GrantedPrefix)
		}
	}
	for _, list := range [][]netip.Prefix{all, allocatable} {
		slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	}
	return all, allocatable
}

// hasBlocks reports whether an object has blocks, or may have some.
func (m *nodeState) hasBlocks(o RangeObject) bool {
	if m.ignoresBlocks {
		return false // another allocator's object may have the same name
	}
	for _, b := range m.blocks {
		if on, _ := m.openBlockByName(b.Name); cmp.Or(on.ClusterCIDRName, b.ClusterCIDRName) == o.Name {
			return true
		}
	}
	for _, on := range m.openBlocks {
		if on.ClusterCIDRName == o.Name {
			return true
		}
	}
	return false
}

// countBlockUsers returns how many Nodes have, or are granted, some of the addresses that a block has or may have:
// those on record in the ConfigMap, those of its own record, even where its status does not show them any more, and
// those that it requests, unless it is being deleted.
func (m *nodeState) countBlockUsers(b Block) int64 {
	prefixes := b.PossiblePrefixes
	if on, _ := m.openBlockByName(b.Name); on.UID == b.UID {
		prefixes = slices.Concat(on.CIDRs, b.PossiblePrefixes)
	}
	if !b.Deleting {
		prefixes = slices.Concat(prefixes, []netip.Prefix{b.PinnedPrefix})
	}
	return m.countPrefixUsers(b, prefixes)
}

// countPrefixUsers returns how many Nodes have, or are granted, some of the prefixes of a block: the maximum over the
// prefixes. A prefix that another block has taken over counts for that block only.
func (m *nodeState) countPrefixUsers(b Block, prefixes []netip.Prefix) (most int64) {
	for _, p := range prefixes {
		if p.IsValid() && (b.GrantedPrefix == p || !m.isPrefixReplaced(b, p)) {
			most = max(most, m.allocations.CountUsers(p))
		}
	}
	return most
}

// blocksToClose returns the UIDs of the blocks that are being deleted and that the next commit does not list as open.
func (m *nodeState) blocksToClose() map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, b := range m.blocks {
		if b.Deleting && !slices.ContainsFunc(m.nextOpenBlocks, func(o fence.OpenRange) bool { return o.UID == b.UID }) {
			out[b.UID] = true
		}
	}
	return out
}

// hasBlockToRelease reports whether our finalizer has to come off a block and no commit of this term shows yet that the
// block is not open: another manager may have opened it.
func (m *nodeState) hasBlockToRelease() bool {
	for _, b := range m.blocks {
		if b.Deleting && b.HasFinalizer && !m.isOpenBlock(b) && !m.closedInTerm[b.UID] && m.countBlockUsers(b) == 0 {
			return true
		}
	}
	return false
}

// hasUnknownOpenBlock reports whether a block is open on record that is unknown otherwise, while this manager has not
// held the cluster yet: the management cluster may have been restored to before the block was granted.
func (m *nodeState) hasUnknownOpenBlock(s fence.State) bool {
	return !m.ignoresBlocks && !m.wasHolder && slices.ContainsFunc(s.OpenRanges, func(o fence.OpenRange) bool {
		b, there := m.blocks[o.Name]
		return o.ClusterCIDRName != "" && (!there || (b.GrantedPrefix != o.CIDRs[0] && b.PinnedPrefix != o.CIDRs[0]))
	})
}
