package grants

import (
	"k8s.io/apimachinery/pkg/types"
)

// Quotas counts what the claimants have of the quota of their Cluster and of their namespace. A claimant is counted
// once.
type Quotas struct {
	// byNamespace is how much the claimants of a kind in a namespace have of what counts towards the quota of a
	// namespace.
	byNamespace map[namespaceQuotaKey]int64
	// Shared is the quota of all pools. Limit returns the quota of a Cluster; it is nil if there are no quotas.
	Shared *Quota
	Limit  func(types.NamespacedName) (int64, bool)

	base   *Base
	grants *Grants
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

// addQuotaUsage adds a claimant to the usage of its Cluster, or of its namespace in the pool.
func (qs *Quotas) addQuotaUsage(c *Claimant, n int64) {
	if !c.hasNamespaceQuota() {
		qs.Shared.addUsage(c.Cluster, n)
	} else if qs.byNamespace[c.quotaKey()] += n; qs.byNamespace[c.quotaKey()] == 0 {
		delete(qs.byNamespace, c.quotaKey())
	}
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

// IsWithinQuota reports whether the quota of its Cluster allows a claimant to be served.
func (qs *Quotas) IsWithinQuota(c *Claimant) bool {
	limit, limited := qs.quotaLimitFor(c)
	return !limited || c.countedInQuota || !qs.Shared.isFull(c.Cluster, limit)
}
