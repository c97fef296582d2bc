package grants

import "go4.org/netipx"

// What follows is of kinds that show what they have in their own status, IPAllocations and IPLeases (R8): of these, the
// record is the proof that a grant has arrived.

// Adopts reports whether what the status of a claimant says is taken on trust, as another allocator's doing: no record
// of ours is older (R10).
func (m *Memory) Adopts(c *Claimant) bool {
	return m.Adopting && !c.HasRecord() && c.Shown.IsValid()
}

// OwnRanges are what counts as taken because of a claimant: what it remembers, else what it shows.
func (c *Claimant) OwnRanges() (record, shown netipx.IPRange) {
	if c.HasRecord() {
		return c.Record, netipx.IPRange{}
	}
	return netipx.IPRange{}, c.Shown
}

// OwnRange is what a claimant has: what it remembers, else what its status says.
func (c *Claimant) OwnRange() netipx.IPRange {
	if c.HasRecord() {
		return c.Record
	}
	return c.Shown
}

// AskedByRecord is what a claimant asks for by a record that came without our finalizer, as a restore leaves it that strips
// finalizers; not valid where it does not fit, or another has some of it. Users can write that annotation, too: it says only
// which range, of those that the claimant may have by all rules, it is to be (ADR 50).
func (m *Memory) AskedByRecord(c *Claimant, fits func(netipx.IPRange) bool) netipx.IPRange {
	r := c.Record
	if c.HasFinalizer || !r.IsValid() || !fits(r) || !m.Ledger.InSpace(r) || m.Blocker(r, c.Owner) != nil {
		return netipx.IPRange{}
	}
	return r
}

// NeedOf says what is to be done for a claimant that lives. complete reports whether its record and its status say all of
// what it remembers.
func (m *Memory) NeedOf(c *Claimant, complete func() bool) Need {
	shows := c.HasRecord() && c.Shown == c.Record
	switch {
	case shows && !c.Paused && complete(): // one that is paused is to say so
		return NeedNothing
	case shows, m.Adopts(c), m.Grants[c.Owner.UID] != nil:
		return NeedWrite
	}
	return NeedGrant
}

// Entitled is what a claimant that is served is to have: what it remembers stands, and a status that says something else
// is set right. Not valid: the step says what is done instead.
func (m *Memory) Entitled(c *Claimant, t *Attempt) (netipx.IPRange, Step) {
	var r netipx.IPRange
	switch {
	case m.Adopts(c):
		r = c.Shown
	case c.HasRecord():
		r = c.Record
	}
	if g := m.Grants[c.Owner.UID]; g != nil && !g.Confirmed {
		if t.Grant == nil {
			return netipx.IPRange{}, Nothing() // this job has waited
		}
		r = g.Range
		if err := m.HeldByAnother(c, g); err != nil {
			return netipx.IPRange{}, Fails(err)
		}
	}
	if c.HasRecord() && r.IsValid() && c.Record != r && t.Ours != c.Version { // somebody recorded another one
		return netipx.IPRange{}, Look(LookAtTerm)
	}
	return r, Nothing()
}
