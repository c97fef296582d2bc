package grants

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Quotas counts what the claimants have of the quota of their Cluster and of their namespace. A claimant is counted
// once.
type Quotas struct {
	byNamespace map[namespaceQuotaKey]int64
	// Shared is the quota of all pools. Limit returns the quota of a Cluster; it is nil if there are no quotas.
	Shared *Quota
	Limit  func(types.NamespacedName) (int64, bool)

	base   *BasePool
	grants *Grants
}

// Quota counts the claims of each Cluster that have an address or a grant, over all pools of the manager, and
// enforces the quota of the Cluster. It saves addresses, but gives no guarantee: two managers that serve a Cluster
// from two pools may exceed it by what they grant at the same moment.
type Quota struct {
	mu            sync.Mutex
	UsedByCluster map[types.NamespacedName]int64
	// waitingPools are the pools in which a claim waits for room in the quota of a Cluster.
	waitingPools map[types.NamespacedName]map[pools.Key]struct{}
	enqueuePool  func(pools.Key)
}

// NewQuota returns an empty quota. It calls wake for each waiting pool when there is room again.
func NewQuota(wake func(pools.Key)) *Quota {
	return &Quota{UsedByCluster: map[types.NamespacedName]int64{}, waitingPools: map[types.NamespacedName]map[pools.Key]struct{}{}, enqueuePool: wake}
}

// tryReserve counts one more claim for a Cluster, unless the Cluster has reached its limit. In that case the pool is
// enqueued when a claim of the Cluster releases its address.
func (q *Quota) tryReserve(cluster types.NamespacedName, limit int64, pool pools.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.UsedByCluster[cluster] < limit {
		q.UsedByCluster[cluster]++
		return true
	}
	q.awaitRoom(cluster, pool)
	return false
}

// wouldRefuse reports whether tryReserve would refuse a claim. In that case the pool is enqueued later as after
// tryReserve.
func (q *Quota) wouldRefuse(cluster types.NamespacedName, limit int64, pool pools.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.UsedByCluster[cluster] < limit {
		return false
	}
	q.awaitRoom(cluster, pool)
	return true
}

// awaitRoom registers a pool to be enqueued when there is room in the quota of a Cluster. The caller must hold the
// lock.
func (q *Quota) awaitRoom(cluster types.NamespacedName, pool pools.Key) {
	if q.waitingPools[cluster] == nil {
		q.waitingPools[cluster] = map[pools.Key]struct{}{}
	}
	q.waitingPools[cluster][pool] = struct{}{}
}

// isFull reports whether tryReserve would refuse a claim.
func (q *Quota) isFull(cluster types.NamespacedName, limit int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.UsedByCluster[cluster] >= limit
}

// addUsage adds to the usage of a Cluster, regardless of the limit, or subtracts from it if n is negative.
func (q *Quota) addUsage(cluster types.NamespacedName, n int64) {
	q.mu.Lock()
	if q.UsedByCluster[cluster] += n; q.UsedByCluster[cluster] == 0 {
		delete(q.UsedByCluster, cluster)
	}
	q.mu.Unlock()
	if n < 0 {
		q.EnqueueWaitingPools(cluster)
	}
}

// EnqueueWaitingPools enqueues the pools in which claims of a Cluster wait: there is room, or the limit has changed.
func (q *Quota) EnqueueWaitingPools(cluster types.NamespacedName) {
	q.mu.Lock()
	pools := q.waitingPools[cluster]
	delete(q.waitingPools, cluster)
	q.mu.Unlock()
	for key := range pools {
		q.enqueuePool(key)
	}
}

// updateQuotaCount updates the quota by whether a claimant has a range that counts.
func (qs *Quotas) updateQuotaCount(c *Claimant) {
	counts := (c.Kind.Traits().CountsTowardsQuota && c.Cluster.Name != "") || c.hasNamespaceQuota()
	isCounted := counts && (c.HasRecord() || qs.grants.ByClaimant[c.Owner.UID] != nil)
	switch {
	case isCounted && !c.countedInQuota:
		qs.addQuotaUsage(c, 1)
	case !isCounted && c.countedInQuota:
		qs.addQuotaUsage(c, -1)
	}
	c.countedInQuota = isCounted
}

