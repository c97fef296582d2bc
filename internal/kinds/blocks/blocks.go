// Package blocks implements the kind of claimants of IPAllocations: which range an IPAllocation gets, and the next
// step for it. It neither reads nor writes the API server.
package blocks

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

const (
	// defaultNodeCount and defaultLoadBalancerCount are the counts of allocations that have none, in pools that have
	// no defaults either. They are those of Butler.
	defaultNodeCount         = 5
	defaultLoadBalancerCount = 8
	// MaxAddressListBytes bounds the text of status.addresses, because etcd accepts objects of up to 1.5 MiB.
	MaxAddressListBytes = 1_450_000
)

// ClaimantKind is the kind of IPAllocations.
var ClaimantKind grants.ClaimantKind = allocationKind{}

// allocationKind implements grants.ClaimantKind: each IPAllocation requests consecutive addresses.
type allocationKind struct{}

var allocationTraits = &grants.KindTraits{
	Name: v1alpha1.IPAllocationKind, Finalizer: v1alpha1.IPAllocationFinalizer, DeletedWithOwner: true, ReportsOverlap: true,
}

// allocationData is the state that only this kind keeps of an IPAllocation.
type allocationData struct {
	allocationType v1alpha1.AllocationType
	// count is the requested number of addresses, 0 if the pool decides.
	count int64
	// prefixLength is the length of a block that is a prefix: a block for a carved pool, or for the pod CIDRs of
	// Nodes. It is 0 for other blocks.
	prefixLength int
	generation   int64
	// pinnedRange is the range that the allocation must have, not valid if any will do; pinError is why the pinned
	// range cannot be parsed.
	pinnedRange netipx.IPRange
	pinError    string
	// allocatedAt is when the addresses were granted, by the status.
	allocatedAt time.Time
	phase       v1alpha1.AllocationPhase
	// overlapMessage is the message of the condition Overlap, if it is True.
	overlapMessage string
}

func (b *allocationData) isPrefix() bool { return b.prefixLength > 0 }

func allocationDataFor(c *grants.Claimant) *allocationData { return c.KindData.(*allocationData) }

func (allocationKind) Traits() *grants.KindTraits { return allocationTraits }

func (allocationKind) NewObject() grants.Object { return &v1alpha1.IPAllocation{} }

func (allocationKind) PoolKeyFor(o grants.Object) (pools.Key, bool) {
	a, ok := o.(*v1alpha1.IPAllocation)
	if !ok {
		return pools.Key{}, false
	}
	return pools.KeyFromAllocation(a), true
}

func (allocationKind) SetPoolRef(o grants.Object, pool pools.Key) {
	o.(*v1alpha1.IPAllocation).Spec.PoolRef = v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name}
}

func (allocationKind) UsesMirroredPool(grants.Object) bool { return false }

func (allocationKind) NewClaimant(o grants.Object) *grants.Claimant {
	return NewClaimant(o.(*v1alpha1.IPAllocation))
}

// NewClaimant returns the state of an IPAllocation.
func NewClaimant(a *v1alpha1.IPAllocation) *grants.Claimant {
	b := &allocationData{allocationType: a.Spec.Type, count: int64(ptr.Deref(a.Spec.Count, 0)), prefixLength: int(ptr.Deref(a.Spec.PrefixLength, 0)), generation: a.Generation, phase: a.Status.Phase}
	out := grants.NewClaimant(allocationKind{}, a, b)
	out.Cluster = types.NamespacedName{Namespace: grants.InternString(a.Spec.TenantClusterRef.Namespace), Name: grants.InternString(a.Spec.TenantClusterRef.Name)}
	if child, ok := pools.ChildPoolKey(a); ok {
		out.ChildPool = &child
		out.InUse = slices.Contains(out.OtherFinalizers, v1alpha1.CarvedPoolFinalizer)
	} else if b.allocationType == v1alpha1.PodsAllocation {
		out.InUse = slices.Contains(out.OtherFinalizers, v1alpha1.PodsFinalizer)
	}
	out.Paused = annotations.HasPaused(a)
	out.PublishedPauseMessage = grants.PauseMessageFromConditions(a.Status.Conditions)
	out.PublishedOwnerSeen = ownerSeenFromConditions(ownerSeenConditionType(out), a.Status.Conditions)
	out.RecordedRange, _ = poolutil.ParseRange(out.RecordAnnotation)
	if pin := a.Spec.PinnedRange; pin != nil {
		var err error
		if b.pinnedRange, err = poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress); err != nil {
			b.pinError = err.Error()
		}
	}
	ready := ptr.Deref(meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition), metav1.Condition{})
	out.PublishedRange = carve.PublishedRange(a)
	if a.Status.AllocatedAt != nil {
		b.allocatedAt = a.Status.AllocatedAt.Time
	}
	if o := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.OverlapCondition); o != nil && o.Status == metav1.ConditionTrue {
		b.overlapMessage = o.Message
	}
	out.StatusHasAddress = out.PublishedRange.IsValid()
	out.StatusComplete = out.StatusHasAddress && b.phase == v1alpha1.AllocationAllocated && ready.Status == metav1.ConditionTrue && isStatusComplete(a, out, out.PublishedRange)
	if len(a.Status.Conditions) > 0 {
		out.Status = &grants.PublishedStatus{Conditions: a.Status.Conditions}
		if ready.Status == metav1.ConditionFalse {
			out.Status.Refusal = grants.Refusal{Reason: ready.Reason, Message: ready.Message}
		}
	}
	return out
}

