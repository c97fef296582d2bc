package allocator

import (
	"context"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// serves reports whether a pool is of our shard. Where two managers disagree, while their number changes, both serve
// it: that is as safe as it ever is (R5), and ends with the older of the two.
func (a *Allocator) serves(key pools.Key) bool { return a.Shard.Has(key.Kind, key.Namespace, key.Name) }

// notOurs keeps the memory of a pool that this manager does not serve at all, and tells the claims that nobody has told
// anything yet: a manager that does serve the pool has the last word. What its claims hold is its holder's to release.
func (a *Allocator) notOurs(ctx context.Context, p *pool, seen v1alpha1.Pool, no *refusal) {
	a.observeOnly(p, seen, a.now())
	m := p.lock()
	var tell []*claimant
	m.pending.Scan(func(c *claimant) bool {
		gated := c.cluster.Name != "" && a.gateOf(ctx, c.cluster) != open
		if !gated && !a.leavesAlone(c) && !c.busy && c.shownRefusal() == (refusal{}) {
			tell = append(tell, c)
		}
		return true
	})
	m.unlock()
	a.tell(p, tell, no)
}

// observeOnly keeps the memory of a pool of another shard as it is on the API server, and does nothing for it: it says
// nothing to its claims, and releases nothing. Its spec counts for overlaps, and its claims for the quotas of Clusters.
func (a *Allocator) observeOnly(p *pool, seen v1alpha1.Pool, now time.Time) {
	if seen != nil {
		a.publishSpec(seen)
	}
	m := p.lock()
	if seen != nil && m.refreshBase(seen, a.ID, now) {
		countLostTerm(p.key)
	}
	if seen == nil && m.unsetBase() {
		metrics.ForgetPool(p.key.Kind, p.key.Namespace, p.key.Name)
	}
	m.rotateGone(now)
	m.unlock()
	if seen == nil {
		a.withdrawSpec(p.key)
	}
	a.tellElders(p)
	a.drop(p)
}
