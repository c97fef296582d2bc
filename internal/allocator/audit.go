package allocator

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
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

// audit counts duplicates at once. Orphans and drift count when two audits in a row find them: what
// is being written right now is neither.
func (au *Auditor) audit(ctx context.Context) error {
	a := au.Allocator
	living := map[types.UID]struct{}{}
	held := map[pools.Key][]holding{}
	orphans, drift := map[types.UID]bool{}, map[types.UID]bool{}
	oldOrphans, oldDrift := 0, 0
	// has notes what an object has, and whether the memory knows it.
	has := func(key pools.Key, h holding, known func(*grants.Memory) bool) {
		m := a.locked(key)
		defer m.Unlock()
		held[key] = append(held[key], h)
		if !known(m) {
			drift[h.uid] = true
			if au.drift[h.uid] {
				oldDrift++
			}
		}
	}
	_, err := a.Lists.Claims(ctx, a.Namespace, func(c *ipamv1.IPAddressClaim) { living[c.UID] = struct{}{} })
	if err != nil {
		return err
	}
	_, err = a.Lists.Addresses(ctx, a.Namespace, func(obj *ipamv1.IPAddress) {
		key, ours := a.keyOf(obj.Namespace, obj.Spec.PoolRef)
		if !ours {
			return
		}
		addr := claims.AddressOf(obj)
		if _, lives := living[addr.ClaimantUID]; !lives && !addr.ByHand {
			orphans[addr.UID] = true
			if au.orphans[addr.UID] {
				oldOrphans++
			}
			return
		}
		if addr.IP.IsValid() {
			has(key, holding{netipx.IPRangeFrom(addr.IP, addr.IP), addr.UID, addr.Text(), addr.Subject}, func(m *grants.Memory) bool {
				_, known := m.Ledger.Get(ledger.Key{Source: ledger.Object, UID: addr.UID})
				return known
			})
		}
	})
	if err != nil {
		return err
	}
	_, err = a.Lists.Allocations(ctx, a.Namespace, func(obj *v1alpha1.IPAllocation) {
		if c := blocks.Of(obj); blocks.Range(c).IsValid() {
			has(pools.KeyOfAllocation(obj), holding{blocks.Range(c), c.Owner.UID, "IPAllocation " + grants.NameOf(c.Owner).String(), c.Subject}, func(m *grants.Memory) bool {
				mine := m.Claimants[c.Owner.UID]
				return mine != nil && blocks.Range(mine) == blocks.Range(c)
			})
		}
	})
	if err != nil {
		return err
	}
	duplicates := 0
	for key, all := range held {
		duplicates += overlapping(all, func(one, other holding) {
			log.FromContext(ctx).Error(nil, "Two objects have one address", "address", other.rng.From().String(), "pool", key.String(),
				"one", one.what, "other", other.what)
			a.tellDuplicate(one, other)
			a.tellDuplicate(other, one)
		})
	}
	au.orphans, au.drift = orphans, drift
	metrics.AuditDuplicates.WithLabelValues().Set(float64(duplicates))
	metrics.AuditOrphans.WithLabelValues().Set(float64(oldOrphans))
	metrics.AuditDrift.WithLabelValues().Set(float64(oldDrift))
	metrics.AuditTime.WithLabelValues().Set(float64(a.now().Unix()))
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
