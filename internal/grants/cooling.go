package grants

import (
	"time"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Cooling has the addresses that cool down, and until when, by the clock of the API server (R9). Each is a fact in
// the ledger.
type Cooling struct {
	Periods *cooling.Set

	space *Space
	clock *Clock
}

// InUseCoolingPeriod is the minimum cooling period of an address for which a foreign machine answers (P7).
const InUseCoolingPeriod = time.Hour

// Release is a range that an owner releases, and how it cools down.
type Release struct {
	Range netipx.IPRange
	Owner ledger.Owner
	// CoolingPeriod is how long the range cools down, 0 if it does not. WithoutName reports whether the range cools
	// down without a name, so that not even its last owner gets it back early.
	CoolingPeriod time.Duration
	WithoutName   bool
}

// NeedsCooling reports whether the cooling period of a release still has to be recorded: none is recorded, or at most
// half of it is left. A range that another owner has as well does not become free, so it needs none.
func (co *Cooling) NeedsCooling(e Release, now time.Time) bool {
	if e.CoolingPeriod == 0 || !e.Range.IsValid() {
		return false
	}
	now = co.clock.apiServerTime(now)
	return co.space.Ledger.FindOverlappingFact(e.Range, func(h *ledger.Fact) bool {
		switch {
		case !h.Range.Contains(e.Range.From()) || !h.Range.Contains(e.Range.To()):
			return false
		case h.Source == ledger.SourceCooling:
			rest := co.coolingEntryFor(h)
			return rest.Until.Sub(now) > e.CoolingPeriod/2 && (!e.WithoutName || rest.Claim.Name == "")
		}
		return h.Source.IsInUse() && h.Owner.UID != e.Owner.UID
	}) == nil
}

// coolingEntryFor returns the cooling entry that a fact of the ledger belongs to.
func (co *Cooling) coolingEntryFor(h *ledger.Fact) cooling.Entry {
	rest, _ := co.Periods.Get(h.Range)
	return rest
}
