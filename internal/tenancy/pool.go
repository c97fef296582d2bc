package tenancy

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// PoolState is whether a pool grants blocks.
type PoolState int

const (
	// Missing pools do not exist.
	Missing PoolState = iota
	// Closed pools grant nothing until somebody does something about it.
	Closed
	// Settling pools grant nothing yet, and will say soon whether they do. They are worth waiting for.
	Settling
	// Open pools grant blocks, as far as they have room.
	Open
)

// Pool is what decisions are made from: what one poolRef of a ProviderConfig stands for.
type Pool struct {
	// Ref names the pool. Its kind is never empty.
	Ref v1alpha1.PoolReference
	// State is whether it grants blocks.
	State PoolState
	// Message says why it grants none, where it does not.
	Message string
	// AvailableIPs and LargestFreeBlock are those of its status: what was so a moment ago. A carved pool that may grow has
	// its next block free.
	AvailableIPs, LargestFreeBlock int64
	// IPv6 tells of which family its addresses are.
	IPv6 bool
	// NodesPerTenant is tenantAllocation.defaults.nodesPerTenant; 0 where the pool says nothing.
	NodesPerTenant int32
}

// PoolOf describes the pool that ref names to a ProviderConfig of a namespace. obj is nil where there is
// no such pool. A GlobalNetworkPool is closed to the namespaces that it does not select, and a pool that
// hands out prefixes is closed to blocks.
func PoolOf(ref v1alpha1.PoolReference, obj v1alpha1.Pool, from Namespace) Pool {
	p := Pool{Ref: withKind(ref)}
	if obj == nil {
		p.Message = "does not exist"
		return p
	}
	p.IPv6 = isIPv6(obj)
	p.AvailableIPs, p.LargestFreeBlock = obj.PoolStatus().AvailableIPs, max(obj.PoolStatus().LargestFreeBlock, nextBlock(obj, p.IPv6))
	if t := obj.PoolSpec().TenantAllocation; t != nil && t.Defaults != nil {
		p.NodesPerTenant = t.Defaults.NodesPerTenant
	}
	p.State, p.Message = stateOf(obj, from)
	return p
}

// isIPv6 reports whether the addresses of a pool are of IPv6. All are of one family. A carved pool has none before its first
// block: then the length of its blocks says it. No block of IPv6 has 2^96 addresses.
func isIPv6(obj v1alpha1.Pool) bool {
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

// nextBlock is how many addresses in a row a carved pool has more when it grows; 0: it is not carved, or does not grow.
func nextBlock(obj v1alpha1.Pool, is6 bool) int64 {
	carve := obj.PoolSpec().Carve
	if carve == nil || len(obj.PoolStatus().Blocks) >= int(carve.Blocks.Max) {
		return 0
	}
	bits := int32(32)
	if is6 {
		bits = 128
	}
	return int64(1) << min(bits-carve.PrefixLength, 62)
}

func stateOf(obj v1alpha1.Pool, from Namespace) (PoolState, string) {
	if obj.GetDeletionTimestamp() != nil {
		return Closed, "is being deleted"
	}
	if n := obj.PoolSpec().AllocationPrefixLength; n != nil {
		return Closed, fmt.Sprintf("hands out prefixes of /%d, not blocks of addresses", *n)
	}
	if global, ok := obj.(*v1alpha1.GlobalNetworkPool); ok && global.Spec.NamespaceSelector != nil {
		selected, err := from.matches(global.Spec.NamespaceSelector)
		if err != nil {
			return Closed, fmt.Sprintf("has an invalid namespaceSelector: %v", err)
		}
		if !selected {
			return Closed, fmt.Sprintf("does not serve the namespace %s", from.Name)
		}
	}
	ready := meta.FindStatusCondition(obj.GetConditions(), v1alpha1.ReadyCondition)
	switch {
	case ready == nil || ready.Status == metav1.ConditionUnknown:
		return Settling, "has not been served by a manager yet"
	case ready.Status == metav1.ConditionTrue:
		return Open, ""
	case ready.Reason == v1alpha1.AdoptingReason:
		return Settling, "is not ready: " + ready.Message
	}
	return Closed, "is not ready: " + ready.Message
}

// Grants reports whether an allocation of the pool is served now or soon, as far as it has room.
func (p Pool) Grants() bool { return p.State == Open || p.State == Settling }

// room reports whether the pool says that it has n free addresses in a row.
func (p Pool) room(n int32) bool { return p.State == Open && p.LargestFreeBlock >= int64(n) }

// describe names a pool in a message.
func describe(ref v1alpha1.PoolReference) string { return ref.Kind + " " + ref.Name }

// withKind states the kind that a reference leaves out, so that equal references are equal values.
func withKind(ref v1alpha1.PoolReference) v1alpha1.PoolReference {
	if ref.Kind == "" {
		ref.Kind = v1alpha1.NetworkPoolKind
	}
	return ref
}
