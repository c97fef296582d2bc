package allocator

import (
	"context"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// serves reports whether a pool is of our shard. Where two managers disagree, while their number changes, both serve
// it: that is as safe as it ever is (R5), and ends with the older of the two.
func (a *Allocator) serves(key pools.Key) bool { return a.Shard.Has(key.Kind, key.Namespace, key.Name) }

// notOurs keeps the memory of a pool that this manager does not serve at all, and tells the claims that nobody has told
// anything yet: a manager that does serve the pool has the last word. What its claims hold is its holder's to release. It
// returns when to come back.
func (a *Allocator) notOurs(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, no *grants.Refusal) (wait time.Duration) {
	a.observeOnly(p, seen, a.now())
	clusters := a.lookAtClusters(ctx)
	m := p.Lock()
	m.BeginTurn()
	var tell []*grants.Claimant
	m.Pending.Scan(func(c *grants.Claimant) bool {
		gated := c.Cluster.Name != "" && clusters(c.Cluster).gate != grants.ClusterOpen
		if c.MayBeTried(a.now()) && !gated && !a.leavesAlone(c) && c.ShownRefusal() == (grants.Refusal{}) {
			tell = append(tell, c)
		}
		return true
	})
	m.Unlock()
	a.tell(p, tell, no)
	m = p.Lock()
	defer m.Unlock()
	return m.ComeBack(a.now(), m.NextRetry(a.now()))
}

// observeOnly keeps the memory of a pool of another shard as it is on the API server, and does nothing for it: it says
// nothing to its claims, and releases nothing. Its spec counts for overlaps, and its claims for the quotas of Clusters.
func (a *Allocator) observeOnly(p *grants.Pool, seen v1alpha1.Pool, now time.Time) {
	if seen != nil {
		a.publish(seen)
	}
	m := p.Lock()
	if seen != nil && m.RefreshBase(seen, a.ID, now) {
		countLostTerm(p.Key)
	}
	if seen == nil && m.UnsetBase() {
		metrics.ForgetPool(p.Key.Kind, p.Key.Namespace, p.Key.Name)
	}
	m.RotateGone(now)
	a.tellChildren(m)
	m.Unlock()
	if seen == nil {
		a.withdrawSpec(p.Key)
	}
	a.tellElders(p)
	a.drop(p)
}
