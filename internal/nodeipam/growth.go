package nodeipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// blockPlanner decides which blocks a ClusterCIDR requests, opens, drains, closes and deletes, by package carve, which
// decides the same for carved pools. It has no state of its own.
type blockPlanner struct {
	ranges     *knownRanges
	term       *termState
	adoption   *adoptionState
	waiting    *waitingNodes
	cidrs      *nodeCIDRs
	requests   *blockRequests
	blocks     *knownBlocks
	protection *objectProtection
}

// blockGroup identifies the blocks of one family of a ClusterCIDR. The zero value is the group of the blocks that no
// ClusterCIDR wants.
type blockGroup struct {
	clusterCIDRName string
	family          podcidr.Family
}

// blockRequest is a request to the API server for a block.
type blockRequest struct {
	verb carve.Verb
	name string
	// block is the known state of an existing block. rangeObject and blockSource are the ClusterCIDR and the pool of a
	// new one, and lostBlock is the open block whose addresses a new one must have, as it replaces that.
	block       Block
	rangeObject RangeObject
	blockSource *BlockSource
	lostBlock   fence.OpenRange
}

// key returns the key by which the request is retried.
func (r blockRequest) key() string { return cmp.Or(string(r.block.UID), r.name) }

// blockPlan is the decision on all blocks.
type blockPlan struct {
	openBlocks []fence.OpenRange
	requests   []blockRequest
	// toProtect are the objects that blocks are requested for.
	toProtect    []podcidr.Ref
	requeueAfter time.Duration
	plannedAt    time.Time
}

// hasRequests reports whether there is anything to do.
func (bp blockPlan) hasRequests() bool { return len(bp.requests) > 0 }

// planBlocks decides on all blocks by what is known now. Blocks of another allocator stay as they are on record: only
// that one knows their IPAllocations, and which Nodes use them.
func (bp *blockPlanner) planBlocks(now time.Time) (out blockPlan) {
	if bp.blocks.ignored {
		return blockPlan{openBlocks: bp.blocks.nextOpen}
	}
	sources := bp.ranges.objectsByGroup()
	if len(sources)+len(bp.blocks.byName)+len(bp.blocks.open) == 0 {
		return blockPlan{}
	}
	out.plannedAt = now
	facts := bp.carveBlocks(now)
	for g := range sources {
		if _, ok := facts[g]; !ok {
			facts[g] = nil // it may want some
		}
	}
	shortfalls, moved := bp.blockShortfalls(sources), false
	for _, b := range bp.blocks.byName {
		moved = moved || b.Moved
	}
	for _, g := range slices.SortedFunc(maps.Keys(facts), func(a, b blockGroup) int {
		return cmp.Or(cmp.Compare(a.clusterCIDRName, b.clusterCIDRName), cmp.Compare(a.family, b.family))
	}) {
		o, wanted := sources[g]
		pool := carve.Pool{Deleting: !wanted || o.Closing || o.Range.Closing, MaxOpen: maxBlocks, Moved: moved, Adopting: bp.term.isHolder && bp.adoption.adopting, IdleGrace: bp.blocks.idleGracePeriod}
		if wanted {
			source := o.BlockSources[g.family]
			pool.MaxBlocks, pool.MaxOpen, pool.AddressesPerBlock, pool.Shortfall = source.MaxBlocks, source.MaxBlocks, int64(source.NodesPerBlock), shortfalls[g]
		}
		pool.HasWaiting = len(bp.waiting.pending) > 0 // the shortfall counts what the refused Nodes need
		d := carve.DecideBlocks(pool, facts[g], now)
		if d.NewBlocks > 0 && bp.isGrowthUseless(g, o, facts) {
			d.NewBlocks = 0
		}
		bp.addDecision(&out, g, o, d, facts[g])
	}
	out.openBlocks = bp.excludeReplaced(out.openBlocks)
	return out
}

