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
func (m *PoolState) PlanBlocks(now time.Time, grace time.Duration) {
	c := &m.Carved
	c.Decision, c.plannedBlocks = m.decideBlocks(now, grace), nil
	if !m.isCarved() {
		return
	}
	c.plannedBlocks = m.planStatusBlocks(m.BasePool.PoolSpec().Carve, c.Decision, now)
	m.setDrainedRanges(c.Decision)
}

// DrainLostBlocks blocks new grants from blocks that, by what is known now, no longer belong to the pool. It is
// called before PlanGrants; the next commit records the draining.
func (m *PoolState) DrainLostBlocks(now time.Time, grace time.Duration) {
	if m.isCarved() {
		m.setDrainedRanges(carve.Decision{Drain: carve.LostBlocks(m.desiredBlocks(now, grace), m.observedBlocks())})
		m.requeueOrphanClaimants()
	}
}

// ResetShortfall clears the shortfall at the start of a reconcile. The plan of that reconcile, if there is one,
// determines the new shortfall.
func (m *PoolState) ResetShortfall() { m.Carved.shortfall = carve.Shortfall{} }

// checkBlockWork reports whether there is work to do for the blocks of a carved pool. soon reports whether that work
// needs a commit, which a live holder would have made by now; otherwise the work is a request, which a live holder
// may have tried without success.
func (m *PoolState) checkBlockWork(now time.Time, grace time.Duration) (wait, soon bool) {
	d := m.decideBlocks(now, grace)
	return d.HasWork(), d.NeedsCommit()
}

func (m *PoolState) decideBlocks(now time.Time, grace time.Duration) carve.Decision {
	if !m.isCarved() && len(m.Carved.Blocks) == 0 {
		return carve.Decision{}
	}
	return carve.DecideBlocks(m.desiredBlocks(now, grace), m.observedBlocks(), now)
}

// desiredBlocks returns what a pool wants of its blocks. A pool that is not carved wants nothing of the blocks that
// an earlier pool of its name had.
func (m *PoolState) desiredBlocks(now time.Time, grace time.Duration) carve.Pool {
	out := carve.Pool{Deleting: m.BasePool.GetDeletionTimestamp() != nil, Adopting: m.IsQuarantined(now) || (!m.Holder && m.AdoptingCondition() != nil)}
	spec := m.BasePool.PoolSpec().Carve
	if spec == nil {
		out.Paused = true
		return out
	}
	out.MinBlocks, out.MaxBlocks, out.MaxOpen, out.MinAvailable = int(spec.Blocks.Min), int(spec.Blocks.Max), v1alpha1.MaxCarvedBlocks, int64(spec.MinAvailable)
	out.Moved = m.hasMovedRanges()
	out.Paused = annotations.HasPaused(m.BasePool) || (!out.Deleting && (out.Moved || m.Carved.Parent.Problem != ""))
	out.NetworkUnknown = spec.Network != v1alpha1.RoutedNetwork && m.Carved.Parent.NetworkFor == nil
	out.AddressesPerBlock, out.IdleGrace, out.Shortfall, out.HasWaiting = m.unitsPerBlock(), grace, m.Carved.shortfall.Blocks, m.PendingClaimants.Len() > 0
	return out
}

// observedBlocks returns the current blocks of the pool, from status.blocks and from the observed IPAllocations.
func (m *PoolState) observedBlocks() []carve.Block {
	open := map[string]v1alpha1.CarvedBlock{}
	var out []carve.Block
	for _, on := range m.BasePool.PoolStatus().Blocks {
		open[on.Allocation] = on
		b := m.Carved.Blocks[on.Allocation]
		if other := b != nil && b.Prefix.IsValid() && b.Prefix.String() != on.Range; b == nil || other {
			fact := m.observedBlock(on.Allocation, nil, &on)
			fact.NameTaken = other
			out = append(out, fact)
		}
	}
	for name := range m.Carved.creatingBlocks {
		if m.Carved.Blocks[name] == nil && !m.IsBlockOpen(name) {
			out = append(out, carve.Block{Name: name, Exists: true})
		}
	}
	for name, b := range m.Carved.Blocks {
		switch on, ok := open[name]; {
		case !ok:
			out = append(out, m.observedBlock(name, b, nil))
		case !b.Prefix.IsValid() || b.Prefix.String() == on.Range: // otherwise it is added once the other block is closed
			out = append(out, m.observedBlock(name, b, &on))
		}
	}
	return out
}

