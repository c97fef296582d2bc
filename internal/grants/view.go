package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ViewChunkSize is how many ranges are read before the lock of a pool is released, so that a reader of the pool does
// not delay its grants.
const ViewChunkSize = 128

// PoolView is the state of a pool at one moment.
type PoolView struct {
	Key pools.Key
	// Declared are the addresses in the spec; Allocatable are those of them that the pool allocates. Both are nil if
	// no valid spec was compiled yet. Neither is ever modified.
	Declared, Allocatable *netipx.IPSet
	// UnitBits is the prefix length of the unit that each claim gets: 32 or 128 for single addresses.
	UnitBits int
	// Gateways are the gateways in the spec.
	Gateways []netip.Addr
	// Counts are the current counts of this manager; the status of the pool may be some moments behind.
	Counts ledger.Counts
	// ParentKey is the pool that the pool is carved from, or the zero key if it is not carved.
	ParentKey pools.Key
	// WaitingCount is the number of claimants without an address and without a grant.
	WaitingCount int
	// LeaseCount is the number of leases that name the pool, LeasesEnabled reports whether the pool allows leases,
	// and LeaseQuota is how many addresses the leases of a namespace may have, nil if there is no limit.
	LeaseCount    int
	LeasesEnabled bool
	LeaseQuota    *int32
	// Holder reports whether this manager is the holder of the pool. If not, the data of the holder is more current.
	Holder bool
	// ReadyCondition is the condition Ready of the pool as it was last read or written.
	ReadyCondition metav1.Condition
}

// BuildView returns the view of the current state of the pool. It reports false if the pool does not exist.
func (m *PoolState) BuildView() (v PoolView, exists bool) {
	if m.Base.Pool == nil || m.Dropped {
		return PoolView{}, false
	}
	v = PoolView{Key: m.Base.Key, Counts: m.Space.Ledger.Counts(), WaitingCount: m.Queues.Waiting.Len(), Holder: m.Term.Holder}
	if carved := m.Base.Pool.PoolSpec().Carve; carved != nil {
		v.ParentKey = pools.KeyFromPoolReference(m.Base.Pool.GetNamespace(), carved.PoolRef)
	}
	if k := m.Claimants.kindByName(v1alpha1.IPLeaseKind); k.Traits().Name == v1alpha1.IPLeaseKind {
		v.LeaseCount = m.Claimants.counts[k]
	}
	if spec := m.Base.Pool.PoolSpec().Leases; spec != nil {
		v.LeasesEnabled, v.LeaseQuota = true, spec.QuotaPerNamespace
	}
	v.ReadyCondition = ptr.Deref(meta.FindStatusCondition(m.Base.Pool.GetConditions(), v1alpha1.ReadyCondition), metav1.Condition{})
	if m.Space.Layout != nil {
		v.Declared, v.Allocatable, v.UnitBits = m.Space.Layout.Declared(), m.Space.Layout.Allocatable(), m.Space.Layout.UnitBits()
		v.Gateways = m.Space.Layout.Gateways()
	}
	return v, true
}

// RangeUse is why an address is not free.
type RangeUse uint8

// The uses up to UseConflict mean that an object has the address.
const (
	// UseClaim is the address of an IPAddressClaim.
	UseClaim RangeUse = iota
	// UseLoadBalancer is part of an IPAllocation for load balancers.
	UseLoadBalancer
	// UseNodes is part of an IPAllocation for machines.
	UseNodes
	// UseCarved is part of an IPAllocation for a carved pool.
	UseCarved
	// UsePods is part of an IPAllocation for the pod CIDRs of Nodes.
	UsePods
	// UseLease is the address of an IPLease.
	UseLease
	// UseOrphan is the address of an IPAddress whose claim is not known.
	UseOrphan
	// UseConflict is an address that more than one owner has.
	UseConflict
	// UsePreAllocated is an address that is reserved for claims of a name.
	UsePreAllocated
	// UseCooling is a released address that no other claimant gets for a while.
	UseCooling
	// UseHeld is an address that was moved to another cluster and is held until an operator releases it.
	UseHeld
	// UseDraining is a free address in a block that a carved pool is about to release.
	UseDraining
	// UseOtherPool is an address in use by a claim of another pool of the network, which the entry names.
	UseOtherPool
)

// TakenRange is a range that is not free, and why.
type TakenRange struct {
	Range netipx.IPRange
	Use   RangeUse
	// Kind, Namespace and Name identify the owner. Kind is empty if the owner is only a name.
	Kind, Namespace, Name string
	// Cluster is the name of the Cluster of the owner, empty if it has none.
	Cluster string
	// Since is when the owner was created, or when its block was granted. It is zero if that is not known.
	Since time.Time
	// Until is when the cooling period ends.
	Until time.Time
	// OtherOwners are the other owners of the range, if the use is UseConflict.
	OtherOwners []string
	// Ports are the ports of the address, each with its Service, if the owner shares the address by ports.
	Ports []string
	// AnnouncedCondition is the condition Announced in the status of the owner, which shows what announces the
	// address, nil if it has none.
	AnnouncedCondition *metav1.Condition
	// Deleting reports whether the owner is being deleted. It has the range until it is gone.
	Deleting bool
}

