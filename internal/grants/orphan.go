package grants

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// IsAdoptable reports whether a claimant may adopt the address object of its name: the claimant has the address on
// record (R2: a move or a restore gives claims new UIDs) or CanAdoptManual allows it, and no other claimant was
// granted the address since. The claimant adopts it once a live read shows that this claimant has the name, because
// the former one is gone then. An object that is being deleted cannot be adopted: it is void, and the record brings
// the address back.
func (m *PoolState) IsAdoptable(c *Claimant, a *Address) bool {
	remembered := c.RecordedRange.IsValid() && a.IP.IsValid() && c.RecordedRange.From() == a.IP && m.Claimants[a.ClaimantUID] == nil
	if a.Deleting || m.IsOutsideBlocks(a) || (!remembered && !a.Kind.Traits().AddressKind.CanAdoptManual(m, c, a)) {
		return false
	}
	return m.FindAdoptionBlocker(c, a) == nil
}

// FindAdoptionBlocker returns the fact that prevents a claimant from adopting an address object: another owner has
// the address. It returns nil if there is none.
func (m *PoolState) FindAdoptionBlocker(c *Claimant, a *Address) *ledger.Fact {
	return m.Ledger.FindOverlappingFact(m.Ledger.UnitRange(a.IP), func(h *ledger.Fact) bool {
		former := h.UID == a.UID || (a.ClaimantUID != "" && h.Owner.UID == a.ClaimantUID)
		return h.Source.IsInUse() && !former && h.Owner.UID != c.Owner.UID && !m.overridesRecord(c, h)
	})
}

// KeepsManualAddress reports whether an address object without owners is left alone. One that a user deletes is
// released, unless the claimant of its name has its address on record.
func (m *PoolState) KeepsManualAddress(s *Orphan) bool {
	if !s.CreatedManually || !s.Deleting {
		return s.CreatedManually
	}
	c := m.ClaimantsByName[s.Key()]
	return c != nil && c.RecordedRange.IsValid() && c.RecordedRange.From() == s.IP
}

// IsOutsideBlocks reports whether an address object of a carved pool is in no block that is open on record and
// confirmed by the parent. A restore or a move has created it without its block, and the parent may have granted the
// block to another pool since, which this pool does not observe. Once the block is back, the object belongs to its
// claimant again.
func (m *PoolState) IsOutsideBlocks(a *Address) bool {
	return m.isCarved() && a.IP.IsValid() && !m.isWithinOpenBlocks(m.Ledger.UnitRange(a.IP))
}

// requeueOrphanClaimants queues the claimants that have the names of orphans again, because a block may have come or
// gone.
func (m *PoolState) requeueOrphanClaimants() {
	for name := range m.Orphans {
		if c := m.ClaimantsByName[name]; c != nil {
			m.QueueClaimant(c)
		}
	}
}

// NextOrphanCheck returns when the next check of an orphan is due: when its grace period is over, or earlier if it
// was never checked or if it conflicts with another object.
func (m *PoolState) NextOrphanCheck(s *Orphan, grace time.Duration) time.Time {
	if end := s.OrphanedSince.Add(grace); !s.OrphanedSince.IsZero() && end.After(s.RetryAt) && !m.IsOrphanConflicting(s) {
		return end
	}
	return s.RetryAt
}

// IsOrphanConflicting reports whether an orphan should be removed without a grace period: a claim needs its name,
// another owner needs its address, or nothing is lost without it. A claim that has the address on record does not
// conflict, because it adopts the IPAddress; nor does a claim of a carved pool whose address is in no open block.
func (m *PoolState) IsOrphanConflicting(s *Orphan) bool {
	if c := m.ClaimantsByName[s.Key()]; c != nil {
		return !m.IsAdoptable(c, s.Address) && !m.IsOutsideBlocks(s.Address)
	}
	return s.Conflicts || s.NeverPublished || (s.IP.IsValid() && m.FindBlockingFact(m.Ledger.UnitRange(s.IP), s.ledgerOwner()) != nil)
}

// MarkNeverPublished marks the address object of a claimant that has ended as never published, if the status of the
// claimant never named it.
func (m *PoolState) MarkNeverPublished(c *Claimant, a *Address) {
	if s := m.Orphans[a.Key()]; s != nil && s.UID == a.UID && a.ClaimantUID == c.Owner.UID && !c.StatusHasAddress {
		s.NeverPublished = true
	}
}

// Orphan is an address object without a known claimant.
type Orphan struct {
	*Address
	// OrphanedSince is when a live read first showed that the object has no claimant.
	OrphanedSince time.Time
	// Conflicts reports whether a claimant of another pool needs the name of the object.
	Conflicts bool
	// NeverPublished reports whether the claim of the object ended before its status named the object, so that no
	// consumer can use the address.
	NeverPublished bool
	// ProvenOrphan reports whether it is proven that the object has no claimant and has to be removed.
	ProvenOrphan bool
	Busy         bool
	// Failures is the number of consecutive errors. No job starts before RetryAt.
	Failures int
	RetryAt  time.Time
}

// orphanRetryOffset is added to the failures of an orphan when its retry delay is computed, because orphans are not
// urgent.
const orphanRetryOffset = 4

// RecordAttempt records an attempt to remove or adopt an orphan that is still there: the attempt has failed, or a
// finalizer of another controller keeps the object.
func (s *Orphan) RecordAttempt(err error, now time.Time) {
	s.RetryAt = term.NextRetryTime(now, s.Failures+orphanRetryOffset, 0, err)
	s.Failures++
}
