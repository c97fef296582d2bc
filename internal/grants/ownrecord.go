package grants

import "go4.org/netipx"

// The following functions are for kinds that publish their range in their own status, IPAllocations and IPLeases
// (R8). For them, the record is the proof that a grant has become an object.

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
func (inv *Inventory) RequestedByRecord(c *Claimant, fits func(netipx.IPRange) bool) netipx.IPRange {
	r := c.RecordedRange
	if c.HasFinalizer || !r.IsValid() || !fits(r) || !inv.Space.Ledger.IsInSpace(r) || inv.FindBlockingFact(r, c.Owner) != nil {
		return netipx.IPRange{}
	}
	return r
}

// StatusNeedFor returns what has to be done for a claimant that is not being deleted. complete reports whether its
// record and its status have everything that they should have for the range on record.
func (inv *Inventory) StatusNeedFor(c *Claimant, complete func() bool) Need {
	shows := c.HasRecord() && c.PublishedRange == c.RecordedRange
	switch {
	case shows && !c.Paused && complete(): // a paused one still has to show the pause
		return NeedNothing
	case shows, inv.Quarantine.ShouldAdopt(c), inv.Grants.ByClaimant[c.Owner.UID] != nil:
		return NeedWrite
	}
	return NeedGrant
}

// EntitledRange returns the range that a claimant in service should have: the one on record stays valid, and a status
// that differs is corrected. If the range is not valid, the returned step is the one to take instead.
func (inv *Inventory) EntitledRange(c *Claimant, t *Attempt) (netipx.IPRange, Step) {
	var r netipx.IPRange
	switch {
	case inv.Quarantine.ShouldAdopt(c):
		r = c.PublishedRange
	case c.HasRecord():
		r = c.RecordedRange
	}
	if g := inv.Grants.ByClaimant[c.Owner.UID]; g != nil && !g.Confirmed {
		if t.Grant == nil {
			return netipx.IPRange{}, StopStep() // the job has waited too long
		}
		r = g.Range
		if err := inv.CheckGrantConflict(c, g); err != nil {
			return netipx.IPRange{}, ErrorStep(err)
		}
	}
	// Another range was recorded.
	if c.HasRecord() && r.IsValid() && c.RecordedRange != r && t.TermVerifiedVersion != c.ResourceVersion {
		return netipx.IPRange{}, NewStep(VerifyTerm)
	}
	return r, StopStep()
}