// excludeReplaced leaves out lost blocks, from the commit on in which another block is open with their addresses.
func (bp *blockPlanner) excludeReplaced(open []fence.OpenRange) []fence.OpenRange {
	return slices.DeleteFunc(slices.Clone(open), func(on fence.OpenRange) bool {
		by := bp.blocks.replacementForBlock(on)
		return by != "" && slices.ContainsFunc(open, func(other fence.OpenRange) bool { return other.Name == by && other.CIDRs[0] == on.CIDRs[0] })
	})
}

// carveBlocks returns the blocks in the form that carve takes, and updates since when each is idle.
func (bp *blockPlanner) carveBlocks(now time.Time) map[blockGroup][]carve.Block {
	out := map[blockGroup][]carve.Block{}
	for _, on := range bp.blocks.open {
		b, there := bp.blocks.byName[on.Name]
		if there && matchesOpenBlock(on, b) {
			continue
		}
		// The IPAllocation is gone, which a live read has to confirm, or another one has its name.
		g := bp.ranges.groupForBlock(Block{}, on, true)
		out[g] = append(out[g], carve.Block{
			Name: on.Name, Exists: !there && !bp.blocks.missingNames[on.Name], Protected: true, Granted: true, Verified: true,
			Open: true, Draining: on.Draining, Used: bp.cidrs.allocations.CountUsers(on.CIDRs[0]), Replaced: bp.blocks.replacementForBlock(on) != "", Requested: bp.blocks.isReplacementRequested(on),
		})
	}
	for name, b := range bp.blocks.byName {
		on, open := bp.blocks.openBlockByName(name)
		g := bp.ranges.groupForBlock(b, on, open)
		switch {
		case !open, matchesOpenBlock(on, b):
			out[g] = append(out[g], bp.carveBlock(b, on, open, now))
		case b.Deleting && !bp.blocks.isOpenBlock(b): // it has the name of the lost block, and is deleted by itself
			out[g] = append(out[g], bp.carveBlock(b, fence.OpenRange{}, false, now))
		default: // it is considered once the open block is closed
		}
	}
	return out
}

// carveBlock returns a block in the form that carve takes, and updates since when it is idle; on is its entry in the
// state on record, if it is open.
func (bp *blockPlanner) carveBlock(b Block, on fence.OpenRange, open bool, now time.Time) carve.Block {
	granted := b.GrantedPrefix().IsValid()
	out := carve.Block{
		Name: b.Name, Exists: true, Deleting: b.Deleting, Protected: b.HasFinalizer, Granted: granted, Verified: bp.blocks.verifiedLive[b.UID],
		Refused: b.IsRefused(), CannotOpen: b.mayNeverGetPrefix(), Open: open, Draining: on.Draining, Used: bp.blocks.countBlockUsers(b),
	}
	out.ReplacesLost = !open && bp.blocks.isReplacement(b)
	// Nothing needs the lost block any more that it was to replace.
	out.Outdated = !open && out.Refused && len(b.RecordedPrefixes()) == 0 && out.Used == 0 && !out.ReplacesLost
	if !bp.term.isHolder { // the open blocks are not known
		out.Open, out.Draining, out.Verified = granted && !b.Deleting, false, true
	}
	if out.Used > 0 {
		delete(bp.blocks.idleSince, b.UID)
	} else if bp.blocks.idleSince[b.UID].IsZero() {
		bp.blocks.idleSince[b.UID] = now
	}
	out.IdleSince = bp.blocks.idleSince[b.UID]
	return out
}

// canGrow reports whether a family of an object can have another block, as far as is known: no block is refused, and
// there are fewer than allowed. A block that is being deleted counts while it is open.
func (bp *blockPlanner) canGrow(o RangeObject, f podcidr.Family, facts []carve.Block) bool {
	source, have := o.BlockSources[f], 0
	if source == nil || o.Closing || o.Range.Closing {
		return false
	}
	for _, b := range facts {
		if bp.blocks.isBlockRefused(b) {
			return false
		}
		if !b.Refused && (!b.Deleting || b.Open) {
			have++
		}
	}
	return have < source.MaxBlocks || slices.ContainsFunc(facts, func(b carve.Block) bool { return b.Exists && !b.Deleting && !b.Open && !b.CannotOpen })
}

