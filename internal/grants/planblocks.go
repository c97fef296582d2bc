package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
)

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
	out := carve.Pool{Deleting: gr.base.Pool.GetDeletionTimestamp() != nil, Adopting: gr.quarantine.IsQuarantined(now) || (!gr.record.Holder && gr.base.AdoptingCondition() != nil)}
	spec := gr.base.Pool.PoolSpec().Carve
	if spec == nil {
		out.Paused = true
		return out
	}
	out.MinBlocks, out.MaxBlocks, out.MaxOpen, out.MinAvailable = int(spec.Blocks.Min), int(spec.Blocks.Max), v1alpha1.MaxCarvedBlocks, int64(spec.MinAvailable)
	out.Moved = gr.held.hasMovedRanges()
	out.Paused = annotations.HasPaused(gr.base.Pool) || (!out.Deleting && (out.Moved || gr.carved.Parent.Problem != ""))
	out.NetworkUnknown = spec.Network != v1alpha1.RoutedNetwork && gr.carved.Parent.NetworkFor == nil
	out.AddressesPerBlock, out.IdleGrace, out.Shortfall, out.HasWaiting = gr.unitsPerBlock(), grace, gr.carved.shortfall.Blocks, gr.queues.Pending.Len() > 0
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
			out.Replaced = gr.isBlockReplaced(name, prefix)
			out.Requested = gr.carved.isPrefixRequested(prefix)
		}
		if on.IdleSince != nil {
			out.IdleSince = on.IdleSince.Time
		}
	}
	if b != nil {
		out.Exists, out.Deleting, out.Protected, out.UserCreated, out.FromOtherParent = true, b.Deleting, b.HasFinalizer, b.CreatedManually, b.ParentKey != gr.base.parentKey()
		out.Verified = b.verifiedTerm == gr.record.CurrentTerm() && gr.record.Holder
		out.Granted = b.Prefix.IsValid() && !b.SharesAddresses && !out.FromOtherParent
		out.CannotOpen = b.isWaiting()
		if on == nil {
			out.IdleSince, prefix, had = b.Created, b.Prefix, b.RecordedRanges
			out.Outdated = !b.CreatedManually && !out.FromOtherParent && !b.Prefix.IsValid() && len(b.RecordedRanges) == 0 && gr.isBlockOutdated(b)
			out.Refused = b.isRefused()
			out.Granted = out.Granted && !gr.overlapsOpenBlock(b.Prefix)
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

// overlapsOpenBlock reports whether a prefix overlaps an open block, except one that the block with this prefix
// replaces.
func (gr *Growth) overlapsOpenBlock(p netip.Prefix) bool {
	return slices.ContainsFunc(gr.base.Pool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		open, err := netip.ParsePrefix(on.Range)
		return err == nil && open.Overlaps(p) && (open != p || gr.carved.hasBlockPrefix(on.Allocation, p))
	})
}

// isBlockOutdated reports whether the pool no longer wants the block that an IPAllocation requests: it requests
// another size, or the addresses of a lost block that was closed since.
func (gr *Growth) isBlockOutdated(b *Block) bool {
	if b.PinnedPrefix.IsValid() {
		return !gr.carved.isPrefixLost(b.PinnedPrefix)
	}
	return b.RequestedLength != gr.base.Pool.PoolSpec().Carve.PrefixLength
}

// isBlockReplaced reports whether another IPAllocation has the prefix of an open block, and the IPAllocation of the
// given name does not have it any more.
func (gr *Growth) isBlockReplaced(name string, p netip.Prefix) bool {
	if gr.carved.hasBlockPrefix(name, p) {
		return false
	}
	for other := range gr.carved.Blocks {
		if gr.carved.hasBlockPrefix(other, p) {
			return true
		}
	}
	return false
}