func (m *PoolState) observedBlock(name string, b *Block, on *v1alpha1.CarvedBlock) carve.Block {
	out := carve.Block{Name: name}
	var prefix netip.Prefix
	var had []netipx.IPRange
	if on != nil {
		out.Open, out.Draining = true, on.Draining
		if prefix, _ = netip.ParsePrefix(on.Range); prefix.IsValid() {
			had = []netipx.IPRange{netipx.RangeOfPrefix(prefix)}
			out.Replaced = m.isBlockReplaced(name, prefix)
			out.Requested = m.isPrefixRequested(prefix)
		}
		if on.IdleSince != nil {
			out.IdleSince = on.IdleSince.Time
		}
	}
	if b != nil {
		out.Exists, out.Deleting, out.Protected, out.UserCreated, out.FromOtherParent = true, b.Deleting, b.HasFinalizer, b.CreatedManually, b.ParentKey != m.parentKey()
		out.Verified = b.verifiedTerm == m.CurrentTerm() && m.Holder
		out.Granted = b.Prefix.IsValid() && !b.SharesAddresses && !out.FromOtherParent
		out.CannotOpen = b.isWaiting()
		if on == nil {
			out.IdleSince, prefix, had = b.Created, b.Prefix, b.RecordedRanges
			out.Outdated = !b.CreatedManually && !out.FromOtherParent && !b.Prefix.IsValid() && len(b.RecordedRanges) == 0 && m.isBlockOutdated(b)
			out.Refused = b.isRefused()
			out.Granted = out.Granted && !m.overlapsOpenBlock(b.Prefix)
			out.CannotOpen = out.CannotOpen || (b.Prefix.IsValid() && !out.Granted)
			out.ReplacesLost = m.isPrefixLost(b.PinnedPrefix)
		}
	}
	if prefix.IsValid() {
		_, out.Free = m.Ledger.UsageInRange(netipx.RangeOfPrefix(prefix))
	}
	out.Used = m.maxUsedIn(had)
	out.HasCoolingOrHeld = out.Used == 0 && slices.ContainsFunc(had, m.Ledger.HasCoolingOrHeld)
	return out
}

// UsedInBlock returns how many addresses are in use or granted in the range that has the most of them, of all ranges
// that a block may have.
func (m *PoolState) UsedInBlock(b *Block) int64 { return m.maxUsedIn(b.RecordedRanges) }

func (m *PoolState) maxUsedIn(ranges []netipx.IPRange) (most int64) {
	for _, r := range ranges {
		n, _ := m.Ledger.UsageInRange(r)
		most = max(most, n)
	}
	return most
}

// overlapsOpenBlock reports whether a prefix overlaps an open block, except one that the block with this prefix
// replaces.
func (m *PoolState) overlapsOpenBlock(p netip.Prefix) bool {
	return slices.ContainsFunc(m.BasePool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		open, err := netip.ParsePrefix(on.Range)
		return err == nil && open.Overlaps(p) && (open != p || m.hasBlockPrefix(on.Allocation, p))
	})
}

// isBlockOutdated reports whether the pool no longer wants the block that an IPAllocation requests: it requests
// another size, or the addresses of a lost block that was closed since.
func (m *PoolState) isBlockOutdated(b *Block) bool {
	if b.PinnedPrefix.IsValid() {
		return !m.isPrefixLost(b.PinnedPrefix)
	}
	return b.RequestedLength != m.BasePool.PoolSpec().Carve.PrefixLength
}

// isPrefixLost reports whether a prefix is open on record, and its IPAllocation is gone.
func (m *PoolState) isPrefixLost(p netip.Prefix) bool {
	return p.IsValid() && slices.ContainsFunc(m.BasePool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Range == p.String() && !m.hasBlockPrefix(on.Allocation, p)
	})
}

// hasBlockPrefix reports whether the IPAllocation of a name has a prefix.
func (m *PoolState) hasBlockPrefix(name string, p netip.Prefix) bool {
	b := m.Carved.Blocks[name]
	return b != nil && b.Prefix == p
}

// isBlockReplaced reports whether another IPAllocation has the prefix of an open block, and the IPAllocation of the
// given name does not have it any more.
func (m *PoolState) isBlockReplaced(name string, p netip.Prefix) bool {
	if m.hasBlockPrefix(name, p) {
		return false
	}
	for other := range m.Carved.Blocks {
		if m.hasBlockPrefix(other, p) {
			return true
		}
	}
	return false
}

// allocationBits returns the prefix length of the unit that each claim gets, or 0 if it is not known.
func (m *PoolState) allocationBits() int {
	if n := m.BasePool.PoolSpec().AllocationPrefixLength; n != nil {
		return int(*n)
	}
	return m.Carved.Parent.AddressBits
}
