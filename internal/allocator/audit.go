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

// Auditor recomputes now and then who owns what, from a consistent list, and reports what must not
// be. It takes nothing from anybody.
type Auditor struct {
	Allocator *Allocator
	Interval  time.Duration

	orphans, drift map[types.UID]bool
}

// Start audits until the context ends, the first time after one interval: at the start there is
// nothing to compare with, and the claims that wait have waited long enough.
func (au *Auditor) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-au.Allocator.Clock.After(au.Interval):
		}
		if err := au.audit(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "The audit could not read the API server; it is repeated")
		}
	}
}

// holding is a range that a living object has, in the order of addresses.
type holding struct {
	rng  netipx.IPRange
	uid  types.UID
	what string
	// about is whom it concerns: the object that its owner looks at.
	about func() grants.Object
}

// findings are what one audit has found so far.
type findings struct {
	living         map[types.UID]struct{}
	held           map[pools.Key][]holding
	orphans, drift map[types.UID]bool
}

// holds notes what an object has, and whether the memory of its pool knows that.
func (f *findings) holds(key pools.Key, h holding, known bool) {
	f.held[key] = append(f.held[key], h)
	if !known {
		f.drift[h.uid] = true
	}
}

// claimant notes what an object has that asks for addresses.
func (f *findings) claimant(m *grants.Memory, k grants.Kind, o client.Object) {
	c := k.Of(o)
	if r := k.Releasable(m, c); r.IsValid() {
		mine := m.Claimants[c.Owner.UID]
		f.holds(m.Key, holding{r, c.Owner.UID, c.Owner.Kind + " " + grants.NameOf(c.Owner).String(), c.Subject},
			mine != nil && k.Releasable(m, mine) == r)
	}
}

// attached notes an object that shows what a claimant was granted: an orphan, if there is no such claimant.
func (f *findings) attached(m *grants.Memory, k grants.Attacher, o client.Object) {
	a := k.Of(o)
	if _, lives := f.living[m.ClaimantOf(a)]; !lives && !a.ByHand {
		f.orphans[a.UID] = true
		return
	}
	if a.IP.IsValid() {
		_, known := m.Ledger.Get(ledger.Key{Source: ledger.Object, UID: a.UID})
		f.holds(m.Key, holding{netipx.IPRangeFrom(a.IP, a.IP), a.UID, a.Text(), a.Subject}, known)
	}
}

// note notes an object of a kind.
func (f *findings) note(a *Allocator, r grants.Resource, o client.Object) {
	if k, is := r.(grants.Kind); is {
		f.living[o.GetUID()] = struct{}{} // whosever its pool is
		if k.Traits().Attaches != nil {
			return // what is attached to it shows what it has
		}
	}
	key, _ := a.poolOf(r, o)
	if key == (pools.Key{}) {
		return
	}
	m := a.locked(key)
	defer m.Unlock()
	switch k := r.(type) {
	case grants.Kind:
		f.claimant(m, k, o)
	case grants.Attacher:
		f.attached(m, k, o)
	}
}

// again counts those that the audit before has found too.
func again(now, before map[types.UID]bool) (n float64) {
	for uid := range now {
		if before[uid] {
			n++
		}
	}
	return n
}

// audit counts duplicates at once. Orphans and drift count when two audits in a row find them: what
// is being written right now is neither.
func (au *Auditor) audit(ctx context.Context) error {
	a := au.Allocator
	f := &findings{
		living: map[types.UID]struct{}{}, held: map[pools.Key][]holding{}, orphans: map[types.UID]bool{}, drift: map[types.UID]bool{},
	}
	for _, r := range slices.Backward(resources) { // claimants before what is attached to them
		_, err := a.Lists.List(ctx, r.Object(), a.Namespace, func(o client.Object) { f.note(a, r, o) })
		if err != nil {
			return err
		}
	}
	duplicates := 0
	for key, all := range f.held {
		duplicates += overlapping(all, func(one, other holding) {
			log.FromContext(ctx).Error(nil, "Two objects have one address", "address", other.rng.From().String(), "pool", key.String(),
				"one", one.what, "other", other.what)
			a.tellDuplicate(one, other)
			a.tellDuplicate(other, one)
		})
	}
	metrics.AuditDuplicates.WithLabelValues().Set(float64(duplicates))
	metrics.AuditOrphans.WithLabelValues().Set(again(f.orphans, au.orphans))
	metrics.AuditDrift.WithLabelValues().Set(again(f.drift, au.drift))
	metrics.AuditTime.WithLabelValues().Set(float64(a.now().Unix()))
	au.orphans, au.drift = f.orphans, f.drift
	return nil
}

// tellDuplicate says on an object that another has an address of it too, where their owners look: neither is to blame,
// and one of the two has to go.
func (a *Allocator) tellDuplicate(h, other holding) {
	first := h.rng.From()
	if first.Less(other.rng.From()) {
		first = other.rng.From()
	}
	a.Recorder.Eventf(h.about(), nil, corev1.EventTypeWarning, "DuplicateAddress", "Audit",
		"%s is held by %s too: find out which machine answers for it, and delete the other claim", first, other.what)
}

// overlapping counts, and reports, the holdings that share an address with an earlier one.
func overlapping(all []holding, report func(one, other holding)) int {
	slices.SortFunc(all, func(a, b holding) int {
		return cmp.Or(a.rng.From().Compare(b.rng.From()), cmp.Compare(a.uid, b.uid))
	})
	n := 0
	var furthest holding
	for _, h := range all {
		if furthest.rng.IsValid() && h.rng.From().Compare(furthest.rng.To()) <= 0 {
			report(furthest, h)
			n++
		}
		if !furthest.rng.IsValid() || !h.rng.To().Less(furthest.rng.To()) {
			furthest = h
		}
	}
	return n
}
