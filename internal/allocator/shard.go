package allocator

import (
	"context"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// isInShard reports whether a pool is in the shard of this manager. Where two managers disagree, while their number
// changes, both serve the pool: that is as safe as ever (R5), and ends with the older of the two.
func (a *Allocator) isInShard(key pools.Key) bool {
	return a.Shard.Has(key.Kind, key.Namespace, key.Name)
}

// observeUnservedPool keeps the state of a pool that this manager does not serve at all up to date, and writes a
// refusal to the claims that have none yet: a manager that serves the pool has the last word. Only the pool's holder
// releases the addresses of the claims. It returns the delay until the next reconcile.
func (a *Allocator) observeUnservedPool(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, refusal *grants.Refusal) (wait time.Duration) {
	a.observePoolOnly(p, seen, a.now())
	clusters := a.newClusterLookup(ctx)
	m := p.Lock()
	m.BeginReconcile()
	var toRefuse []*grants.Claimant
	m.Queues.Waiting.Scan(func(c *grants.Claimant) bool {
		clusterNotReady := c.Cluster.Name != "" && clusters(c.Cluster).state != grants.ClusterReady
		if c.IsDue(a.now()) && !clusterNotReady && !a.shouldIgnoreClaimant(c) && c.PublishedRefusal() == (grants.Refusal{}) {
			toRefuse = append(toRefuse, c)
		}
		return true
	})
	m.Unlock()
	a.refuseClaimants(p, toRefuse, refusal)
	m = p.Lock()
	defer m.Unlock()
	return m.EndReconcile(a.now(), m.Queues.NextRetryDelay(a.now()))
}

// observePoolOnly keeps the state of a pool of another shard as it is on the API server, and does nothing for the pool:
// it writes nothing to its claims, and releases nothing. The spec counts for overlaps, and the claims count for the
// quotas of Clusters.
func (a *Allocator) observePoolOnly(p *grants.Pool, seen v1alpha1.Pool, now time.Time) {
	if seen != nil {
		a.publishDeclaration(seen)
	}
	m := p.Lock()
	if seen != nil && m.RefreshBasePool(seen, a.ManagerID, now) {
		countLostTerm(p.Key)
	}
	if seen == nil && m.ClearBasePool() {
		metrics.DeletePoolGauges(p.Key.Kind, p.Key.Namespace, p.Key.Name)
	}
	m.Claimants.Gone.Rotate(now)
	a.enqueueChildren(m)
	m.Unlock()
	if seen == nil {
		a.withdrawDeclaration(p.Key)
	}
	a.enqueueOlderPools(p)
	a.dropUnusedPool(p)
}