// updateCanGrow sets on each range whether it can get more room, so that a Node waits for that and does not take its
// next choice.
func (bp *blockPlanner) updateCanGrow(now time.Time) {
	sources := bp.ranges.objectsByGroup()
	if len(sources) == 0 {
		return
	}
	facts := bp.carveBlocks(now)
	for _, o := range sources {
		bp.cidrs.allocations.TrackRanges(o.Range)
		grows := !slices.ContainsFunc(o.Range.Families(), func(f podcidr.Family) bool {
			return bp.cidrs.allocations.CountFreeInFamily(o.Range, f) == 0 && (term.IsPermanentRefusal(bp.requests.createErr) || !bp.canGrow(o, f, facts[blockGroup{o.Name, f}]))
		})
		if grows != o.Range.CanGrow {
			o.Range.CanGrow = grows
			bp.waiting.requeueRefused()
		}
	}
}

// isGrowthUseless reports whether more blocks of a family help no Node: another family of the object has no room, and
// cannot grow.
func (bp *blockPlanner) isGrowthUseless(g blockGroup, o RangeObject, facts map[blockGroup][]carve.Block) bool {
	return slices.ContainsFunc(o.Range.Families(), func(f podcidr.Family) bool {
		return f != g.family && bp.cidrs.allocations.CountFreeInFamily(o.Range, f) == 0 && !bp.canGrow(o, f, facts[blockGroup{o.Name, f}])
	})
}

// blockShortfalls returns how many more blocks the Nodes need that wait for room in a ClusterCIDR.
func (bp *blockPlanner) blockShortfalls(sources map[blockGroup]RangeObject) map[blockGroup]int {
	waiting := map[podcidr.Ref]int64{}
	for _, why := range bp.waiting.refused {
		for _, ref := range why.FullRanges {
			waiting[ref]++
		}
	}
	out := map[blockGroup]int{}
	for g, o := range sources {
		if waiting[o.Ref] == 0 {
			continue
		}
		bp.cidrs.allocations.TrackRanges(o.Range)
		if short := waiting[o.Ref] - bp.cidrs.allocations.CountFreeInFamily(o.Range, g.family); short > 0 {
			out[g] = int((short-1)/int64(o.BlockSources[g.family].NodesPerBlock)) + 1
		}
	}
	return out
}

// addDecision adds to a plan what follows from the decision on a group.
func (bp *blockPlanner) addDecision(g *blockPlan, of blockGroup, o RangeObject, d carve.Decision, facts []carve.Block) {
	g.requeueAfter = term.MinWait(g.requeueAfter, d.NextWait)
	for _, b := range facts {
		on, open := bp.blocks.openBlockByName(b.Name)
		observed := bp.blocks.byName[b.Name]
		if open && b.Open && bp.term.isHolder && !slices.Contains(d.Close, b.Name) {
			on.Draining = (on.Draining || slices.Contains(d.Drain, b.Name)) && !slices.Contains(d.EndDraining, b.Name)
			if bp.blocks.verifiedLive[observed.UID] && observed.GrantedPrefix() == on.CIDRs[0] {
				on.UID = observed.UID // clusterctl move has created it again
			}
			g.openBlocks = append(g.openBlocks, on)
		}
		if slices.Contains(d.Open, b.Name) {
			g.openBlocks = append(g.openBlocks, fence.OpenRange{Kind: v1alpha1.IPAllocationKind, Name: observed.Name, UID: observed.UID, ClusterCIDRName: observed.ClusterCIDRName, CIDRs: []netip.Prefix{observed.GrantedPrefix()}})
		}
		if b.Exists && open && on.UID != observed.UID && !bp.blocks.verifiedLive[observed.UID] {
			g.requests = append(g.requests, blockRequest{verb: carve.GetBlock, name: b.Name})
		}
	}
	for verb, name := range d.ForExisting() {
		if b := bp.blocks.byName[name]; b.UID != "" { // otherwise it is read live first
			g.requests = append(g.requests, blockRequest{verb: verb, name: name, block: b})
		}
	}
	if !bp.term.isHolder && len(d.Drain)+len(d.Close) > 0 {
		g.requests = append(g.requests, blockRequest{}) // a holder would commit that
	}
	if of.clusterCIDRName == "" {
		return
	}
	source := o.BlockSources[of.family]
	bp.recreateLostBlocks(g, of, o, d.Recreate)
	if slices.ContainsFunc(facts, bp.blocks.isBlockRefused) {
		return // the pool would refuse the next one too
	}
	for range d.NewBlocks {
		bp.addCreateRequest(g, blockRequest{verb: carve.CreateBlock, name: bp.nextBlockName(g, of.family), rangeObject: o, blockSource: source})
	}
}