// isStatusComplete reports whether the status of an allocation has everything that it should have for a block.
func isStatusComplete(a *v1alpha1.IPAllocation, c *grants.Claimant, r netipx.IPRange) bool {
	s := &a.Status
	listed := s.Addresses
	return s.CIDR == poolutil.FormatRange(r) && s.AllocatedCount == poolutil.Size(r) && s.ObservedGeneration == a.Generation &&
		s.AllocatedAt != nil && s.AllocatedBy != "" && s.ReleasedAt == nil && len(listed) == listedCountFor(c, r) &&
		(len(listed) == 0 || (listed[0] == r.From().String() && (len(listed) < int(poolutil.Size(r)) || listed[len(listed)-1] == r.To().String())))
}

// ListedAddressCount returns how many addresses of a range status.addresses lists. It costs O(1) unless the text may
// be too long.
func ListedAddressCount(r netipx.IPRange) int {
	const quotesAndComma, longest = 3, len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	n := int(min(poolutil.Size(r), poolutil.MaxEnumerated))
	if n*(longest+quotesAndComma) <= MaxAddressListBytes || r.From().Is4() {
		return n
	}
	text := 0
	for i, a := range poolutil.Enumerate(r) {
		if text += len(a) + quotesAndComma; text > MaxAddressListBytes {
			return i
		}
	}
	return n
}

// listedCountFor returns how many addresses of its range the status of an allocation lists. It is 0 for a block that
// is a prefix, because a carved pool knows the addresses of its blocks.
func listedCountFor(c *grants.Claimant, r netipx.IPRange) int {
	if allocationDataFor(c).isPrefix() {
		return 0
	}
	return ListedAddressCount(r)
}

// requestedCount returns how many addresses an allocation requests from a pool.
func (b *allocationData) requestedCount(spec *v1alpha1.NetworkPoolSpec) int64 {
	if b.count > 0 {
		return b.count
	}
	nodes, loadBalancers := int64(defaultNodeCount), int64(defaultLoadBalancerCount)
	if t := spec.TenantAllocation; t != nil && t.Defaults != nil {
		nodes, loadBalancers = cmp.Or(int64(t.Defaults.NodesPerTenant), nodes), cmp.Or(int64(t.Defaults.LBPoolPerTenant), loadBalancers)
	}
	if b.allocationType == v1alpha1.NodesAllocation {
		return nodes
	}
	return loadBalancers
}

// RangeForAllocation returns the range that an IPAllocation has. It reports false if it has none.
func RangeForAllocation(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	r := NewClaimant(a).CurrentRange()
	return r, r.IsValid()
}

func (allocationKind) CarryOverState(c, old *grants.Claimant) {
	c.OwnerMissingSince = old.OwnerMissingSince
	c.CarryOverOwnerSeen(old)
}

// TakenRanges returns the range that an allocation has on record or in its status, unchanged, whether or not the pool
// allocates it: if two allocations overlap, both keep their ranges.
func (allocationKind) TakenRanges(_ *grants.Inventory, c *grants.Claimant) (record, shown netipx.IPRange) {
	return c.TakenRanges()
}

// writeKind is a write that serves an IPAllocation.
type writeKind int

const (
	writeNothing writeKind = iota
	writeRecord
	writeStatus
)

// nextWrite returns the next write for an allocation that should have r: the record, then the status (R8).
func nextWrite(m *grants.Inventory, c *grants.Claimant, r netipx.IPRange) writeKind {
	switch {
	case !c.HasFinalizer || c.RecordAnnotation != poolutil.FormatRange(r):
		return writeRecord
	case !c.StatusComplete || c.PublishedPauseMessage != "" || c.PublishedRange != r || allocationDataFor(c).overlapMessage != m.OverlapMessageFor(c) || c.NeedsOwnerSeenUpdate():
		return writeStatus
	}
	return writeNothing
}

func (allocationKind) NeedFor(m *grants.Inventory, c *grants.Claimant) grants.Need {
	return m.StatusNeedFor(c, func() bool { return nextWrite(m, c, c.RecordedRange) == writeNothing })
}

