package grants

import "go4.org/netipx"

// The following functions are for kinds that publish their range in their own status, IPAllocations and IPLeases
// (R8). For them, the record is the proof that a grant has become an object.

// ShouldAdopt reports whether the range in the status of a claimant is trusted as a grant of another allocator: the
// pool is adopting, and the claimant has no record, which would have precedence (R10).
func (m *PoolState) ShouldAdopt(c *Claimant) bool {
	return m.Adopting && !c.HasRecord() && c.PublishedRange.IsValid()
}

// TakenRanges returns the ranges that are taken because of a claimant: the range on record, otherwise the one in its
// status.
func (c *Claimant) TakenRanges() (record, shown netipx.IPRange) {
	if c.HasRecord() {
		return c.RecordedRange, netipx.IPRange{}
	}
	return netipx.IPRange{}, c.PublishedRange
}

// CurrentRange returns the range that a claimant has: the one on record, otherwise the one in its status.
func (c *Claimant) CurrentRange() netipx.IPRange {
	if c.HasRecord() {
		return c.RecordedRange
	}
	return c.PublishedRange
}

// RequestedByRecord returns the range that a claimant requests by a record without our finalizer, which a restore
// leaves that strips finalizers. It is not valid if the range does not fit, or if another owner has some of it. Users
// can write that annotation as well: it only selects one of the ranges that the claimant may have by all other rules
// (ADR 50).
func (m *PoolState) RequestedByRecord(c *Claimant, fits func(netipx.IPRange) bool) netipx.IPRange {
	r := c.RecordedRange
	if c.HasFinalizer || !r.IsValid() || !fits(r) || !m.Ledger.IsInSpace(r) || m.FindBlockingFact(r, c.Owner) != nil {
		return netipx.IPRange{}
	}
	return r
}

// StatusNeedFor returns what has to be done for a claimant that is not being deleted. complete reports whether its
// record and its status have everything that they should have for the range on record.
func (m *PoolState) StatusNeedFor(c *Claimant, complete func() bool) Need {
	shows := c.HasRecord() && c.PublishedRange == c.RecordedRange
	switch {
	case shows && !c.Paused && complete(): // a paused one still has to show the pause
		return NeedNothing
	case shows, m.ShouldAdopt(c), m.Grants[c.Owner.UID] != nil:
		return NeedWrite
	}
	return NeedGrant
}

// EntitledRange returns the range that a claimant in service should have: the one on record stays valid, and a status
// that differs is corrected. If the range is not valid, the returned step is the one to take instead.
func (m *PoolState) EntitledRange(c *Claimant, t *Attempt) (netipx.IPRange, Step) {
	var r netipx.IPRange
	switch {
	case m.ShouldAdopt(c):
		r = c.PublishedRange
	case c.HasRecord():
		r = c.RecordedRange
	}
	if g := m.Grants[c.Owner.UID]; g != nil && !g.Confirmed {
		if t.Grant == nil {
			return netipx.IPRange{}, StopStep() // the job has waited too long
		}
		r = g.Range
		if err := m.CheckGrantConflict(c, g); err != nil {
			return netipx.IPRange{}, ErrorStep(err)
		}
	}
	// Another range was recorded.
	if c.HasRecord() && r.IsValid() && c.RecordedRange != r && t.TermVerifiedVersion != c.ResourceVersion {
		return netipx.IPRange{}, NewStep(VerifyTerm)
	}
	return r, StopStep()
}
