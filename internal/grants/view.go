package grants

import (
	"net/netip"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
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
	v = PoolView{Key: m.Base.Key, Counts: m.Space.Ledger.Counts(), WaitingCount: m.Queues.Pending.Len(), Holder: m.Record.Holder}
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
