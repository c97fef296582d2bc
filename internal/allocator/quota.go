package allocator

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// quota counts the claims of each Cluster that have an address or a grant, over all pools of the manager,
// and keeps them within what the Cluster may have. It saves addresses, not safety: two managers that
// serve a Cluster from two pools may pass it by what they grant in one moment.
type quota struct {
	mu   sync.Mutex
	used map[types.NamespacedName]int64
	// waiting are the pools in which a claim waits for room in the quota of a Cluster.
	waiting map[types.NamespacedName]map[pools.Key]struct{}
	wake    func(pools.Key)
}

func newQuota(wake func(pools.Key)) *quota {
	return &quota{used: map[types.NamespacedName]int64{}, waiting: map[types.NamespacedName]map[pools.Key]struct{}{}, wake: wake}
}

// reserve counts one more for a Cluster, unless it has as many as limit; then the pool is woken when one is
// given back.
func (q *quota) reserve(cluster types.NamespacedName, limit int64, pool pools.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used[cluster] < limit {
		q.used[cluster]++
		return true
	}
	if q.waiting[cluster] == nil {
		q.waiting[cluster] = map[pools.Key]struct{}{}
	}
	q.waiting[cluster][pool] = struct{}{}
	return false
}

// full reports whether reserve would refuse.
func (q *quota) full(cluster types.NamespacedName, limit int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used[cluster] >= limit
}

// add counts what is there, whatever the limit, or what is gone.
func (q *quota) add(cluster types.NamespacedName, n int64) {
	q.mu.Lock()
	if q.used[cluster] += n; q.used[cluster] == 0 {
		delete(q.used, cluster)
	}
	q.mu.Unlock()
	if n < 0 {
		q.changed(cluster)
	}
}

// changed wakes the pools in which claims of a Cluster wait: there is room, or the limit is another one.
func (q *quota) changed(cluster types.NamespacedName) {
	q.mu.Lock()
	pools := q.waiting[cluster]
	delete(q.waiting, cluster)
	q.mu.Unlock()
	for key := range pools {
		q.wake(key)
	}
}

// QuotaChanged has the claims of a Cluster that wait for room in its quota looked at again.
func (a *Allocator) QuotaChanged(cluster types.NamespacedName) { a.quota.changed(cluster) }

// recount notes whether a claim has something that counts.
func (p *memory) recount(c *claimant) {
	has := c.kind.traits().counted && c.cluster.Name != "" && (c.hasRecord() || p.grants[c.owner.UID] != nil)
	switch {
	case has && !c.counted:
		p.quota.add(c.cluster, 1)
	case !has && c.counted:
		p.quota.add(c.cluster, -1)
	}
	c.counted = has
}

// limitOf is how many claims of the Cluster of a claim may have an address; false: as many as there are.
func (p *memory) limitOf(c *claimant) (int64, bool) {
	if !c.kind.traits().counted || c.cluster.Name == "" || p.limits == nil {
		return 0, false
	}
	return p.limits(c.cluster)
}

// reserve counts a claim towards the quota of its Cluster. Nil: it is counted, or need not be.
func (p *memory) reserve(c *claimant) *refusal {
	limit, limited := p.limitOf(c)
	if !limited || c.counted {
		return nil
	}
	if p.quota.reserve(c.cluster, limit, p.key) {
		c.counted = true
		return nil
	}
	return &refusal{reason: v1alpha1.QuotaExceededReason, message: fmt.Sprintf(
		"Cluster %s has addresses for %d machines, as many as quotaPerTenant.maxNodeIPs of its ProviderConfig allows; delete claims or raise the quota",
		c.cluster, limit)}
}

// withinQuota reports whether the quota of its Cluster lets a claim be served.
func (p *memory) withinQuota(c *claimant) bool {
	limit, limited := p.limitOf(c)
	return !limited || c.counted || !p.quota.full(c.cluster, limit)
}
