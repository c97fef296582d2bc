package nodeipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// knownBlocks are the blocks that the cluster has from pools, as they exist and as they are open on record, and what
// each range has of them. Either may have a block that the other has not: one that is lost, or one that is not open
// yet.
type knownBlocks struct {
	// ignored reports whether the allocator manages no blocks, so that those on record are of another allocator of the
	// cluster.
	ignored bool
	byName  map[string]Block
	// notYetInCache are the blocks that the watch has not shown yet, with the time until which that is awaited.
	notYetInCache map[types.UID]time.Time
	// verifiedLive are the blocks that a live read has shown in this term; missingNames are the names of open blocks
	// that a live read has not found; closedInTerm are the blocks that were being deleted when this manager committed,
	// in its term, that they are not open.
	verifiedLive, closedInTerm map[types.UID]bool
	missingNames               map[string]bool
	// idleSince is the time since which no Node uses a block; idleGracePeriod is how long an idle block stays.
	idleSince       map[types.UID]time.Time
	idleGracePeriod time.Duration
	// open are the blocks that are open on record, by name; nextOpen are those that the next commit lists as open.
	// openChanged reports whether a commit has changed the open ranges since the blocks were last reconciled.
	open        map[string]fence.OpenRange
	nextOpen    []fence.OpenRange
	openChanged bool

	cluster *servedCluster
	ranges  *knownRanges
	term    *termState
	record  *recordState
	waiting *waitingNodes
	usage   *rangeUsers
	cidrs   *nodeCIDRs
	// requests forgets those of blocks that are gone.
	requests *blockRequests
}

// cacheLagTimeout is how long a block counts as existing that a live read, or the answer to a request, has shown, and
// the watch has not.
const cacheLagTimeout = 30 * time.Second

// setBlocks sets the blocks that the watch shows. What a live read has shown since takes precedence.
func (kb *knownBlocks) setBlocks(all []Block, now time.Time) {
	next := make(map[string]Block, len(all))
	for name, b := range kb.byName {
		if kb.notYetInCache[b.UID].After(now) {
			next[name] = b
		}
	}
	for _, b := range all {
		old, known := kb.byName[b.Name]
		switch newer := known && term.IsNewerVersion(old.ResourceVersion, b.ResourceVersion); {
		case newer && old.UID == b.UID:
			b = old // a live read has shown a later version
		case newer && kb.notYetInCache[old.UID].After(now):
			continue // that block is gone
		}
		delete(kb.notYetInCache, b.UID)
		b.Allocation = b.WithHistory(old.Allocation)
		next[b.Name] = b
	}
	for _, old := range kb.byName {
		if next[old.Name].UID != old.UID {
			kb.requests.Forget(string(old.UID))
		}
	}
	kb.byName = next
	there := map[types.UID]bool{}
	for _, b := range next {
		there[b.UID] = true
	}
	for _, times := range []map[types.UID]time.Time{kb.idleSince, kb.notYetInCache} {
		maps.DeleteFunc(times, func(uid types.UID, _ time.Time) bool { return !there[uid] })
	}
	for _, known := range []map[types.UID]bool{kb.verifiedLive, kb.closedInTerm} {
		maps.DeleteFunc(known, func(uid types.UID, _ bool) bool { return !there[uid] })
	}
	kb.updateRangeBlocks()
}

// recordLiveBlock records a block that a live read, or the answer to a request, has shown.
func (kb *knownBlocks) recordLiveBlock(b Block, now time.Time) {
	old := kb.byName[b.Name]
	if old.UID != b.UID {
		kb.notYetInCache[b.UID] = now.Add(cacheLagTimeout)
	}
	b.Allocation = b.WithHistory(old.Allocation)
	kb.byName[b.Name] = b
	kb.verifiedLive[b.UID] = true
	delete(kb.missingNames, b.Name)
	kb.updateRangeBlocks()
}

// beginTerm forgets what was seen of the blocks in earlier terms.
func (kb *knownBlocks) beginTerm() {
	kb.verifiedLive, kb.closedInTerm, kb.missingNames = map[types.UID]bool{}, map[types.UID]bool{}, map[string]bool{}
}

