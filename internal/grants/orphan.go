package grants

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Adoptable reports whether what is attached to a name may be a claimant's of that name: the claimant remembers it (R2;
// a move or a restore gives claims new UIDs), and nobody else was given the address since. It is, when a live read
// shows that this claimant has the name: the other one is gone then. One that is being deleted cannot be made this
// claimant's: it is void, and the record brings the address back.
func (m *Memory) Adoptable(c *Claimant, a *Attached) bool {
	remembered := c.Record.IsValid() && a.IP.IsValid() && c.Record.From() == a.IP && m.Claimants[a.ClaimantUID] == nil
	if a.Deleting || m.IsStranded(a) || (!remembered && !a.Kind.Traits().Attaches.TakesUp(m, c, a)) {
		return false
	}
	return m.KeepsFrom(c, a) == nil
}

// KeepsFrom finds what else has what an attached object has, so that it cannot be a claimant's; nil: nothing does.
func (m *Memory) KeepsFrom(c *Claimant, a *Attached) *ledger.Fact {
	return m.Ledger.FindOverlapping(m.Ledger.Unit(a.IP), func(h *ledger.Fact) bool {
		former := h.UID == a.UID || (a.ClaimantUID != "" && h.Owner.UID == a.ClaimantUID)
		return h.Source.Uses() && !former && h.Owner.UID != c.Owner.UID && !m.overridesRecord(c, h)
	})
}

// StaysByHand reports whether an object without owners is left alone. One that a user deletes goes, unless the claimant of
// its name has what it shows on record.
func (m *Memory) StaysByHand(s *Orphan) bool {
	if !s.ByHand || !s.Deleting {
		return s.ByHand
	}
	c := m.ByName[s.Key()]
	return c != nil && c.Record.IsValid() && c.Record.From() == s.IP
}

// IsStranded reports whether a carved pool has no block, by its own record and by its parent's word, that an attached
// object is in. A restore, or a move, brought it without its block: the parent may have given that to somebody else since,
// of which this pool knows nothing. With the block it is the claimant's again.
func (m *Memory) IsStranded(a *Attached) bool {
	return m.isCarved() && a.IP.IsValid() && !m.hasBlocksOf(m.Ledger.Unit(a.IP))
}

// sortStranded has another look at the claimants of orphans: a block may have come, or gone.
func (m *Memory) sortStranded() {
	for name := range m.Orphans {
		if c := m.ByName[name]; c != nil {
			m.Sort(c)
		}
	}
}

// NextCheck is when an orphan is to be looked at: when its grace is over, and before that when nobody has
// looked or somebody needs what it has.
func (m *Memory) NextCheck(s *Orphan, grace time.Duration) time.Time {
	if end := s.Since.Add(grace); !s.Since.IsZero() && end.After(s.RetryAt) && !m.IsInTheWay(s) {
		return end
	}
	return s.RetryAt
}

// IsInTheWay reports whether a claim has the name of an orphan, or anybody its address, or whether nothing is lost without
// it. The claim that remembers the address adopts the IPAddress.
func (m *Memory) IsInTheWay(s *Orphan) bool {
	if c := m.ByName[s.Key()]; c != nil {
		return !m.Adoptable(c, s.Attached) && !m.IsStranded(s.Attached)
	}
	return s.InTheWay || s.Untold || (s.IP.IsValid() && m.Blocker(m.Ledger.Unit(s.IP), s.owner()) != nil)
}

// NoteUntold notes of what was attached to a claimant that has ended that nobody was told of it.
func (m *Memory) NoteUntold(c *Claimant, a *Attached) {
	if s := m.Orphans[a.Key()]; s != nil && s.UID == a.UID && a.ClaimantUID == c.Owner.UID && !c.HadAddress {
		s.Untold = true
	}
}

// Orphan is an attached object without a claimant that we know.
type Orphan struct {
	*Attached
	// Since is when a live read first showed that it has none.
	Since time.Time
	// InTheWay: a claimant of another pool needs its name.
	InTheWay bool
	// Untold: its claim ended before its status named it, so nobody can use it.
	Untold bool
	// ProvenOrphan: it was proven that nobody has it, and that it is to go.
	ProvenOrphan bool
	Busy         bool
	// Failures counts errors in a row; nothing is tried before RetryAt.
	Failures int
	RetryAt  time.Time
}

// slowOrphan is how many failures the first of an orphan counts for: it is in no hurry.
const slowOrphan = 4

// NoteTry notes that an orphan was tried to be settled, and is still there: the try has failed, or another's finalizer keeps it.
func (s *Orphan) NoteTry(err error, now time.Time) {
	s.RetryAt = term.NextTry(now, s.Failures+slowOrphan, 0, err)
	s.Failures++
}
