package allocator

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
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
	living := map[types.UID]struct{}{}
	_, err := a.Lists.Claims(ctx, a.Namespace, func(c *ipamv1.IPAddressClaim) { living[c.UID] = struct{}{} })
	if err != nil {
		return err
	}
	type place struct {
		pool *pool
		ip   netip.Addr
	}
	owners := map[place]types.UID{}
	orphans, drift := map[types.UID]bool{}, map[types.UID]bool{}
	duplicates, oldOrphans, oldDrift := 0, 0, 0
	_, err = a.Lists.Addresses(ctx, a.Namespace, func(obj *ipamv1.IPAddress) {
		key, ours := keyOfRef(obj.Namespace, obj.Spec.PoolRef)
		if !ours {
			return
		}
		addr := addressOf(obj)
		if _, lives := living[addr.claimUID]; !lives && addr.claimUID != "" {
			orphans[addr.uid] = true
			if au.orphans[addr.uid] {
				oldOrphans++
			}
			return
		}
		if !addr.ip.IsValid() {
			return
		}
		p := a.locked(key)
		defer p.mu.Unlock()
		at := place{p, addr.ip}
		if other, taken := owners[at]; taken && other != addr.claimUID {
			duplicates++
			log.FromContext(ctx).Error(nil, "Two claims have one address", "address", addr.ip.String(), "pool", key.String(),
				"claim", addr.key().String())
		}
		owners[at] = addr.claimUID
		if _, known := p.ledger.Get(ledger.Key{Source: ledger.Object, UID: addr.uid}); !known {
			drift[addr.uid] = true
			if au.drift[addr.uid] {
				oldDrift++
			}
		}
	})
	if err != nil {
		return err
	}
	au.orphans, au.drift = orphans, drift
	metrics.AuditDuplicates.WithLabelValues().Set(float64(duplicates))
	metrics.AuditOrphans.WithLabelValues().Set(float64(oldOrphans))
	metrics.AuditDrift.WithLabelValues().Set(float64(oldDrift))
	metrics.AuditTime.WithLabelValues().Set(float64(a.now().Unix()))
	return nil
}