// recreateLostBlocks requests lost blocks again, under the next name where something else has theirs. It requests no
// more blocks than the Cluster may have, as users of the workload cluster may be able to write its ConfigMap.
func (bp *blockPlanner) recreateLostBlocks(g *blockPlan, of blockGroup, o RangeObject, lost []string) {
	if len(lost) == 0 {
		return
	}
	source, inUse := o.BlockSources[of.family], 0
	for _, on := range bp.blocks.open {
		if bp.ranges.groupForBlock(Block{}, on, true) == of && bp.cidrs.allocations.CountUsers(on.CIDRs[0]) > 0 {
			inUse++
		}
	}
	for _, name := range lost {
		on, _ := bp.blocks.openBlockByName(name)
		other, exists := bp.blocks.byName[name]
		switch {
		case on.CIDRs[0].Bits() != source.PrefixLength || inUse > source.MaxBlocks:
			continue
		case exists && !bp.blocks.verifiedLive[other.UID]: // the watch may show a block that was there before
			g.requests = append(g.requests, blockRequest{verb: carve.GetBlock, name: name})
			continue
		case exists || bp.requests.IsNameTaken(name, g.plannedAt):
			name = bp.nextBlockName(g, of.family)
		}
		bp.addCreateRequest(g, blockRequest{verb: carve.CreateBlock, name: name, rangeObject: o, blockSource: source, lostBlock: on})
	}
}

// nextBlockName returns the first name of a block that nothing has and no request uses.
func (bp *blockPlanner) nextBlockName(g *blockPlan, f podcidr.Family) string {
	return bp.requests.NextName(bp.blocks.blockNamePrefix(f), g.plannedAt, func(name string) bool {
		asked := slices.ContainsFunc(g.requests, func(e blockRequest) bool { return e.verb == carve.CreateBlock && e.name == name })
		return asked || bp.blocks.isNameInUse(name)
	})
}

// addCreateRequest adds to a plan a request for a new block, and its ClusterCIDR to the objects to protect.
func (bp *blockPlanner) addCreateRequest(g *blockPlan, e blockRequest) {
	if until := bp.protection.blocked[e.rangeObject.Ref].RetryAt; until.After(g.plannedAt) || bp.ranges.closedByLiveRead[e.rangeObject.Ref] {
		if until.After(g.plannedAt) {
			g.requeueAfter = term.MinWait(g.requeueAfter, until.Sub(g.plannedAt))
		}
		return // nothing would protect its ClusterCIDR
	}
	g.requests = append(g.requests, e)
	if !e.rangeObject.HasFinalizer && !slices.Contains(g.toProtect, e.rangeObject.Ref) {
		g.toProtect = append(g.toProtect, e.rangeObject.Ref)
	}
}
