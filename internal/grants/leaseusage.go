package grants

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// LeaseUsage is how many addresses a pool has for leases yet, as this manager knows now.
type LeaseUsage struct {
	Key pools.Key
	// Gives: it gives leases; else it has given some, and its spec says nothing of them any more.
	Gives bool
	// Counts are of all that has addresses of the pool.
	Counts ledger.Counts
	// Resting are the addresses that were released and are nobody's for a while.
	Resting int64
	// Waiting is the number of leases without an address.
	Waiting int
	// Quota is how many leases of a namespace may have an address; nil: any number. Used: how many of the namespace that
	// was asked for have one, or are about to.
	Quota *int32
	Used  int64
}

// LeaseUsage is how many addresses the pool has for leases of a namespace; false: there are none, and it gives none.
func (m *Memory) LeaseUsage(namespace string) (LeaseUsage, bool) {
	kind := m.kindOf(v1alpha1.IPLeaseKind)
	if m.Base == nil || m.Dropped || (m.Base.PoolSpec().Leases == nil && m.kindCount[kind] == 0) {
		return LeaseUsage{}, false
	}
	out := LeaseUsage{Key: m.Key, Counts: m.Ledger.Counts(), Used: m.shares[share{kind, namespace}]}
	if spec := m.Base.PoolSpec().Leases; spec != nil {
		out.Gives, out.Quota = true, spec.QuotaPerNamespace
	}
	for _, rest := range m.Cooling.All() {
		out.Resting += poolutil.Size(rest.Range)
	}
	m.Pending.Scan(func(c *Claimant) bool {
		if c.Kind == kind {
			out.Waiting++
		}
		return true
	})
	return out, true
}
