package allocator

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
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

// audit counts duplicates at once. Orphans and drift count when two audits in a row find them: what
// is being written right now is neither.
func (au *Auditor) audit(ctx context.Context) error {
	a := au.Allocator
	found, err := a.lists.list(ctx, a.Namespace)
	if err != nil {
		return err
	}
	orphans, drift := map[types.UID]bool{}, map[types.UID]bool{}
	duplicates, oldOrphans, oldDrift := 0, 0, 0
	for key, addrs := range found.addrs {
		living := map[types.UID]bool{}
		for _, c := range found.claims[key] {
			living[c.owner.UID] = true
		}
		owners := map[netip.Addr]types.UID{}
		p := a.locked(key)
		for _, addr := range addrs {
			if addr.claimUID != "" && !living[addr.claimUID] {
				orphans[addr.uid] = true
				if au.orphans[addr.uid] {
					oldOrphans++
				}
				continue
			}
			if other, taken := owners[addr.ip]; taken && addr.ip.IsValid() && other != addr.claimUID {
				duplicates++
				log.FromContext(ctx).Error(nil, "Two claims have one address", "address", addr.ip.String(), "pool", key.String(),
					"claim", addr.key().String())
			}
			owners[addr.ip] = addr.claimUID
			if _, known := p.ledger.Get(ledger.Key{Source: ledger.Object, UID: addr.uid}); !known && addr.ip.IsValid() {
				drift[addr.uid] = true
				if au.drift[addr.uid] {
					oldDrift++
				}
			}
		}
		p.mu.Unlock()
	}
	au.orphans, au.drift = orphans, drift
	metrics.AuditDuplicates.WithLabelValues().Set(float64(duplicates))
	metrics.AuditOrphans.WithLabelValues().Set(float64(oldOrphans))
	metrics.AuditDrift.WithLabelValues().Set(float64(oldDrift))
	metrics.AuditTime.WithLabelValues().Set(float64(a.now().Unix()))
	return nil
}
