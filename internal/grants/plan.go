package grants

import (
	"fmt"
	"time"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Refusal is why a claim gets nothing now: a reason of the CAPI contract and what to do about it.
type Refusal struct{ Reason, Message string }

// Failed is the refusal of a claim that cannot be served as it is.
func Failed(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyAllocationFailedReason, Message: text.Message(fmt.Sprintf(format, args...))}
}

// NotReady is the refusal of a claim whose pool cannot serve it.
func NotReady(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolNotReadyReason, Message: text.Message(fmt.Sprintf(format, args...))}
}

// Plan grants addresses to the claims that wait, oldest first, at most room of them, and returns the
// claims that are refused with the reason. One claim's failure never holds up another's.
func (m *Memory) Plan(now time.Time, room int, admission Admit) (granted int, refused map[*Claimant]*Refusal) {
	refused = map[*Claimant]*Refusal{}
	m.full = nil
	var grants []*Grant
	k := m.crowd()
	m.Pending.Scan(func(c *Claimant) bool {
		if len(grants) >= room && (room > 0 || k.stuck == 0) {
			return false // else they are told why nothing is granted
		}
		if !c.MayBeTried(now) {
			return true
		}
		ruled := admission(c)
		if ruled.Waits {
			return true
		}
		no := ruled.Refused
		if no == nil {
			no = m.InTrouble(c, now)
		}
		if no == nil {
			var may bool
			if no, may = m.turnOf(c, k); no == nil && !may {
				return true
			}
		}
		var r netipx.IPRange
		if no == nil {
			r, no = m.Choose(c)
		}
		if no != nil {
			if !c.Shows(*no) {
				refused[c] = no
			}
			return true
		}
		if c.Child != nil {
			c.Found = max(c.Found, Seen) // nothing is granted to a pool that does not exist
		}
		g := &Grant{Owner: c.Owner, Range: r}
		m.Cooling.Remove(r)
		m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Grant, UID: c.Owner.UID}, Owner: c.Owner, Range: r})
		grants = append(grants, g)
		k.add(c.Owner.Namespace)
		m.NoteTrial(c, now)
		return true
	})
	for _, g := range grants {
		m.Grants[g.Owner.UID] = g
		m.Sort(m.Claimants[g.Owner.UID])
	}
	return len(grants), refused
}

// Choose takes the address of a claim, or its block: the one that is meant for it, or the best fit. It counts towards
// the quota of its Cluster.
func (m *Memory) Choose(c *Claimant) (netipx.IPRange, *Refusal) {
	r, no, full := m.Available(c)
	switch limit, _ := m.limitOf(c); {
	case !full:
	case m.WithinQuota(c):
		m.lacks(c)
	default:
		return r, overQuota(c, limit)
	}
	if no == nil {
		no = m.reserve(c)
	}
	switch {
	case no != nil:
		return netipx.IPRange{}, no
	case r.IsValid():
		return r, nil
	}
	if r, ok := m.take(c); ok {
		return r, nil
	}
	return netipx.IPRange{}, m.noRoom(c)
}

// without says why a claim could be given nothing now, whatever becomes of others; nil: there is something for it. Unlike
// Choose it takes nothing, and the claim does not count as one that lacks something. full: nothing is free that it would take.
func (m *Memory) without(c *Claimant) (no *Refusal, full bool) {
	_, no, full = m.Available(c)
	limit, limited := m.limitOf(c)
	if (no == nil || full) && limited && !c.counted && m.Quota.refuses(c.Cluster, limit, m.Key) {
		return overQuota(c, limit), false
	}
	return no, full
}

// take takes what comes first of what a claimant may have.
func (m *Memory) take(c *Claimant) (netipx.IPRange, bool) {
	switch s := c.Kind.Shape(m, c); {
	case s.PrefixLength > 0:
		return m.Ledger.TakePrefix(s.PrefixLength)
	case s.Count > 0:
		return m.Ledger.TakeBlock(uint64(s.Count))
	}
	return m.Ledger.TakeOneOf(m.zonesOf(c))
}

