package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// planStatusBlocks returns the blocks that the next commit writes to status.blocks.
func (gr *Growth) planStatusBlocks(spec *v1alpha1.Carve, d carve.Decision, now time.Time) []v1alpha1.CarvedBlock {
	var out []v1alpha1.CarvedBlock
	for _, on := range gr.base.Pool.PoolStatus().Blocks {
		if slices.Contains(d.Close, on.Allocation) {
			continue
		}
		on.Draining = (on.Draining || slices.Contains(d.Drain, on.Allocation)) && !slices.Contains(d.EndDraining, on.Allocation)
		gr.updateBlockEntry(spec, &on, now)
		out = append(out, on)
	}
	for _, name := range d.Open {
		b := gr.carved.Blocks[name]
		on := v1alpha1.CarvedBlock{Range: b.Prefix.String(), Allocation: name, UID: string(b.UID)}
		gr.updateBlockEntry(spec, &on, now)
		out = slices.DeleteFunc(out, func(old v1alpha1.CarvedBlock) bool { return old.Range == on.Range }) // on replaces it
		out = append(out, on)
	}
	slices.SortFunc(out, func(a, b v1alpha1.CarvedBlock) int {
		x, _ := netip.ParsePrefix(a.Range)
		y, _ := netip.ParsePrefix(b.Range)
		return x.Addr().Compare(y.Addr())
	})
	return out
}

// updateBlockEntry updates an entry of status.blocks: the UID of its IPAllocation, the network of its addresses, and
// how many of them are in use since when.
func (gr *Growth) updateBlockEntry(spec *v1alpha1.Carve, on *v1alpha1.CarvedBlock, now time.Time) {
	p, err := netip.ParsePrefix(on.Range)
	if err != nil {
		return
	}
	if b := gr.carved.Blocks[on.Allocation]; b != nil && b.Prefix == p && !b.Deleting {
		on.UID = string(b.UID)
	}
	switch network := gr.carved.Parent.NetworkFor; {
	case spec.Network == v1alpha1.RoutedNetwork:
		on.Prefix, on.Gateway = poolutil.RoutedNetwork(p, spec.Gateway == v1alpha1.LastGateway)
	case network != nil:
		on.Prefix, on.Gateway = network(p.Addr())
	case on.Prefix == 0:
		on.Prefix = int32(p.Bits())
	}
	on.InUse, _ = gr.space.Ledger.UsageInRange(netipx.RangeOfPrefix(p))
	switch {
	case on.InUse > 0:
		on.IdleSince = nil
	case on.IdleSince == nil:
		since := metav1.NewTime(now.Truncate(time.Second))
		on.IdleSince = &since
	}
}

// setDrainedRanges blocks new grants from the blocks that drain or that a decision drains or closes. A range stays
// blocked until the status records that it does not drain any more.
func (gr *Growth) setDrainedRanges(d carve.Decision) {
	drained := map[netip.Prefix]struct{}{}
	for _, on := range gr.base.Pool.PoolStatus().Blocks {
		drains := on.Draining || slices.Contains(d.Drain, on.Allocation) || slices.Contains(d.Close, on.Allocation)
		if p, err := netip.ParsePrefix(on.Range); err == nil && drains && !slices.Contains(d.EndDraining, on.Allocation) {
			drained[p] = struct{}{}
			gr.space.Ledger.AddFact(ledger.Fact{Key: ledgerKeyForDrain(p), Owner: ledger.Owner{Name: on.Allocation}, Range: netipx.RangeOfPrefix(p)})
		}
	}
	for p := range gr.carved.drainedPrefixes {
		if _, still := drained[p]; !still {
			gr.space.Ledger.RemoveFact(ledgerKeyForDrain(p))
		}
	}
	gr.carved.drainedPrefixes = drained
}

func ledgerKeyForDrain(p netip.Prefix) ledger.Key {
	return ledger.Key{Source: ledger.SourceDraining, UID: types.UID(p.String())}
}