// namespaceQuotaKey identifies the claimants of one kind in one namespace, whose usage of a pool is counted together.
type namespaceQuotaKey struct {
	kind      ClaimantKind
	namespace string
}

func (c *Claimant) quotaKey() namespaceQuotaKey { return namespaceQuotaKey{c.Kind, c.Owner.Namespace} }

// addQuotaUsage adds a claimant to the usage of its Cluster, or of its namespace in the pool.
func (qs *Quotas) addQuotaUsage(c *Claimant, n int64) {
	if !c.hasNamespaceQuota() {
		qs.Shared.addUsage(c.Cluster, n)
	} else if qs.byNamespace[c.quotaKey()] += n; qs.byNamespace[c.quotaKey()] == 0 {
		delete(qs.byNamespace, c.quotaKey())
	}
}

// hasNamespaceQuota reports whether a claimant counts towards the quota of its namespace in the pool: a block of a
// carved pool does, and each claimant whose kind has that trait. A block of a GlobalNetworkPool does not, because the
// creator of such a pool is not a tenant.
func (c *Claimant) hasNamespaceQuota() bool {
	return c.Kind.Traits().HasNamespaceQuota || (c.ChildPool != nil && c.ChildPool.Kind != v1alpha1.GlobalNetworkPoolKind)
}

// UsageByOthers returns how much of the pool the claimants of the kind and the namespace of a claimant have, without
// that claimant.
func (qs *Quotas) UsageByOthers(c *Claimant) int64 {
	n := qs.byNamespace[c.quotaKey()]
	if c.hasNamespaceQuota() && c.countedInQuota {
		n--
	}
	return n
}

// quotaLimitFor returns how many claims of the Cluster of a claimant may have an address. It reports false if there
// is no limit.
func (qs *Quotas) quotaLimitFor(c *Claimant) (int64, bool) {
	if !c.Kind.Traits().CountsTowardsQuota || c.Cluster.Name == "" || qs.Limit == nil {
		return 0, false
	}
	return qs.Limit(c.Cluster)
}

// reserveQuota counts a claimant towards the quota of its Cluster or of its namespace, so that the next decision of
// the same plan takes it into account. It returns nil if the claimant is counted, or does not have to be.
func (qs *Quotas) reserveQuota(c *Claimant) *Refusal {
	if c.hasNamespaceQuota() && !c.countedInQuota {
		qs.addQuotaUsage(c, 1)
		c.countedInQuota = true
		return nil
	}
	limit, limited := qs.quotaLimitFor(c)
	if !limited || c.countedInQuota {
		return nil
	}
	if qs.Shared.tryReserve(c.Cluster, limit, qs.base.Key) {
		c.countedInQuota = true
		return nil
	}
	return quotaExceeded(c, limit)
}

func quotaExceeded(c *Claimant, limit int64) *Refusal {
	return &Refusal{Reason: v1alpha1.QuotaExceededReason, Message: fmt.Sprintf(
		"Cluster %s has as many machine addresses as quotaPerTenant.maxNodeIPs of its ProviderConfig allows: %d; delete claims or raise the quota",
		c.Cluster, limit)}
}

// IsWithinQuota reports whether the quota of its Cluster allows a claimant to be served.
func (qs *Quotas) IsWithinQuota(c *Claimant) bool {
	limit, limited := qs.quotaLimitFor(c)
	return !limited || c.countedInQuota || !qs.Shared.isFull(c.Cluster, limit)
}

// SetLimit sets the function that returns the quota of a Cluster; nil means that there are no quotas.
func (qs *Quotas) SetLimit(limit func(types.NamespacedName) (int64, bool)) { qs.Limit = limit }
