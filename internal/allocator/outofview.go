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

// A manager with --namespace may serve a pool that yielded to one of another namespace, while a manager without it ran. No
// watch will ever show that one: what it has is read, as often as the backstop has pools looked at.

// lookAgain is how long a look at a pool that no watch shows is good for.
const lookAgain = time.Minute

// isOutOfView reports whether no watch of this manager shows a pool.
func (a *Allocator) isOutOfView(key pools.Key) bool {
	return a.Namespace != "" && key.Namespace != a.Namespace
}

// hasOutOfView is stillHas of a pool that no watch shows.
func (a *Allocator) hasOutOfView(ctx context.Context, p *grants.Pool, to v1alpha1.YieldedPool, mine declared) (has []netipx.IPRange, why string) {
	m := p.Lock()
	last, looked := m.OutOfView[to]
	m.Unlock()
	if looked && last.Generation == mine.generation && a.now().Sub(last.At) < lookAgain {
		return last.Has, last.Why
	}
	last = grants.OutOfView{At: a.now(), Generation: mine.generation}
	last.Has, last.Why = a.readOutOfView(ctx, to, mine)
	m = p.Lock()
	defer m.Unlock()
	m.OutOfView[to] = last
	return last.Has, last.Why
}

func (a *Allocator) readOutOfView(ctx context.Context, to v1alpha1.YieldedPool, mine declared) (has []netipx.IPRange, why string) {
	ctx, cancel := timed(ctx)
	defer cancel()
	key := keyOfYielded(to)
	unknown := func(err error) string {
		return fmt.Sprintf("%s had addresses of this pool, and this manager, which watches only namespace %s, cannot read what it has of them now: %v; "+
			"give the manager the right to read it, or run a manager without --namespace until this pool is Ready", key, a.Namespace, err)
	}
	live, err := key.Get(ctx, a.Live)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(live.GetUID()) != to.UID:
		return nil, ""
	case err != nil:
		return nil, unknown(err)
	}
	if spec := live.PoolSpec(); spec.Network == mine.network && live.GetGeneration() >= to.Generation {
		if layout, errs := poolspec.Compile(spec); len(errs) == 0 {
			if shared := poolspec.Overlap(layout, mine.layout); len(shared) > 0 {
				return nil, fmt.Sprintf("%s has %s too, and is older; use different addresses, or different values of spec.network if these are different networks", key, poolutil.ShowRange(shared[0]))
			}
		}
	}
	found, err := a.lists.list(ctx, key) // it began after the read: what was in flight then and is not now, it shows
	if err != nil {
		return nil, unknown(err)
	}
	seen := grants.New(key, kinds, grants.NewQuota(func(pools.Key) {})) // for this look alone: nothing would keep it up to date
	seen.SetBase(live)
	seen.ObserveAll(found)
	return seen.UsedIn(mine.layout.GrantableRanges()), ""
}
