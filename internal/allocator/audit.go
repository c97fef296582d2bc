package allocator

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Auditor periodically recomputes from consistent lists which object has which address, and reports duplicates, orphans
// and drift. It changes no allocation.
type Auditor struct {
	Allocator *Allocator
	Interval  time.Duration

	previousOrphans, previousDrift map[types.UID]bool
}

// Start audits until the context ends, the first time after one interval: at the start there is nothing to compare
// with, and the waiting claims have waited long enough.
func (au *Auditor) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-au.Allocator.Clock.After(au.Interval):
		}
		if err := au.runAudit(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "The audit could not read the API server; it is repeated")
		}
	}
}

// heldRange is a range that a living object has. reportOverlaps sorts them by address.
type heldRange struct {
	ipRange     netipx.IPRange
	uid         types.UID
	description string
	// eventSubject returns the object that an event about the range is recorded on: the one that its owner reads.
	eventSubject func() grants.Object
}

// auditFindings holds the findings of one audit so far.
type auditFindings struct {
	livingClaimants map[types.UID]struct{}
	rangesByPool    map[pools.Key][]heldRange
	orphans, drift  map[types.UID]bool
}

// addRange records what an object has, and whether the state of its pool knows that.
func (f *auditFindings) addRange(key pools.Key, h heldRange, known bool) {
	f.rangesByPool[key] = append(f.rangesByPool[key], h)
	if !known {
		f.drift[h.uid] = true
	}
}

// addClaimant records what an object that requests addresses has.
func (f *auditFindings) addClaimant(m *grants.PoolState, k grants.ClaimantKind, o client.Object) {
	c := k.NewClaimant(o)
	if r := k.ReleasableRange(m.Inventory, c); r.IsValid() {
		known := m.Claimants.ByUID[c.Owner.UID]
		f.addRange(m.Base.Key, heldRange{r, c.Owner.UID, c.Owner.Kind + " " + grants.NamespacedNameFromOwner(c.Owner).String(), c.EventObject},
			known != nil && k.ReleasableRange(m.Inventory, known) == r)
	}
}

// addAddress records an object that shows what a claimant was granted: it is an orphan if that claimant does not exist.
func (f *auditFindings) addAddress(m *grants.PoolState, k grants.AddressKind, o client.Object) {
	a := k.NewAddress(o)
	if _, lives := f.livingClaimants[m.Addresses.ClaimantUIDFor(a)]; !lives && !a.CreatedManually {
		f.orphans[a.UID] = true
		return
	}
	if a.IP.IsValid() {
		_, known := m.Space.Ledger.FindFact(ledger.Key{Source: ledger.SourceObject, UID: a.UID})
		f.addRange(m.Base.Key, heldRange{netipx.IPRangeFrom(a.IP, a.IP), a.UID, a.DisplayName(), a.EventObject}, known)
	}
}

// addObject records an object of a kind.
func (f *auditFindings) addObject(a *Allocator, r grants.ResourceKind, o client.Object) {
	if k, ok := r.(grants.ClaimantKind); ok {
		f.livingClaimants[o.GetUID()] = struct{}{} // whichever manager serves its pool
		if k.Traits().AddressKind != nil {
			return // the object attached to it shows what it has
		}
	}
	key, _ := a.scope.poolKeyForObject(r, o)
	if key == (pools.Key{}) {
		return
	}
	m := a.pools.lockPool(key)
	defer m.Unlock()
	switch k := r.(type) {
	case grants.ClaimantKind:
		f.addClaimant(m, k, o)
	case grants.AddressKind:
		f.addAddress(m, k, o)
	}
}

// countRepeated returns how many of now the previous audit found, too.
func countRepeated(now, before map[types.UID]bool) (n float64) {
	for uid := range now {
		if before[uid] {
			n++
		}
	}
	return n
}

// runAudit counts duplicates at once. Orphans and drift count when two audits in a row find them: an object that is
// being written is neither.
func (au *Auditor) runAudit(ctx context.Context) error {
	a := au.Allocator
	f := &auditFindings{
		livingClaimants: map[types.UID]struct{}{}, rangesByPool: map[pools.Key][]heldRange{}, orphans: map[types.UID]bool{}, drift: map[types.UID]bool{},
	}
	for _, r := range slices.Backward(resourceKinds) { // claimants before the objects attached to them
		_, err := a.Lister.List(ctx, r.NewObject(), a.Namespace, func(o client.Object) { f.addObject(a, r, o) })
		if err != nil {
			return err
		}
	}
	duplicates := 0
	for key, all := range f.rangesByPool {
		duplicates += reportOverlaps(all, func(one, other heldRange) {
			log.FromContext(ctx).Error(nil, "Two objects have one address", "address", other.ipRange.From().String(), "pool", key.String(),
				"one", one.description, "other", other.description)
			au.recordDuplicateEvent(one, other)
			au.recordDuplicateEvent(other, one)
		})
	}
	metrics.AuditDuplicates.WithLabelValues().Set(float64(duplicates))
	metrics.AuditOrphans.WithLabelValues().Set(countRepeated(f.orphans, au.previousOrphans))
	metrics.AuditDrift.WithLabelValues().Set(countRepeated(f.drift, au.previousDrift))
	metrics.LastAuditTime.WithLabelValues().Set(float64(a.now().Unix()))
	au.previousOrphans, au.previousDrift = f.orphans, f.drift
	return nil
}

// recordDuplicateEvent records on an object, where its owner reads it, that another object also has an address of it:
// neither is to blame, and one of the two has to go.
func (au *Auditor) recordDuplicateEvent(h, other heldRange) {
	first := h.ipRange.From()
	if first.Less(other.ipRange.From()) {
		first = other.ipRange.From()
	}
	au.Allocator.Recorder.Eventf(h.eventSubject(), nil, corev1.EventTypeWarning, "DuplicateAddress", "Audit",
		"%s is held by %s too: find out which machine answers for it, and delete the other claim", first, other.description)
}

// reportOverlaps counts and reports the ranges that share an address with an earlier one.
func reportOverlaps(all []heldRange, report func(one, other heldRange)) int {
	slices.SortFunc(all, func(a, b heldRange) int {
		return cmp.Or(a.ipRange.From().Compare(b.ipRange.From()), cmp.Compare(a.uid, b.uid))
	})
	n := 0
	var furthest heldRange
	for _, h := range all {
		if furthest.ipRange.IsValid() && h.ipRange.From().Compare(furthest.ipRange.To()) <= 0 {
			report(furthest, h)
			n++
		}
		if !furthest.ipRange.IsValid() || !h.ipRange.To().Less(furthest.ipRange.To()) {
			furthest = h
		}
	}
	return n
}
