package blocks

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// blockRefusal returns why a pool cannot allocate the requested prefix, or nil if it can. An allocation that has its
// block in its status is not checked. A record alone does not suffice for that: a user may have written it, or a move
// may have brought it to a pool with other rules.
func blockRefusal(m *grants.Inventory, c *grants.Claimant) *grants.Refusal {
	length, longest := allocationDataFor(c).prefixLength, m.Space.Layout.UnitBits()
	if c.StatusHasAddress {
		return nil
	}
	if c.ChildPool != nil {
		if refusal := carveRefusal(m, c); refusal != nil {
			return refusal
		}
	}
	switch {
	case length > longest && m.Space.AllocatesPrefixes():
		return grants.AllocationFailed("%s hands out prefixes of /%d, and a block of /%d is smaller than one", m.Base.Key, longest, length)
	case length > longest:
		return grants.AllocationFailed("a block of /%d is no prefix of the addresses of %s, which have %d bits", length, m.Base.Key, longest)
	}
	return nil
}

// carveRefusal returns why a pool cannot allocate a block to a carved pool, or nil if it can.
func carveRefusal(m *grants.Inventory, c *grants.Claimant) *grants.Refusal {
	length, carvable := allocationDataFor(c).prefixLength, m.Base.Pool.PoolSpec().Carvable
	switch {
	case carvable == nil:
		return grants.PoolNotReady("no pool can be carved from %s: its spec.carvable is not set", m.Base.Key)
	case len(carvable.PrefixLengths) > 0 && !slices.Contains(carvable.PrefixLengths, int32(length)):
		return grants.PoolNotReady("no block of /%d can be carved from %s: its spec.carvable.prefixLengths allows %s", length, m.Base.Key, formatLengths(carvable.PrefixLengths))
	case c.ChildPool.Kind != v1alpha1.GlobalNetworkPoolKind && carvable.MaxBlocksPerNamespace != nil && m.Quotas.UsageByOthers(c) >= int64(*carvable.MaxBlocksPerNamespace):
		return &grants.Refusal{Reason: v1alpha1.QuotaExceededReason, Message: fmt.Sprintf(
			"the pools of namespace %s have as many blocks of %s as its spec.carvable.maxBlocksPerNamespace allows: %d; raise that, or use fewer",
			c.Owner.Namespace, m.Base.Key, *carvable.MaxBlocksPerNamespace)}
	}
	return nil
}

func formatLengths(all []int32) string {
	var out []string
	for _, n := range all {
		out = append(out, fmt.Sprintf("/%d", n))
	}
	return strings.Join(out, ", ")
}

// pinnedRangeRefusal returns why the pinned range of an allocation is not the requested prefix. It is nil if it is,
// or if the allocation does not request a prefix.
func pinnedRangeRefusal(b *allocationData) *grants.Refusal {
	if !b.isPrefix() || matchesShape(b.pinnedRange, grants.RangeShape{PrefixLength: b.prefixLength}) {
		return nil
	}
	return grants.AllocationFailed("pinnedRange %s is not a prefix of /%d; the spec is immutable, so create the allocation again with a range that is one",
		poolutil.ShowRange(b.pinnedRange), b.prefixLength)
}

// noPrefixRefusal returns the refusal of a pool that has no free prefix of the requested length.
func noPrefixRefusal(m *grants.Inventory, c *grants.Claimant) *grants.Refusal {
	return &grants.Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: fmt.Sprintf(
		"%s has no free prefix of /%d; add addresses to it, or delete what else has blocks of it", m.Base.Key, allocationDataFor(c).prefixLength)}
}

// BlockFromObject returns the state of an IPAllocation as a block of a carved pool, and the key of that pool. The
// block is nil if the IPAllocation is not for a carved pool.
func (allocationKind) BlockFromObject(o grants.Object) (*grants.Block, pools.Key) {
	a, ok := o.(*v1alpha1.IPAllocation)
	if !ok {
		return nil, pools.Key{}
	}
	child, ok := pools.ChildPoolKey(a)
	if !ok {
		return nil, pools.Key{}
	}
	return &grants.Block{
		Allocation: carve.AllocationFromObject(a, v1alpha1.CarvedPoolFinalizer), ParentKey: pools.KeyFromAllocation(a), CreatedManually: !carve.IsBlockName(child.Name, a.Name),
	}, child
}

// SetChildPool makes an IPAllocation a block of a carved pool.
func (allocationKind) SetChildPool(o grants.Object, child pools.Key) {
	spec := &o.(*v1alpha1.IPAllocation).Spec
	spec.Type, spec.ChildPoolRef = v1alpha1.PoolAllocation, &v1alpha1.PoolReference{Kind: child.Kind, Name: child.Name}
}

// NewBlockObject returns an IPAllocation that requests a block from the parent of a carved pool.
func (allocationKind) NewBlockObject(child pools.Key, namespace, name string, from *v1alpha1.Carve, pinned netip.Prefix) grants.Object {
	out := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{
		PoolRef: from.PoolRef, Type: v1alpha1.PoolAllocation, PrefixLength: ptr.To(from.PrefixLength),
		ChildPoolRef: &v1alpha1.PoolReference{Kind: child.Kind, Name: child.Name},
	}}
	out.Namespace, out.Name, out.Finalizers = namespace, name, []string{v1alpha1.CarvedPoolFinalizer}
	out.Labels = map[string]string{
		v1alpha1.NetworkPoolLabel: text.ShortenText(from.PoolRef.Name, maxLabelLength), v1alpha1.AllocationTypeLabel: string(v1alpha1.PoolAllocation),
		v1alpha1.ChildPoolLabel: text.ShortenText(child.Name, maxLabelLength),
	}
	if pinned.IsValid() {
		r := netipx.RangeOfPrefix(pinned)
		out.Spec.PrefixLength = ptr.To(int32(pinned.Bits()))
		out.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: r.From().String(), EndAddress: r.To().String()}
	}
	return out
}

// maxLabelLength is the maximum length of a label value.
const maxLabelLength = 63
