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

// mayHave tells why a pool gives no such block; nil: it may. What has its block already is not asked: its record alone may be
// a user's, or come with a move to where there are other rules.
func mayHave(m *grants.Memory, c *grants.Claimant) *grants.Refusal {
	length, longest := blockFactsOf(c).prefixLength, m.Layout.UnitBits()
	if c.HadAddress {
		return nil
	}
	if c.Child != nil {
		if no := mayCarve(m, c); no != nil {
			return no
		}
	}
	switch {
	case length > longest && m.HandsOutPrefixes():
		return grants.Failed("%s hands out prefixes of /%d, and a block of /%d is smaller than one", m.Key, longest, length)
	case length > longest:
		return grants.Failed("a block of /%d is no prefix of the addresses of %s, which have %d bits", length, m.Key, longest)
	}
	return nil
}

// mayCarve tells why a pool gives no such block to a pool that is carved from it; nil: it may.
func mayCarve(m *grants.Memory, c *grants.Claimant) *grants.Refusal {
	length, carvable := blockFactsOf(c).prefixLength, m.Base.PoolSpec().Carvable
	switch {
	case carvable == nil:
		return grants.NotReady("no pool can be carved from %s: its spec.carvable is not set", m.Key)
	case len(carvable.PrefixLengths) > 0 && !slices.Contains(carvable.PrefixLengths, int32(length)):
		return grants.NotReady("no block of /%d can be carved from %s: its spec.carvable.prefixLengths allows %s", length, m.Key, lengths(carvable.PrefixLengths))
	case c.Child.Kind != v1alpha1.GlobalNetworkPoolKind && carvable.MaxBlocksPerNamespace != nil && m.OthersOf(c) >= int64(*carvable.MaxBlocksPerNamespace):
		return &grants.Refusal{Reason: v1alpha1.QuotaExceededReason, Message: fmt.Sprintf(
			"the pools of namespace %s have as many blocks of %s as its spec.carvable.maxBlocksPerNamespace allows: %d; raise that, or use fewer",
			c.Owner.Namespace, m.Key, *carvable.MaxBlocksPerNamespace)}
	}
	return nil
}

func lengths(all []int32) string {
	var out []string
	for _, n := range all {
		out = append(out, fmt.Sprintf("/%d", n))
	}
	return strings.Join(out, ", ")
}

// pinnedIsPrefix tells why the range that a block for a pool is pinned to cannot be one; nil: it can, or the block is for
// a Cluster.
func pinnedIsPrefix(b *blockFacts) *grants.Refusal {
	if !b.isPrefix() || hasShape(b.pinned, grants.Shape{PrefixLength: b.prefixLength}) {
		return nil
	}
	return grants.Failed("pinnedRange %s is not a prefix of /%d; the spec is immutable, so create the allocation again with a range that is one",
		poolutil.ShowRange(b.pinned), b.prefixLength)
}

// noPrefix says that a pool has no room for a block that is a prefix.
func noPrefix(m *grants.Memory, c *grants.Claimant) *grants.Refusal {
	return &grants.Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: fmt.Sprintf(
		"%s has no free prefix of /%d; add addresses to it, or delete what else has blocks of it", m.Key, blockFactsOf(c).prefixLength)}
}

// BlockOf returns what a carved pool remembers of an IPAllocation that is for it; nil: it is for a Cluster.
func (kind) BlockOf(o grants.Object) (*grants.Block, pools.Key) {
	a, is := o.(*v1alpha1.IPAllocation)
	if !is {
		return nil, pools.Key{}
	}
	child, is := pools.ChildOf(a)
	if !is {
		return nil, pools.Key{}
	}
	c := Of(a)
	out := &grants.Block{
		Namespace: a.Namespace, Name: a.Name, Parent: pools.KeyOfAllocation(a), UID: a.UID, Version: a.ResourceVersion, Created: a.CreationTimestamp.Time,
		Asked: ptr.Deref(a.Spec.PrefixLength, 0), Refusal: c.ShownRefusal(), Deleting: c.Deleting, Shared: blockFactsOf(c).overlap != "",
		Paused: c.Paused, Moved: c.Moved,
	}
	out.ByHand = !carve.IsName(child.Name, a.Name)
	for _, f := range a.Finalizers {
		if f == v1alpha1.CarvedPoolFinalizer {
			out.Protected = true
		} else {
			out.Others = append(out.Others, f)
		}
	}
	if pinned := blockFactsOf(c).pinned; pinned.IsValid() {
		out.Pinned, _ = pinned.Prefix()
	}
	for _, r := range []netipx.IPRange{c.Record, c.Shown} {
		if r.IsValid() {
			out.Had = append(out.Had, r)
		}
	}
	// What the parent's holder says of it, and not what anybody can write on it.
	if c.Shown.IsValid() && c.Record == c.Shown {
		out.Prefix, _ = c.Shown.Prefix()
	}
	return out, child
}

// SetChild has an IPAllocation be a block for a pool.
func (kind) SetChild(o grants.Object, child pools.Key) {
	spec := &o.(*v1alpha1.IPAllocation).Spec
	spec.Type, spec.ChildPoolRef = v1alpha1.PoolAllocation, &v1alpha1.PoolReference{Kind: child.Kind, Name: child.Name}
}

// NewBlock is the IPAllocation that asks the parent of a carved pool for a block.
func (kind) NewBlock(child pools.Key, namespace, name string, from *v1alpha1.Carve, pinned netip.Prefix) grants.Object {
	out := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{
		PoolRef: from.PoolRef, Type: v1alpha1.PoolAllocation, PrefixLength: ptr.To(from.PrefixLength),
		ChildPoolRef: &v1alpha1.PoolReference{Kind: child.Kind, Name: child.Name},
	}}
	out.Namespace, out.Name, out.Finalizers = namespace, name, []string{v1alpha1.CarvedPoolFinalizer}
	out.Labels = map[string]string{
		v1alpha1.NetworkPoolLabel: text.Shorten(from.PoolRef.Name, maxLabel), v1alpha1.AllocationTypeLabel: string(v1alpha1.PoolAllocation),
		v1alpha1.ChildPoolLabel: text.Shorten(child.Name, maxLabel),
	}
	if pinned.IsValid() {
		r := netipx.RangeOfPrefix(pinned)
		out.Spec.PrefixLength = ptr.To(int32(pinned.Bits()))
		out.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: r.From().String(), EndAddress: r.To().String()}
	}
	return out
}

// maxLabel is how long the value of a label may be.
const maxLabel = 63
