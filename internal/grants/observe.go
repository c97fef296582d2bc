package grants

import (
	"fmt"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Observe feeds a claim as an event, a list or our own write returned it. It reports whether the
// pool has something to do.
func (m *Memory) Observe(c *Claimant) bool {
	if m.IsGone(c.Owner.UID) || !m.takesName(c) {
		return false
	}
	old := m.Claimants[c.Owner.UID]
	if old != nil {
		if !term.Newer(c.Version, old.Version) {
			return false
		}
		c.Busy, c.Failures, c.RetryAt, c.Lost, c.waits = old.Busy, old.Failures, old.RetryAt, old.Lost, old.waits
		// A record never changes while the claim lives (R1): the first one stands, whatever is
		// written over it. clusterctl replaces all annotations on the source of a move. Ours comes with
		// our finalizer; what a user wrote before is no record yet.
		if old.HasRecord() {
			c.Record = old.Record
		}
		if c.Machine.sameOwners(old.Machine) {
			c.Machine = old.Machine
		}
		c.Kind.Keep(c, old)
		if c.counted = old.counted; c.counted && c.Cluster != old.Cluster {
			m.count(old, -1)
			c.counted = false
		}
		m.unsort(old)
		m.index(old, false)
	} else {
		m.kindCount[c.Kind]++
		if c.HasRecord() {
			m.noteArrival(c.Created)
		}
	}
	m.Claimants[c.Owner.UID] = c
	m.index(c, true)
	if c.Moved {
		m.moving[c.Owner.UID] = c
	} else {
		delete(m.moving, c.Owner.UID)
	}
	m.restoreRecord(c)
	m.State(c)
	m.keepMoved(c)
	m.confirm(c.Owner.UID)
	m.sortOverlapping(c)
	if c.Kind.Traits().Attaches != nil {
		m.ByName[NameOf(c.Owner)] = c
		if a := m.AttachedTo(c); a != nil {
			m.sortAttached(m.ascribe(a))
			m.confirm(c.Owner.UID)
		}
	}
	return m.Sort(c) || c.Moved
}

// takesName reports whether the name of a claimant is its own, where something is attached to it by its name. Of two of
// one name, the one that was written later proves the end of the other.
func (m *Memory) takesName(c *Claimant) bool {
	known := m.ByName[NameOf(c.Owner)]
	if c.Kind.Traits().Attaches == nil || known == nil || known.Owner.UID == c.Owner.UID {
		return true
	}
	if term.Newer(c.Version, known.Version) {
		m.Forget(known.Owner.UID)
		return true
	}
	m.Forget(c.Owner.UID)
	return false
}

// State states what a claimant remembers it was given, and what its status shows.
func (m *Memory) State(c *Claimant) {
	record, shown := c.Kind.Holds(m, c)
	m.stateOne(ledger.Record, c, record)
	m.stateOne(ledger.Object, c, shown)
}

func (m *Memory) stateOne(source ledger.Source, c *Claimant, r netipx.IPRange) {
	key := ledger.Key{Source: source, UID: c.Owner.UID}
	if r.IsValid() {
		m.Ledger.Add(ledger.Fact{Key: key, Owner: c.Owner, Range: r})
	} else {
		m.Ledger.Remove(key)
	}
}

// restoreRecord has a claim remember the IPAddress that was forced away from it: a manager that has just taken the pool
// over may see what the one before wrote in any order, and the record last.
func (m *Memory) restoreRecord(c *Claimant) {
	if c.Lost == nil || c.HasRecord() || !c.Lost.IP.IsValid() {
		return
	}
	if r := m.Ledger.Unit(c.Lost.IP); c.HadAddress || m.Ledger.InSpace(r) {
		c.Record = r
	}
}

// Forget feeds the proof that a claim UID is gone.
func (m *Memory) Forget(uid types.UID) {
	m.NoteGone(uid)
	c := m.Claimants[uid]
	if c == nil {
		return
	}
	m.unsort(c)
	m.index(c, false)
	m.EndTrouble(c, false)
	m.unheard.end(m, c, false)
	delete(m.Claimants, uid)
	delete(m.moving, uid)
	m.kindCount[c.Kind]--
	if m.ByName[NameOf(c.Owner)] == c {
		delete(m.ByName, NameOf(c.Owner))
	}
	m.Ledger.Remove(ledger.Key{Source: ledger.Record, UID: uid})
	m.Ledger.Remove(ledger.Key{Source: ledger.Object, UID: uid})
	if c.counted {
		m.count(c, -1)
	}
	m.confirm(uid)
	m.sortOverlapping(c)
	if a := m.AttachedTo(c); a != nil {
		m.sortAttached(a)
		m.NoteUntold(c, a)
	}
}

// ObserveAttached feeds an IPAddress.
func (m *Memory) ObserveAttached(a *Attached) bool {
	if m.IsGone(a.UID) {
		return false
	}
	if old := m.Attached[a.Key()]; old != nil {
		if !term.Newer(a.Version, old.Version) {
			return false
		}
		if old.UID != a.UID {
			m.ForgetAttached(old.UID, old.Key())
		}
	}
	if c := m.Claimants[a.ClaimantUID]; c != nil && c.Owner.Name == a.Name {
		a.Name, a.ClaimantUID = c.Owner.Name, c.Owner.UID // equal, and kept once
	}
	if m.Attached[a.Key()] == nil && m.ByName[a.Key()] == nil {
		m.noteArrival(time.Unix(a.Created, 0))
	}
	a.ClaimantUID = m.ClaimantOf(a)
	m.attach(a)
	if a.moved && a.IP.IsValid() {
		m.holdMoved(a.owner(), m.Ledger.Unit(a.IP))
	}
	wake := m.sortAttached(a) || a.moved
	if c := m.ByName[a.Key()]; c != nil {
		if a.ClaimantUID == c.Owner.UID {
			c.Lost = nil
			m.confirm(c.Owner.UID)
		}
		return m.Sort(c) || wake
	}
	return wake
}

// ForgetAttached feeds the proof that an IPAddress UID is gone.
func (m *Memory) ForgetAttached(uid types.UID, name types.NamespacedName) {
	m.NoteGone(uid)
	delete(m.movingAttached, uid)
	m.Ledger.Remove(ledger.Key{Source: ledger.Object, UID: uid})
	lost := m.Attached[name]
	if lost != nil && lost.UID == uid {
		delete(m.Attached, name)
		delete(m.Orphans, name)
	}
	if c := m.ByName[name]; c != nil {
		if lost != nil && lost.UID == uid && lost.ClaimantUID == c.Owner.UID && !c.Deleting {
			c.Lost = lost
			m.restoreRecord(c)
			m.State(c)
		}
		c.Failures, c.RetryAt = 0, time.Time{} // it may have waited for this name
		m.Sort(c)
	}
}

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
	delete(m.deferred.claims, c.Owner.UID)
}

// sortAttached notes whether an attached object has a claimant, and whether clusterctl takes it away.
func (m *Memory) sortAttached(a *Attached) bool {
	if a.moved {
		m.movingAttached[a.UID] = a
	}
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
		h := m.Ledger.FindOverlapping(r, func(h *ledger.Fact) bool {
			if other := m.Claimants[h.Owner.UID]; c.HadAddress && h.Source == ledger.Record && other != nil && !other.HadAddress {
				return false // each user can write a record
			}
			return h.Source.Uses() && h.Owner.UID != c.Owner.UID
		})
		if h != nil {
			return fmt.Sprintf("%s has %s too; find out which of the two uses it, and delete the other", m.DescribeFact(h), poolutil.ShowRange(h.Range))
		}
	}
	return ""
}

// HasAny reports whether there is a claimant of a kind with some trait.
func (m *Memory) HasAny(has func(*Traits) bool) bool {
	for k, n := range m.kindCount {
		if n > 0 && has(k.Traits()) {
			return true
		}
	}
	return false
}
