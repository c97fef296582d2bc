package allocator

import (
	"sync"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// poolSet has the state of each pool. A pool is in it from the first object that names the pool until dropUnusedPool.
// mu is never held while the lock of a pool is acquired: dropUnusedPool acquires it under the lock of the pool.
type poolSet struct {
	*Options
	mu    sync.Mutex
	byKey map[pools.Key]*grants.Pool
	// quota counts the claims of each Cluster in all pools.
	quota *grants.Quota
}

// lockPool returns the state of a pool that is not dropped, locked.
func (ps *poolSet) lockPool(key pools.Key) *grants.PoolState {
	for {
		m := ps.getOrCreatePool(key).Lock()
		if !m.Dropped {
			return m
		}
		m.Unlock()
	}
}

func (ps *poolSet) getOrCreatePool(key pools.Key) *grants.Pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byKey[key]
	if p == nil {
		m := grants.NewPoolState(key, claimantKinds, ps.quota)
		m.Clock.SetAPITime(ps.APITime)
		p = grants.NewPool(m)
		ps.byKey[key] = p
	}
	return p
}

// findPool returns a pool that is remembered; nil if there is none.
func (ps *poolSet) findPool(key pools.Key) *grants.Pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.byKey[key]
}

func (ps *poolSet) allPools() []*grants.Pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := make([]*grants.Pool, 0, len(ps.byKey))
	for _, p := range ps.byKey {
		out = append(out, p)
	}
	return out
}

// dropUnusedPool forgets a pool that does not exist and that no object has anything of: claims can name any pool.
func (ps *poolSet) dropUnusedPool(p *grants.Pool) {
	m := p.Lock()
	defer m.Unlock()
	if m.Base.Pool != nil || len(m.Claimants.ByUID)+len(m.Addresses.ByName)+len(m.Grants.ByClaimant)+m.Carved.BlockCount()+m.Queues.ActiveJobs > 0 {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	m.Dropped = true
	delete(ps.byKey, p.Key)
	metrics.DeletePoolMetrics(p.Key.Kind, p.Key.Namespace, p.Key.Name)
}
