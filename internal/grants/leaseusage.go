package grants

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// LeaseUsage shows how many addresses a pool has for leases, as this manager knows now.
type LeaseUsage struct {
	Key pools.Key
	// LeasesEnabled reports whether the spec of the pool allows leases. If not, the pool still has leases from
	// before.
	LeasesEnabled bool
	// Counts are those of the whole pool, not of its leases alone.
	Counts ledger.Counts
	// CoolingAddresses is the number of released addresses that are cooling down.
	CoolingAddresses int64
	// WaitingLeases is the number of leases without an address.
	WaitingLeases int
	// NamespaceQuota is how many leases of a namespace may have an address, nil if there is no limit. NamespaceUsed
	// is how many leases of the requested namespace have an address or a grant.
	NamespaceQuota *int32
	NamespaceUsed  int64
}

// LeaseUsageFor returns the usage of the pool by leases, with the quota of a namespace. It reports false if the pool
// has no leases and does not allow any.
func (m *PoolState) LeaseUsageFor(namespace string) (LeaseUsage, bool) {
	kind := m.Claimants.kindByName(v1alpha1.IPLeaseKind)
	if m.Base.Pool == nil || m.Dropped || (m.Base.Pool.PoolSpec().Leases == nil && m.Claimants.counts[kind] == 0) {
		return LeaseUsage{}, false
	}
	out := LeaseUsage{Key: m.Base.Key, Counts: m.Space.Ledger.Counts(), NamespaceUsed: m.Quotas.byNamespace[namespaceQuotaKey{kind, namespace}]}
	if spec := m.Base.Pool.PoolSpec().Leases; spec != nil {
		out.LeasesEnabled, out.NamespaceQuota = true, spec.QuotaPerNamespace
	}
	for _, rest := range m.Cooling.Periods.All() {
		out.CoolingAddresses += poolutil.Size(rest.Range)
	}
	m.Queues.Pending.Scan(func(c *Claimant) bool {
		if c.Kind == kind {
			out.WaitingLeases++
		}
		return true
	})
	return out, true
}