// BlocksChanged reports whether the blocks of two versions of a pool differ in more than numbers, so that there may
// be something to do: another block is open, or a block has become idle, which the pool keeps for a limited time
// only.
func BlocksChanged(a, b v1alpha1.Pool) bool {
	return !slices.EqualFunc(a.PoolStatus().Blocks, b.PoolStatus().Blocks, func(a, b v1alpha1.CarvedBlock) bool {
		return equalBlockEntries(a, b) && a.IdleSince.Equal(b.IdleSince)
	})
}

// PlanBlocks decides on the blocks of a carved pool: it sets the blocks that the next commit writes to the status,
// and the requests that follow from the blocks on record. It is called once per reconcile, after PlanGrants, which
// determines the shortfall. grace is how long the pool keeps an idle block.
func (gr *Growth) PlanBlocks(now time.Time, grace time.Duration) {
	c := gr.carved
	c.Decision, c.plannedBlocks = gr.decideBlocks(now, grace), nil
	if !gr.base.isCarved() {
		return
	}
	c.plannedBlocks = gr.planStatusBlocks(gr.base.Pool.PoolSpec().Carve, c.Decision, now)
	gr.setDrainedRanges(c.Decision)
}

// DrainLostBlocks blocks new grants from blocks that, by what is known now, no longer belong to the pool. It is
// called before PlanGrants; the next commit records the draining.
func (gr *Growth) DrainLostBlocks(now time.Time, grace time.Duration) {
	if gr.base.isCarved() {
		gr.setDrainedRanges(carve.Decision{Drain: carve.LostBlocks(gr.desiredBlocks(now, grace), gr.observedBlocks())})
		gr.queues.requeueOrphanClaimants()
	}
}

// checkBlockWork reports whether there is work to do for the blocks of a carved pool. soon reports whether that work
// needs a commit, which a live holder would have made by now; otherwise the work is a request, which a live holder
// may have tried without success.
func (gr *Growth) checkBlockWork(now time.Time, grace time.Duration) (wait, soon bool) {
	d := gr.decideBlocks(now, grace)
	return d.HasWork(), d.NeedsCommit()
}

func (gr *Growth) decideBlocks(now time.Time, grace time.Duration) carve.Decision {
	if !gr.base.isCarved() && len(gr.carved.Blocks) == 0 {
		return carve.Decision{}
	}
	return carve.DecideBlocks(gr.desiredBlocks(now, grace), gr.observedBlocks(), now)
}

// desiredBlocks returns what a pool wants of its blocks. A pool that is not carved wants nothing of the blocks that
// an earlier pool of its name had.
func (gr *Growth) desiredBlocks(now time.Time, grace time.Duration) carve.Pool {
	out := carve.Pool{Deleting: gr.base.Pool.GetDeletionTimestamp() != nil, Adopting: gr.quarantine.IsQuarantined(now) || (!gr.term.Holder && gr.quarantine.AdoptingCondition() != nil)}
	spec := gr.base.Pool.PoolSpec().Carve
	if spec == nil {
		out.Paused = true
		return out
	}
	out.MinBlocks, out.MaxBlocks, out.MaxOpen, out.MinAvailable = int(spec.Blocks.Min), int(spec.Blocks.Max), v1alpha1.MaxCarvedBlocks, int64(spec.MinAvailable)
	out.Moved = gr.held.hasMovedRanges()
	out.Paused = annotations.HasPaused(gr.base.Pool) || (!out.Deleting && (out.Moved || gr.carved.Parent.Problem != ""))
	out.NetworkUnknown = spec.Network != v1alpha1.RoutedNetwork && gr.carved.Parent.NetworkFor == nil
	out.AddressesPerBlock, out.IdleGrace, out.Shortfall, out.HasWaiting = gr.unitsPerBlock(), grace, gr.carved.shortfall.Blocks, gr.queues.Waiting.Len() > 0
	return out
}

