package allocator

import (
	"context"
	"fmt"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// A manager with --namespace may serve a pool that yielded to a pool of another namespace while a manager without
// --namespace ran. No watch will ever show that other pool: its addresses are read, as often as the periodic reconcile
// of pools runs.

// outOfViewReadInterval is how long the result of reading a pool that no watch shows is valid.
const outOfViewReadInterval = time.Minute

// isOutOfView reports whether no watch of this manager shows a pool.
func (a *Allocator) isOutOfView(key pools.Key) bool {
	return a.Namespace != "" && key.Namespace != a.Namespace
}

// rangesUsedOutOfView is rangesUsedByOlderPool for a pool that no watch shows.
func (a *Allocator) rangesUsedOutOfView(ctx context.Context, p *grants.Pool, to v1alpha1.YieldedPool, own poolDeclaration) (used []netipx.IPRange, why string) {
	m := p.Lock()
	last, known := m.Overlap.UnwatchedUsage[to]
	m.Unlock()
	if known && last.Generation == own.generation && a.now().Sub(last.ReadAt) < outOfViewReadInterval {
		return last.UsedRanges, last.BlockedReason
	}
	last = grants.UnwatchedUsage{ReadAt: a.now(), Generation: own.generation}
	last.UsedRanges, last.BlockedReason = a.readPoolOutOfView(ctx, to, own)
	m = p.Lock()
	defer m.Unlock()
	m.Overlap.UnwatchedUsage[to] = last
	return last.UsedRanges, last.BlockedReason
}

func (a *Allocator) readPoolOutOfView(ctx context.Context, to v1alpha1.YieldedPool, own poolDeclaration) (used []netipx.IPRange, why string) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	key := yieldedPoolKey(to)
	unknown := func(err error) string {
		return fmt.Sprintf("%s had addresses of this pool. This manager watches only namespace %s and cannot read which ones are still in use: %v; "+
			"give the manager the right to read it, or run a manager without --namespace until this pool is Ready", key, a.Namespace, err)
	}
	live, err := key.GetPool(ctx, a.Live)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(live.GetUID()) != to.UID:
		return nil, ""
	case err != nil:
		return nil, unknown(err)
	}
	if spec := live.PoolSpec(); spec.Network == own.network && live.GetGeneration() >= to.Generation {
		if layout, errs := poolspec.Compile(spec); len(errs) == 0 {
			if shared := poolspec.OverlappingRanges(layout, own.layout); len(shared) > 0 {
				return nil, fmt.Sprintf("%s has %s too, and is older; use different addresses, or different values of spec.network if these are different networks", key, poolutil.ShowRange(shared[0]))
			}
		}
	}
	found, err := a.poolLister.listPool(ctx, key) // it began after the read: it shows what was in flight then and is not now
	if err != nil {
		return nil, unknown(err)
	}
	// For this read alone: nothing would keep the state up to date.
	seen := grants.NewPoolState(key, claimantKinds, grants.NewQuota(func(pools.Key) {}))
	seen.SetBasePool(live)
	seen.ObserveListed(found)
	return seen.Overlap.UsedRangesIn(own.layout.GrantableRanges()), ""
}
