package grants

import (
	"fmt"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// older is the order in which claims are served: creation time, then namespace and name.
func older(a, b *Claimant) bool {
	if !a.Created.Equal(b.Created) {
		return a.Created.Before(b.Created)
	}
	if a.Owner.Namespace != b.Owner.Namespace {
		return a.Owner.Namespace < b.Owner.Namespace
	}
	if a.Owner.Name != b.Owner.Name {
		return a.Owner.Name < b.Owner.Name
	}
	return a.Owner.UID < b.Owner.UID
}

// Sort puts a claimant where it belongs and reports whether anything is to be done for it.
func (m *Memory) Sort(c *Claimant) bool {
	m.unsort(c)
	m.recount(c)
	switch m.Need(c) {
	case NeedNothing:
		return false
	case NeedGrant:
		m.Pending.Set(c)
	case NeedWrite, NeedRelease:
		m.Todo[c.Owner.UID] = c
	}
	return true
}

func (m *Memory) unsort(c *Claimant) {
	m.Pending.Delete(c)
	delete(m.Todo, c.Owner.UID)
	delete(m.Crowded, c.Owner.UID)
}

// sortAttached notes whether an attached object has a claimant.
func (m *Memory) sortAttached(a *Attached) bool {
	if c := m.Claimants[a.ClaimantUID]; c != nil || a.moved {
		delete(m.Orphans, a.Key())
		return false
	}
	if s := m.Orphans[a.Key()]; s != nil {
		s.Attached = a
	} else {
		m.Orphans[a.Key()] = &Orphan{Attached: a}
	}
	return true
}

// AttachedTo returns what has the name of a claimant, of the kind that is attached to its kind; nil, if nothing.
func (m *Memory) AttachedTo(c *Claimant) *Attached {
	if c.Kind.Traits().Attaches == nil {
		return nil
	}
	return m.Attached[NameOf(c.Owner)]
}

// sortOverlapping has another look at those that have some of what a claimant has, where their status says who shares
// it.
func (m *Memory) sortOverlapping(c *Claimant) {
	if !c.Kind.Traits().TellsOverlap {
		return
	}
	for _, r := range m.rangesOf(c) {
		for _, h := range m.Ledger.Overlapping(r) {
			if other := m.Claimants[h.Owner.UID]; other != nil && other != c && other.Kind.Traits().TellsOverlap {
				m.Sort(other)
			}
		}
	}
}

// rangesOf are the ranges that count as taken because of a claimant, besides its grant. Nothing overlaps with one that is
// not valid.
func (m *Memory) rangesOf(c *Claimant) [2]netipx.IPRange {
	record, shown := c.Kind.Holds(m, c)
	return [2]netipx.IPRange{record, shown}
}

// OverlapOf says who else has some of what a claimant has, empty if nobody. It cannot be undone by us: which of two
// holders is to go is for a person to decide.
func (m *Memory) OverlapOf(c *Claimant) string {
	for _, r := range m.rangesOf(c) {
		for _, h := range m.Ledger.Overlapping(r) {
			if h.Source.Uses() && h.Owner.UID != c.Owner.UID {
				return fmt.Sprintf("%s has %s too; delete one of the two", m.DescribeFact(h), poolutil.FormatRange(h.Range))
			}
		}
	}
	return ""
}

// HasAny reports whether there is a claimant of a kind with some trait.
func (m *Memory) HasAny(has func(*Traits) bool) bool {
	for k, n := range m.count {
		if n > 0 && has(k.Traits()) {
			return true
		}
	}
	return false
}