func (allocationKind) IsConfirmed(_ *grants.Inventory, c *grants.Claimant) bool { return c.HasRecord() }

func (allocationKind) ReleasableRange(_ *grants.Inventory, c *grants.Claimant) netipx.IPRange {
	return c.CurrentRange()
}

// DesignatedRange returns the range that is meant for an allocation: the one on record, the one in its status, the
// one that it is pinned to, the one of a record without our finalizer, or one that cools down for its name, in this
// order.
func (k allocationKind) DesignatedRange(m *grants.Inventory, c *grants.Claimant) (netipx.IPRange, *grants.Refusal) {
	if allocationDataFor(c).isPrefix() {
		if refusal := blockRefusal(m, c); refusal != nil {
			return netipx.IPRange{}, refusal
		}
	} else if m.Space.AllocatesPrefixes() {
		return netipx.IPRange{}, grants.AllocationFailed("%s hands out prefixes of /%d, not blocks of addresses; name another pool", m.Base.Key, m.Space.Layout.UnitBits())
	}
	if c.HasRecord() {
		return m.RecordedRangeFor(c, c.RecordedRange)
	}
	if shown := c.PublishedRange; shown.IsValid() {
		if h := m.FindBlockingFact(shown, c.Owner); h != nil {
			return netipx.IPRange{}, grants.AllocationFailed("the status shows %s, but %s of it is held by %s; find out which of the two uses it, and delete the other", poolutil.ShowRange(shown),
				poolutil.ShowRange(h.Range), m.DescribeFact(h))
		}
		return shown, nil
	}
	b := allocationDataFor(c)
	if b.pinError != "" {
		return netipx.IPRange{}, grants.AllocationFailed("pinnedRange is not a range: %s; the spec is immutable, so create the allocation again with correct addresses", b.pinError)
	}
	if pinned := b.pinnedRange; pinned.IsValid() {
		if refusal := pinnedRangeRefusal(b); refusal != nil {
			return netipx.IPRange{}, refusal
		}
		if !m.Space.Ledger.IsInSpace(pinned) {
			return netipx.IPRange{}, grants.AllocationFailed("pinnedRange %s contains addresses that %s does not hand out%s; create the allocation again with another range", poolutil.ShowRange(pinned), m.Base.Key, m.DescribeFirstWithheld(pinned))
		}
		if h := m.FindBlockingFact(pinned, c.Owner); h != nil {
			return netipx.IPRange{}, grants.AllocationFailed("pinnedRange %s overlaps %s, which is held by %s; release that, or create the allocation again with another range",
				poolutil.ShowRange(pinned), poolutil.ShowRange(h.Range), m.DescribeFact(h))
		}
		return pinned, nil
	}
	s := k.RequestedShape(m, c)
	fits := func(r netipx.IPRange) bool { return matchesShape(r, s) }
	if asked := m.RequestedByRecord(c, fits); asked.IsValid() {
		return asked, nil
	}
	return m.FindCoolingRange(c.Owner, fits), nil
}

// matchesShape reports whether a range has the requested shape.
func matchesShape(r netipx.IPRange, s grants.RangeShape) bool {
	if s.PrefixLength > 0 {
		p, ok := r.Prefix()
		return ok && p.Bits() == s.PrefixLength
	}
	return poolutil.Size(r) == s.Count
}

func (allocationKind) RequestedShape(m *grants.Inventory, c *grants.Claimant) grants.RangeShape {
	b := allocationDataFor(c)
	if b.isPrefix() {
		return grants.RangeShape{PrefixLength: b.prefixLength}
	}
	return grants.RangeShape{Count: b.requestedCount(m.Base.Pool.PoolSpec())}
}

func (k allocationKind) ExhaustedRefusal(m *grants.Inventory, c *grants.Claimant) *grants.Refusal {
	if allocationDataFor(c).isPrefix() {
		return noPrefixRefusal(m, c)
	}
	return &grants.Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: fmt.Sprintf(
		"no contiguous block available: %s has no %d free addresses in a row; add addresses to %s, ask for fewer, or delete allocations",
		m.Base.Key, k.RequestedShape(m, c).Count, m.Base.EditablePoolName())}
}

func (allocationKind) RangeUse(c *grants.Claimant) (grants.RangeUse, time.Time) {
	b, use, since := allocationDataFor(c), grants.UseLoadBalancer, c.Created
	switch b.allocationType {
	case v1alpha1.NodesAllocation:
		use = grants.UseNodes
	case v1alpha1.PoolAllocation:
		use = grants.UseCarved
	case v1alpha1.PodsAllocation:
		use = grants.UsePods
	case v1alpha1.LoadBalancerAllocation:
	}
	if !b.allocatedAt.IsZero() {
		since = b.allocatedAt
	}
	return use, since
}