// recordCommit records that a commit is on record, with the open ranges that it lists and the blocks that it closes.
func (kb *knownBlocks) recordCommit(open []fence.OpenRange, closed map[types.UID]bool) {
	maps.Copy(kb.closedInTerm, closed)
	kb.openChanged = kb.openChanged || !slices.EqualFunc(open, kb.record.openRanges, fence.OpenRange.Equal)
	kb.setOpenRanges(open)
}

// setOpenRanges sets the open ranges of the state on record.
func (kb *knownBlocks) setOpenRanges(open []fence.OpenRange) {
	kb.record.openRanges, kb.nextOpen = open, nil
	kb.open = map[string]fence.OpenRange{}
	for _, o := range open {
		if o.ClusterCIDRName != "" {
			kb.nextOpen = append(kb.nextOpen, o)
			kb.open[o.Name] = o
		}
	}
	kb.updateRangeBlocks()
}

// updateRangeBlocks sets on each range which blocks it has, and which of them may be granted from: those that are open.
// A manager that is not the holder does not know which are open, and assumes that each block is open that can be.
func (kb *knownBlocks) updateRangeBlocks() {
	less, blocks := false, kb.blocksByObject()
	for _, o := range kb.ranges.objects {
		for f, source := range o.BlockSources {
			if source == nil || o.Range == nil {
				continue
			}
			all, allocatable := kb.prefixesForFamily(o, podcidr.Family(f), blocks[o.Name])
			old := o.Range.AllocatableCIDRs(podcidr.Family(f))
			if slices.Equal(allocatable, old) && slices.Equal(all, o.Range.CIDRsForFamily(podcidr.Family(f))) {
				continue
			}
			less = less || slices.ContainsFunc(old, func(p netip.Prefix) bool { return !slices.Contains(allocatable, p) })
			o.Range.SetBlocks(podcidr.Family(f), all, allocatable)
			delete(kb.ranges.useless, o.Range)
			kb.usage.invalidateUsage()
			kb.waiting.requeueRefused()
		}
	}
	if less {
		kb.cidrs.rebuildAllocations() // the allocations track what may be granted from
	}
}

// blocksByObject returns the blocks by the name of the object that they are for.
func (kb *knownBlocks) blocksByObject() map[string][]Block {
	out := map[string][]Block{}
	for _, b := range kb.byName {
		on, _ := kb.openBlockByName(b.Name)
		of := cmp.Or(on.ClusterCIDRName, b.ClusterCIDRName)
		out[of] = append(out[of], b)
	}
	return out
}

// prefixesForFamily returns the prefixes of one family that an object has in blocks, and those of them that may be
// granted from.
func (kb *knownBlocks) prefixesForFamily(o RangeObject, f podcidr.Family, blocks []Block) (all, allocatable []netip.Prefix) {
	for _, on := range kb.open {
		if on.ClusterCIDRName == o.Name && podcidr.FamilyForPrefix(on.CIDRs[0]) == f {
			all = append(all, on.CIDRs[0])
		}
	}
	for _, b := range blocks {
		if !b.GrantedPrefix().IsValid() || podcidr.FamilyForPrefix(b.GrantedPrefix()) != f {
			continue
		}
		on, open := kb.openBlockByName(b.Name)
		if !slices.Contains(all, b.GrantedPrefix()) {
			all = append(all, b.GrantedPrefix())
		}
		recordMatches := open && !on.Draining && slices.Equal(on.CIDRs, []netip.Prefix{b.GrantedPrefix()}) && on.UID == b.UID
		if !b.Deleting && o.BlockSources[f].matchesBlock(b) && (recordMatches || !kb.term.isHolder) {
			allocatable = append(allocatable, b.GrantedPrefix())
		}
	}
	for _, list := range [][]netip.Prefix{all, allocatable} {
		slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	}
	return all, allocatable
}

// hasBlocks reports whether an object has blocks, or may have some.
func (kb *knownBlocks) hasBlocks(o RangeObject) bool {
	if kb.ignored {
		return false // another allocator's object may have the same name
	}
	for _, b := range kb.byName {
		if on, _ := kb.openBlockByName(b.Name); cmp.Or(on.ClusterCIDRName, b.ClusterCIDRName) == o.Name {
			return true
		}
	}
	for _, on := range kb.open {
		if on.ClusterCIDRName == o.Name {
			return true
		}
	}
	return false
}

