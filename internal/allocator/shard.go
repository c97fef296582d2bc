package allocator

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// serves tells whether a pool is of our shard. Where two managers disagree, while their number changes, both serve it: that is as
// safe as it ever is (R5), and ends with the older of the two.
func (a *Allocator) serves(key PoolKey) bool { return a.Shard.Has(key.Kind, key.Namespace, key.Name) }

// watchOnly keeps the memory of a pool of another shard as it is on the API server, and does nothing for it: it says nothing to its
// claims, and releases nothing. Its spec counts for overlaps, and its claims for the quotas of Clusters.
func (a *Allocator) watchOnly(p *pool, seen v1alpha1.Pool, now time.Time) {
	if seen != nil {
		p.learn(seen, a.ID, now)
	}
	p.mu.Lock()
	if seen == nil {
		p.unsetBase()
	}
	p.rotateGone(now)
	p.mu.Unlock()
	a.declare(p)
	a.drop(p)
}