// portSharer is a kind whose claimants share their address by ports.
type portSharer interface{ Ports(c *Claimant) []string }

// announcedCondition returns the condition Announced in the status of a claimant, or nil if there is none.
func (c *Claimant) announcedCondition() *metav1.Condition {
	if c.Status == nil {
		return nil
	}
	found := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.AnnouncedCondition)
	if found == nil {
		return nil
	}
	return ptr.To(*found)
}

// AppendTakenRanges appends the taken ranges from an address on, until to has ViewChunkSize ranges.
func (m *PoolState) AppendTakenRanges(from netip.Addr, to []TakenRange) []TakenRange {
	m.Space.Ledger.VisitTakenRanges(from, func(r netipx.IPRange, facts []*ledger.Fact) bool {
		to = append(to, m.newTakenRange(r, facts))
		return len(to) < ViewChunkSize
	})
	return to
}

// newTakenRange returns the entry of a range that is not free, by the strongest of the facts about it.
func (m *PoolState) newTakenRange(r netipx.IPRange, facts []*ledger.Fact) TakenRange {
	best := facts[0]
	for _, h := range facts[1:] {
		if h.Source < best.Source {
			best = h
		}
	}
	out := TakenRange{Range: r, Namespace: best.Owner.Namespace, Name: best.Owner.Name}
	if !best.Source.IsInUse() {
		out.Use = UseHeld
		switch best.Source {
		case ledger.SourcePin:
			out.Use = UsePreAllocated
			return out
		case ledger.SourceDraining:
			out.Use = UseDraining
			return out
		case ledger.SourceExcluded:
			out.Use = UseOtherPool
			return out
		default:
		}
		if rest, ok := m.Cooling.Periods.Get(best.Range); ok {
			out.Use, out.Until = UseCooling, rest.Until
		}
		return out
	}
	out.Kind, out.Use = best.Owner.Kind, UseClaim
	c := m.Claimants.ByUID[best.Owner.UID]
	switch {
	case c != nil:
		out.Cluster, out.Deleting = c.Cluster.Name, c.Deleting
		out.Use, out.Since = c.Kind.RangeUse(c)
		if k, shares := c.Kind.(portSharer); shares {
			out.Ports, out.AnnouncedCondition = k.Ports(c), c.announcedCondition()
		}
	case best.Source == ledger.SourceObject:
		out.Use, out.Kind = UseOrphan, m.Claimants.kindByName(best.Owner.Kind).Traits().AddressKind.KindName()
	}
	for _, h := range facts {
		if h.Source.IsInUse() && (h.Owner.UID != best.Owner.UID || (h.Owner.UID == "" && h.UID != best.UID)) {
			out.Use = UseConflict
			if owner := m.Inventory.DescribeFact(h); !slices.Contains(out.OtherOwners, owner) {
				out.OtherOwners = append(out.OtherOwners, owner)
			}
		}
	}
	return out
}

// WaitingClaimant is a claimant that waits for a grant.
type WaitingClaimant struct {
	Kind, Namespace, Name string
	// Cluster is the name of the Cluster of the claimant, empty if it has none.
	Cluster string
	// Since is when the claimant was created.
	Since time.Time
	// Reason and Message are those of the refusal in the status of the claimant, empty if it has none yet.
	Reason, Message string
}

// AppendWaiting appends the claimants that wait and are served after a claimant, or from the first one if after is
// nil, until to has ViewChunkSize claimants. It also returns the last one.
func (m *PoolState) AppendWaiting(after *Claimant, to []WaitingClaimant) ([]WaitingClaimant, *Claimant) {
	add := func(c *Claimant) bool {
		if after != nil && !isOlderClaimant(after, c) {
			return true
		}
		published := c.PublishedRefusal()
		to = append(to, WaitingClaimant{
			Kind: c.Owner.Kind, Namespace: c.Owner.Namespace, Name: c.Owner.Name, Cluster: c.Cluster.Name, Since: c.Created,
			Reason: published.Reason, Message: published.Message,
		})
		after = c
		return len(to) < ViewChunkSize
	}
	if after == nil {
		m.Queues.Waiting.Scan(add)
	} else {
		m.Queues.Waiting.Ascend(after, add)
	}
	return to, after
}

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
	m.Queues.Waiting.Scan(func(c *Claimant) bool {
		if c.Kind == kind {
			out.WaitingLeases++
		}
		return true
	})
	return out, true
}