// Available finds what there is for a claim: what is meant for it, or, where that is nothing at all, any that fits. full:
// nothing is free that it would take.
func (m *Memory) Available(c *Claimant) (r netipx.IPRange, no *Refusal, full bool) {
	r, no = c.Kind.Designated(m, c)
	if no == nil && !r.IsValid() {
		no = m.withoutZone(c)
	}
	if no == nil && !r.IsValid() && !m.hasRoom(c) {
		return r, m.noRoom(c), true
	}
	return r, no, false
}

// hasRoom reports whether something is free that a claim would take.
func (m *Memory) hasRoom(c *Claimant) bool {
	switch s := c.Kind.Shape(m, c); {
	case s.PrefixLength > 0:
		return m.Ledger.HasPrefix(s.PrefixLength)
	case s.Count > 0:
		return m.Ledger.HasBlock(s.Count)
	}
	return m.Ledger.HasFreeIn(m.zonesOf(c))
}

// noRoom says that nothing is free. Those that ask for one are told the same: thousands may wait.
func (m *Memory) noRoom(c *Claimant) *Refusal {
	if no := m.tooLarge(c); no != nil {
		return no
	}
	if c.Kind.Shape(m, c) != (Shape{}) && !m.isCarved() {
		return c.Kind.NoRoom(m, c)
	}
	if m.HasZones() {
		return m.noneInZones(c)
	}
	if m.full == nil {
		m.full = m.growth()
	}
	if m.full == nil {
		m.full = c.Kind.NoRoom(m, c)
	}
	return m.full
}

// Recorded gives a claimant what it remembers, which is to be r. Users can write that annotation too: what a claimant
// never had must be something that the pool hands out, and nobody else may have it (R1).
func (m *Memory) Recorded(c *Claimant, r netipx.IPRange) (netipx.IPRange, *Refusal) {
	if m.isCarved() && !m.hasBlocksOf(r) {
		return netipx.IPRange{}, Failed("the annotation %s says %s, which is in no block that %s has; it is given again with that block, or create the claim again for another address",
			v1alpha1.AddressAnnotation, c.RecordText, m.Key)
	}
	if r != c.Record || (!c.HadAddress && !m.Ledger.InSpace(r)) {
		return netipx.IPRange{}, Failed("the annotation %s says %s, which is not something that %s hands out; create this object again without the annotation",
			v1alpha1.AddressAnnotation, c.RecordText, m.Key)
	}
	h := m.Ledger.FindOverlapping(r, func(h *ledger.Fact) bool {
		before := (h.Source == ledger.Pin && c.HadAddress) || m.laterThanRecord(h, c) // the address was its own before
		return !before && m.blocks(h, c.Owner) && !m.overridesRecord(c, h)
	})
	switch {
	case h == nil:
		return r, nil
	case h.Source == ledger.Object && c.MayGetAnother():
		return netipx.IPRange{}, nil // any other
	}
	return netipx.IPRange{}, Failed("the address %s, which the annotation %s records for this object, is held by %s; "+
		"find out which of the two uses it, and delete the other", poolutil.ShowRange(r), v1alpha1.AddressAnnotation, m.DescribeFact(h))
}

// laterThanRecord reports whether a fact keeps addresses whoever remembers them, and came when a claimant had them already.
// What is shared with another pool is, and what is held together with the ranges around it, or for the name of the
// claimant, which has come back. Of a block for another pool nobody knows which addresses that has given: what is shared of
// it is not its own.
func (m *Memory) laterThanRecord(h *ledger.Fact, c *Claimant) bool {
	if h.Source == ledger.Shared {
		return c.HadAddress && c.Child == nil
	}
	own := h.Owner.Name == "" || (h.Owner.Namespace == c.Owner.Namespace && h.Owner.Name == c.Owner.Name)
	return c.HasRecord() && (h.Source == ledger.Draining || (h.Source == ledger.Kept && own))
}

// MayGetAnother reports whether a claimant may be given another address than it remembers. Where the in-cluster
// provider and we serve a pool by turns, it may have given somebody else what we had granted and nobody was told of: it
// reads no records.
func (c *Claimant) MayGetAnother() bool { return c.Mirrored && !c.HadAddress }

// winsRecord tells whose record counts of two claims that remember one address, as copies of a manifest
// do: that of the claim which had it, else the older one's.
func (c *Claimant) winsRecord(other *Claimant) bool {
	if c.HadAddress != other.HadAddress {
		return c.HadAddress
	}
	return older(c, other)
}