// observedBlocks returns the current blocks of the pool, from status.blocks and from the observed IPAllocations.
func (gr *Growth) observedBlocks() []carve.Block {
	open := map[string]v1alpha1.CarvedBlock{}
	var out []carve.Block
	for _, on := range gr.base.Pool.PoolStatus().Blocks {
		open[on.Allocation] = on
		b := gr.carved.Blocks[on.Allocation]
		if other := b != nil && b.Prefix.IsValid() && b.Prefix.String() != on.Range; b == nil || other {
			fact := gr.observedBlock(on.Allocation, nil, &on)
			fact.NameTaken = other
			out = append(out, fact)
		}
	}
	for name := range gr.carved.creatingBlocks {
		if gr.carved.Blocks[name] == nil && !gr.base.IsBlockOpen(name) {
			out = append(out, carve.Block{Name: name, Exists: true})
		}
	}
	for name, b := range gr.carved.Blocks {
		switch on, ok := open[name]; {
		case !ok:
			out = append(out, gr.observedBlock(name, b, nil))
		case !b.Prefix.IsValid() || b.Prefix.String() == on.Range: // otherwise it is added once the other block is closed
			out = append(out, gr.observedBlock(name, b, &on))
		}
	}
	return out
}

func (gr *Growth) observedBlock(name string, b *Block, on *v1alpha1.CarvedBlock) carve.Block {
	out := carve.Block{Name: name}
	var prefix netip.Prefix
	var had []netipx.IPRange
	if on != nil {
		out.Open, out.Draining = true, on.Draining
		if prefix, _ = netip.ParsePrefix(on.Range); prefix.IsValid() {
			had = []netipx.IPRange{netipx.RangeOfPrefix(prefix)}
			out.Replaced = gr.carved.isBlockReplaced(name, prefix)
			out.Requested = gr.carved.isPrefixRequested(prefix)
		}
		if on.IdleSince != nil {
			out.IdleSince = on.IdleSince.Time
		}
	}
	if b != nil {
		out.Exists, out.Deleting, out.Protected, out.UserCreated, out.FromOtherParent = true, b.Deleting, b.HasFinalizer, b.CreatedManually, b.ParentKey != gr.base.parentKey()
		out.Verified = b.verifiedTerm == gr.term.CurrentTerm() && gr.term.Holder
		out.Granted = b.GrantedPrefix().IsValid() && !out.FromOtherParent
		out.CannotOpen = b.isWaiting()
		if on == nil {
			out.IdleSince, prefix, had = b.Created, b.Prefix, b.RecordedRanges
			out.Outdated = !b.CreatedManually && !out.FromOtherParent && !b.Prefix.IsValid() && len(b.RecordedRanges) == 0 && gr.isBlockOutdated(b)
			out.Refused = b.IsRefused()
			out.Granted = out.Granted && !gr.carved.overlapsOpenBlock(b.Prefix)
			out.CannotOpen = out.CannotOpen || (b.Prefix.IsValid() && !out.Granted)
			out.ReplacesLost = gr.carved.isPrefixLost(b.PinnedPrefix)
		}
	}
	if prefix.IsValid() {
		_, out.Free = gr.space.Ledger.UsageInRange(netipx.RangeOfPrefix(prefix))
	}
	out.Used = gr.space.maxUsedIn(had)
	out.HasCoolingOrHeld = out.Used == 0 && slices.ContainsFunc(had, gr.space.Ledger.HasCoolingOrHeld)
	return out
}

// isBlockOutdated reports whether the pool no longer wants the block that an IPAllocation requests: it requests
// another size, or the addresses of a lost block that was closed since.
func (gr *Growth) isBlockOutdated(b *Block) bool {
	if b.PinnedPrefix.IsValid() {
		return !gr.carved.isPrefixLost(b.PinnedPrefix)
	}
	return b.PrefixLength != int(gr.base.Pool.PoolSpec().Carve.PrefixLength)
}
