package grants

import (
	"net/netip"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// newBlock is what claimants get from a block that a carved pool asks for, as far as that is known before it is there: the
// spec may keep back or pre-allocate some of it.
type newBlock struct {
	// generation and bits are those of the pool and of its parent's addresses that it was computed for.
	generation int64
	bits       int
	free       *poolutil.Free
	// holds is how many addresses, or prefixes, that is.
	holds int64
}

// newBlock returns what the next block holds; nil: that is not known yet, because nothing is known of the parent.
func (m *Memory) newBlock() *newBlock {
	spec, bits := m.Base.PoolSpec(), m.Carved.Parent.Bits
	length := int(spec.Carve.PrefixLength)
	if bits == 0 || length > bits {
		return nil
	}
	if b := m.Carved.newBlock; b != nil && b.generation == m.Base.GetGeneration() && b.bits == bits {
		return b
	}
	out := &newBlock{generation: m.Base.GetGeneration(), bits: bits, free: poolutil.NewFree(nil)}
	alone := &v1alpha1.NetworkPoolSpec{
		Carve: spec.Carve, AllocationPrefixLength: spec.AllocationPrefixLength, AllocateReservedIPAddresses: spec.AllocateReservedIPAddresses,
	}
	if layout, errs := poolspec.Compile(alone, someBlock(spec.Carve, bits)); len(errs) == 0 {
		out.free = poolutil.NewFree(layout.Allocatable())
		out.holds = out.free.Prefixes(layout.UnitBits()).Int64()
	}
	m.Carved.newBlock = out
	return out
}

// someBlock is a block as it may be. Where its network is the parent's, it is not at an end of that.
func someBlock(c *v1alpha1.Carve, bits int) v1alpha1.CarvedBlock {
	somewhere := map[int]string{32: "64.0.0.0", 128: "4000::"}[bits]
	p := netip.PrefixFrom(netip.MustParseAddr(somewhere), int(c.PrefixLength)).Masked()
	out := v1alpha1.CarvedBlock{Range: p.String()}
	if c.Network == v1alpha1.RoutedNetwork {
		out.Prefix, out.Gateway = poolutil.Routed(p, c.Gateway == v1alpha1.LastGateway)
	}
	return out
}

// perBlock is how many addresses, or prefixes, a block holds at most; 0: that is not known yet.
func (m *Memory) perBlock() int64 {
	if b := m.newBlock(); b != nil {
		return b.holds
	}
	return 0
}

// fits reports whether a block has room for what somebody asks for in a row, as a prefix, or at all.
func (b *newBlock) fits(s Shape) bool {
	switch {
	case s.PrefixLength > 0:
		return b.free.Prefixes(s.PrefixLength).Int64() > 0
	case s.Count > 0:
		return b.free.Largest() >= s.Count
	}
	return b.holds > 0
}