// countBlockUsers returns how many Nodes have, or are granted, some of the addresses that a block has or may have:
// those on record in the ConfigMap, those of its own record, even where its status does not show them any more, and
// those that it requests, unless it is being deleted.
func (kb *knownBlocks) countBlockUsers(b Block) int64 {
	prefixes := b.RecordedPrefixes()
	if on, _ := kb.openBlockByName(b.Name); on.UID == b.UID {
		prefixes = slices.Concat(on.CIDRs, b.RecordedPrefixes())
	}
	if !b.Deleting {
		prefixes = slices.Concat(prefixes, []netip.Prefix{b.PinnedPrefix})
	}
	return kb.countPrefixUsers(b, prefixes)
}

// countPrefixUsers returns how many Nodes have, or are granted, some of the prefixes of a block: the maximum over the
// prefixes. A prefix that another block has taken over counts for that block only.
func (kb *knownBlocks) countPrefixUsers(b Block, prefixes []netip.Prefix) (most int64) {
	for _, p := range prefixes {
		if p.IsValid() && (b.GrantedPrefix() == p || !kb.isPrefixReplaced(b, p)) {
			most = max(most, kb.cidrs.allocations.CountUsers(p))
		}
	}
	return most
}

// blocksToClose returns the UIDs of the blocks that are being deleted and that the next commit does not list as open.
func (kb *knownBlocks) blocksToClose() map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, b := range kb.byName {
		if b.Deleting && !slices.ContainsFunc(kb.nextOpen, func(o fence.OpenRange) bool { return o.UID == b.UID }) {
			out[b.UID] = true
		}
	}
	return out
}

// hasBlockToRelease reports whether our finalizer has to come off a block and no commit of this term shows yet that the
// block is not open: another manager may have opened it.
func (kb *knownBlocks) hasBlockToRelease() bool {
	for _, b := range kb.byName {
		if b.Deleting && b.HasFinalizer && !kb.isOpenBlock(b) && !kb.closedInTerm[b.UID] && kb.countBlockUsers(b) == 0 {
			return true
		}
	}
	return false
}

// hasUnknownOpenBlock reports whether a block is open on record that is unknown otherwise, while this manager has not
// held the cluster yet: the management cluster may have been restored to before the block was granted.
func (kb *knownBlocks) hasUnknownOpenBlock(s fence.State) bool {
	return !kb.ignored && !kb.term.wasHolder && slices.ContainsFunc(s.OpenRanges, func(o fence.OpenRange) bool {
		b, there := kb.byName[o.Name]
		return o.ClusterCIDRName != "" && (!there || (b.GrantedPrefix() != o.CIDRs[0] && b.PinnedPrefix != o.CIDRs[0]))
	})
}

// isBlockRefused reports whether an awaited block is refused by its pool whichever addresses it would have.
func (kb *knownBlocks) isBlockRefused(b carve.Block) bool {
	return b.Exists && !b.Granted && !b.Refused && kb.byName[b.Name].RefusalMessage != ""
}

// blockNamePrefix returns what the names of the blocks of a family begin with.
func (kb *knownBlocks) blockNamePrefix(f podcidr.Family) string {
	return kb.cluster.name + "-pods-" + [2]string{"4", "6"}[f]
}

// isNameInUse reports whether a block or an open block has a name.
func (kb *knownBlocks) isNameInUse(name string) bool {
	_, there := kb.byName[name]
	_, open := kb.openBlockByName(name)
	return there || open
}

// conflictingBlocks returns the blocks that were requested again or restored, whose addresses Nodes use, and that are
// refused: others may have their addresses by now.
func (kb *knownBlocks) conflictingBlocks() []string {
	var out []string
	for name, b := range kb.byName {
		if b.IsRefused() && kb.countPrefixUsers(b, slices.Concat(b.RecordedPrefixes(), []netip.Prefix{b.PinnedPrefix})) > 0 {
			out = append(out, fmt.Sprintf("IPAllocation %s: %s", name, b.RefusalMessage))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxNamesShown)]
}