// overridesRecord reports whether a fact is the record of a claim that another wins over.
func (m *Memory) overridesRecord(c *Claimant, h *ledger.Fact) bool {
	other := m.Claimants[h.Owner.UID]
	return h.Source == ledger.Record && other != nil && c.winsRecord(other)
}

// Blocker returns the first fact that keeps a range from an owner, if there is one.
func (m *Memory) Blocker(r netipx.IPRange, o ledger.Owner) *ledger.Fact {
	return m.Ledger.FindOverlapping(r, func(h *ledger.Fact) bool { return m.blocks(h, o) })
}

// blocks reports whether a fact keeps its range from an owner.
func (m *Memory) blocks(h *ledger.Fact, o ledger.Owner) bool {
	switch h.Source {
	case ledger.Pin:
		return h.Owner.Name != o.Name || !m.kindOf(o.Kind).Traits().Pinned
	case ledger.Cooling:
		return h.Owner.Namespace != o.Namespace || h.Owner.Name != o.Name
	case ledger.Shared:
		// What a carved pool has in use outside of its blocks keeps nobody from giving it the block back.
		c := m.Claimants[o.UID]
		return c == nil || c.Child == nil || c.Child.String() != h.Owner.Name
	case ledger.Record:
		// Anybody can write a record. It does not keep an address from the name that it is kept for.
		c := m.Claimants[h.UID]
		return (h.Owner.UID != o.UID || o.UID == "") && (c == nil || c.HasFinalizer || c.HadAddress || !m.pinned(h.Range, o))
	default:
		return h.Owner.UID != o.UID || o.UID == ""
	}
}

// pinned reports whether a range is kept for the name of an owner.
func (m *Memory) pinned(r netipx.IPRange, o ledger.Owner) bool {
	if m.Layout == nil || !m.kindOf(o.Kind).Traits().Pinned {
		return false
	}
	pin, is := m.Layout.Pin(o.Name)
	return is && r.Contains(pin)
}

// DescribeFact says whose a fact is.
func (m *Memory) DescribeFact(h *ledger.Fact) string {
	who := h.Owner.Name
	if h.Owner.Namespace != "" {
		who = h.Owner.Namespace + "/" + h.Owner.Name
	}
	switch h.Source {
	case ledger.Object, ledger.Record, ledger.Grant:
		if a := m.kindOf(h.Owner.Kind).Traits().Attaches; a != nil && h.Source == ledger.Object && m.Claimants[h.Owner.UID] == nil {
			return a.Kind() + " " + who + " (without a claim)"
		}
		return h.Owner.Kind + " " + who
	case ledger.Pin:
		return "a preAllocation for claims named " + who
	case ledger.Cooling:
		if who == "" {
			return "its rest, until the time that status.cooling of the pool says"
		}
		return "its reuse grace period (released by " + who + ")"
	case ledger.Kept:
		if who == "" {
			return "an entry of status.held"
		}
		return "an entry of status.held (last used by " + who + ")"
	case ledger.Shared:
		return who + ", which has it too"
	case ledger.Draining:
		return "block " + who + ", which is being given back"
	}
	return who
}

// HeldByAnother reports which IPAddress, or other object, has what was granted to a claimant: a restore can bring back
// a pool with grants that were given to somebody else since (R10).
func (m *Memory) HeldByAnother(c *Claimant, g *Grant) error {
	if h := m.Ledger.FindOverlapping(g.Range, func(h *ledger.Fact) bool { return h.Source == ledger.Object && m.blocks(h, c.Owner) }); h != nil {
		return fmt.Errorf("%s was granted to this %s, but %s has it; find out which of the two uses it, and delete the other", poolutil.ShowRange(g.Range), c.Owner.Kind, m.DescribeFact(h))
	}
	return nil
}

// FirstWithheld names the first address of a range that the pool does not hand out, and why, to end a sentence.
func (m *Memory) FirstWithheld(r netipx.IPRange) string {
	if m.Layout == nil {
		return ""
	}
	a, withheld := poolspec.FirstWithheld(m.Layout, r)
	if !withheld {
		return ""
	}
	return fmt.Sprintf(", such as %s, which is %s", a, poolspec.Withheld(m.Base.PoolSpec(), m.Layout, a))
}
