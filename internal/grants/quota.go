package grants

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Quota counts the claims of each Cluster that have an address or a grant, over all pools of the manager,
// and keeps them within what the Cluster may have. It saves addresses, not safety: two managers that
// serve a Cluster from two pools may pass it by what they grant in one moment.
type Quota struct {
	mu   sync.Mutex
	Used map[types.NamespacedName]int64
	// waiting are the pools in which a claim waits for room in the quota of a Cluster.
	waiting map[types.NamespacedName]map[pools.Key]struct{}
	wake    func(pools.Key)
}

// NewQuota returns a quota in which nothing is counted. It has pools woken that wait for room.
func NewQuota(wake func(pools.Key)) *Quota {
	return &Quota{Used: map[types.NamespacedName]int64{}, waiting: map[types.NamespacedName]map[pools.Key]struct{}{}, wake: wake}
}

// reserve counts one more for a Cluster, unless it has as many as limit; then the pool is woken when one is
// given back.
func (q *Quota) reserve(cluster types.NamespacedName, limit int64, pool pools.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.Used[cluster] < limit {
		q.Used[cluster]++
		return true
	}
	q.await(cluster, pool)
	return false
}

// refuses reports whether reserve would refuse; then the pool is woken as if it had.
func (q *Quota) refuses(cluster types.NamespacedName, limit int64, pool pools.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.Used[cluster] < limit {
		return false
	}
	q.await(cluster, pool)
	return true
}

// await has a pool woken when there is room in the quota of a Cluster.
func (q *Quota) await(cluster types.NamespacedName, pool pools.Key) {
	if q.waiting[cluster] == nil {
		q.waiting[cluster] = map[pools.Key]struct{}{}
	}
	q.waiting[cluster][pool] = struct{}{}
}

// full reports whether reserve would refuse.
func (q *Quota) full(cluster types.NamespacedName, limit int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.Used[cluster] >= limit
}

// add counts what is there, whatever the limit, or what is gone.
func (q *Quota) add(cluster types.NamespacedName, n int64) {
	q.mu.Lock()
	if q.Used[cluster] += n; q.Used[cluster] == 0 {
		delete(q.Used, cluster)
	}
	q.mu.Unlock()
	if n < 0 {
		q.Changed(cluster)
	}
}

// Changed wakes the pools in which claims of a Cluster wait: there is room, or the limit is another one.
func (q *Quota) Changed(cluster types.NamespacedName) {
	q.mu.Lock()
	pools := q.waiting[cluster]
	delete(q.waiting, cluster)
	q.mu.Unlock()
	for key := range pools {
		q.wake(key)
	}
}

// recount notes whether a claim has something that counts.
func (m *Memory) recount(c *Claimant) {
	counts := (c.Kind.Traits().Counted && c.Cluster.Name != "") || c.perNamespace()
	has := counts && (c.HasRecord() || m.Grants[c.Owner.UID] != nil)
	switch {
	case has && !c.counted:
		m.count(c, 1)
	case !has && c.counted:
		m.count(c, -1)
	}
	c.counted = has
}

// share is what the claimants of one kind in one namespace have of a pool.
type share struct {
	kind      Kind
	namespace string
}

func (c *Claimant) share() share { return share{c.Kind, c.Owner.Namespace} }

// count counts a claimant towards the quota of its Cluster, or towards what the pool gives its namespace.
func (m *Memory) count(c *Claimant, n int64) {
	if !c.perNamespace() {
		m.Quota.add(c.Cluster, n)
	} else if m.shares[c.share()] += n; m.shares[c.share()] == 0 {
		delete(m.shares, c.share())
	}
}

// perNamespace reports whether a claimant counts towards what the pool gives its namespace: a block for a pool does, and
// what its kind says so of. Who makes a GlobalNetworkPool is no tenant.
func (c *Claimant) perNamespace() bool {
	return c.Kind.Traits().PerNamespace || (c.Child != nil && c.Child.Kind != v1alpha1.GlobalNetworkPoolKind)
}

// OthersOf is how much the pool has given to the kind and the namespace of a claimant, besides that.
func (m *Memory) OthersOf(c *Claimant) int64 {
	n := m.shares[c.share()]
	if c.perNamespace() && c.counted {
		n--
	}
	return n
}

// limitOf is how many claims of the Cluster of a claim may have an address; false: as many as there are.
func (m *Memory) limitOf(c *Claimant) (int64, bool) {
	if !c.Kind.Traits().Counted || c.Cluster.Name == "" || m.Limits == nil {
		return 0, false
	}
	return m.Limits(c.Cluster)
}

// reserve counts a claim towards the quota of its Cluster, or towards what the pool gives its namespace: the next one of
// the same plan is decided on it. Nil: it is counted, or need not be.
func (m *Memory) reserve(c *Claimant) *Refusal {
	if c.perNamespace() && !c.counted {
		m.count(c, 1)
		c.counted = true
		return nil
	}
	limit, limited := m.limitOf(c)
	if !limited || c.counted {
		return nil
	}
	if m.Quota.reserve(c.Cluster, limit, m.Key) {
		c.counted = true
		return nil
	}
	return overQuota(c, limit)
}

func overQuota(c *Claimant, limit int64) *Refusal {
	return &Refusal{Reason: v1alpha1.QuotaExceededReason, Message: fmt.Sprintf(
		"Cluster %s has as many machine addresses as quotaPerTenant.maxNodeIPs of its ProviderConfig allows: %d; delete claims or raise the quota",
		c.Cluster, limit)}
}

// WithinQuota reports whether the quota of its Cluster lets a claim be served.
func (m *Memory) WithinQuota(c *Claimant) bool {
	limit, limited := m.limitOf(c)
	return !limited || c.counted || !m.Quota.full(c.Cluster, limit)
}
