package grants

import (
	"fmt"
	"time"

	"go4.org/netipx"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Cooling has the addresses that cool down, and until when, by the clock of the API server (R9). Each is a fact in
// the ledger.
type Cooling struct {
	Periods *cooling.Set

	base  *BasePool
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

// coolingPeriodFor returns how long the released range of a claimant cools down, 0 if it does not.
func (co *Cooling) coolingPeriodFor(c *Claimant) time.Duration {
	if c.UsedByOthers && co.base.Pool != nil {
		return max(co.reuseGracePeriod(), InUseCoolingPeriod)
	}
	return co.reuseGracePeriod()
}

// maxCoolingPeriod returns how long an entry may cool down at most. An entry without a name may be that of an address
// in use by a foreign machine (P7); its text does not show that, so the longer period applies.
func (co *Cooling) maxCoolingPeriod(rest cooling.Entry) time.Duration {
	grace := co.reuseGracePeriod()
	if grace == 0 || rest.Claim.Name == "" {
		return max(grace, InUseCoolingPeriod)
	}
	return grace
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

// reuseGracePeriod returns how long an address cools down before another claimant gets it, 0 if it does not.
func (co *Cooling) reuseGracePeriod() time.Duration {
	if co.base.Pool == nil {
		return 0
	}
	return time.Duration(max(0, ptr.Deref(co.base.Pool.PoolSpec().AddressReuseGracePeriodSeconds, 0))) * time.Second
}

// reuseGraceNote returns a note that released addresses are not free at once. It is empty if the pool has no reuse
// grace period.
func (co *Cooling) reuseGraceNote() string {
	if co.reuseGracePeriod() == 0 {
		return ""
	}
	return fmt.Sprintf(": released addresses become free after addressReuseGracePeriodSeconds (%d)", int(co.reuseGracePeriod().Seconds()))
}
