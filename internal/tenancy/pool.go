package tenancy

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// PoolAvailability is the state of a pool with regard to granting blocks.
type PoolAvailability int

const (
	// PoolMissing means that the pool does not exist.
	PoolMissing PoolAvailability = iota
	// PoolClosed means that the pool grants nothing until a user changes something.
	PoolClosed
	// PoolSettling means that the pool grants nothing yet, and that its condition will show soon whether it does. It
	// is worth waiting for.
	PoolSettling
	// PoolOpen means that the pool grants blocks as far as it has room.
	PoolOpen
)

// Pool is what decisions are based on: the pool that one poolRef of a ProviderConfig names.
type Pool struct {
	// Ref names the pool. Its kind is never empty.
	Ref v1alpha1.PoolReference
	// Availability is the state of the pool with regard to granting blocks.
	Availability PoolAvailability
	// Message states why the pool grants no blocks, if it does not.
	Message string
	// AvailableIPs and LargestFreeBlock are the values of the pool's status, which may lag behind. For a carved pool
	// that may grow, LargestFreeBlock counts its next block as free.
	AvailableIPs, LargestFreeBlock int64
	// IsIPv6 reports whether its addresses are IPv6 addresses.
	IsIPv6 bool
	// NodesPerTenant is tenantAllocation.defaults.nodesPerTenant, 0 if the pool does not set it.
	NodesPerTenant int32
}

// NewPool describes the pool that ref names for a ProviderConfig of a namespace. obj is nil if the pool does not
// exist. A GlobalNetworkPool is closed to namespaces that it does not select, and a pool that hands out prefixes is
// closed to blocks.
func NewPool(ref v1alpha1.PoolReference, obj v1alpha1.Pool, from Namespace) Pool {
	p := Pool{Ref: withDefaultKind(ref)}
	if obj == nil {
		p.Message = "does not exist"
		return p
	}
	p.IsIPv6 = isIPv6Pool(obj)
	p.AvailableIPs, p.LargestFreeBlock = obj.PoolStatus().AvailableIPs, max(obj.PoolStatus().LargestFreeBlock, nextBlockSize(obj, p.IsIPv6))
	if t := obj.PoolSpec().TenantAllocation; t != nil && t.Defaults != nil {
		p.NodesPerTenant = t.Defaults.NodesPerTenant
	}
	p.Availability, p.Message = poolAvailability(obj, from)
	return p
}

// isIPv6Pool reports whether the addresses of a pool are IPv6 addresses. All addresses of a pool are of one family. A
// carved pool has no addresses before its first block: then the prefix length of its blocks decides, because no IPv6
// block has 2^96 addresses.
func isIPv6Pool(obj v1alpha1.Pool) bool {
	spec, first := obj.PoolSpec(), obj.PoolSpec().CIDR
	if blocks := obj.PoolStatus().Blocks; len(blocks) > 0 {
		first = blocks[0].Range
	}
	if len(spec.Addresses) > 0 {
		first = spec.Addresses[0]
	}
	if first == "" && spec.Carve != nil {
		return spec.Carve.PrefixLength > 32
	}
	return strings.Contains(first, ":")
}

// nextBlockSize returns the number of contiguous addresses that a carved pool gains with its next block, 0 if the
// pool is not carved or cannot grow.
func nextBlockSize(obj v1alpha1.Pool, isIPv6 bool) int64 {
	carve := obj.PoolSpec().Carve
	if carve == nil || len(obj.PoolStatus().Blocks) >= int(carve.Blocks.Max) {
		return 0
	}
	bits := int32(32)
	if isIPv6 {
		bits = 128
	}
	return int64(1) << min(bits-carve.PrefixLength, 62)
}

func poolAvailability(obj v1alpha1.Pool, from Namespace) (PoolAvailability, string) {
	if obj.GetDeletionTimestamp() != nil {
		return PoolClosed, "is being deleted"
	}
	if n := obj.PoolSpec().AllocationPrefixLength; n != nil {
		return PoolClosed, fmt.Sprintf("hands out prefixes of /%d, not blocks of addresses", *n)
	}
	if global, ok := obj.(*v1alpha1.GlobalNetworkPool); ok && global.Spec.NamespaceSelector != nil {
		selected, err := from.matchesSelector(global.Spec.NamespaceSelector)
		if err != nil {
			return PoolClosed, fmt.Sprintf("has an invalid namespaceSelector: %v", err)
		}
		if !selected {
			return PoolClosed, fmt.Sprintf("does not serve the namespace %s", from.Name)
		}
	}
	ready := meta.FindStatusCondition(obj.GetConditions(), v1alpha1.ReadyCondition)
	switch {
	case ready == nil || ready.Status == metav1.ConditionUnknown:
		return PoolSettling, "has not been served by a manager yet"
	case ready.Status == metav1.ConditionTrue:
		return PoolOpen, ""
	case ready.Reason == v1alpha1.AdoptingReason:
		return PoolSettling, "is not ready: " + ready.Message
	}
	return PoolClosed, "is not ready: " + ready.Message
}

// MayGrant reports whether an allocation of the pool is served now or soon, as far as it has room.
func (p Pool) MayGrant() bool { return p.Availability == PoolOpen || p.Availability == PoolSettling }

// hasRoomFor reports whether the pool is open and its status shows n contiguous free addresses.
func (p Pool) hasRoomFor(n int32) bool {
	return p.Availability == PoolOpen && p.LargestFreeBlock >= int64(n)
}

// describePool formats kind and name of a pool for a message.
func describePool(ref v1alpha1.PoolReference) string { return ref.Kind + " " + ref.Name }

// withDefaultKind sets the kind of a reference that leaves it out, so that equal references are equal values.
func withDefaultKind(ref v1alpha1.PoolReference) v1alpha1.PoolReference {
	if ref.Kind == "" {
		ref.Kind = v1alpha1.NetworkPoolKind
	}
	return ref
}
