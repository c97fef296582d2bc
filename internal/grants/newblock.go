package grants

import (
	"net/netip"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// blockCapacity is how much claimants can get from a block that a carved pool requests, as far as it is known before
// the block exists: the spec may reserve or pre-allocate some of its addresses.
type blockCapacity struct {
	// generation is the generation of the pool, and addressBits is the number of bits of the addresses of its parent,
	// for which the capacity was computed.
	generation  int64
	addressBits int
	freeSpace   *poolutil.Free
	// unitCount is the number of units, addresses or prefixes, in the block.
	unitCount int64
}

// nextBlockCapacity returns the capacity of the next block, or nil if nothing is known of the parent yet.
func (gr *Growth) nextBlockCapacity() *blockCapacity {
	spec, bits := gr.base.Pool.PoolSpec(), gr.carved.Parent.AddressBits
	length := int(spec.Carve.PrefixLength)
	if bits == 0 || length > bits {
		return nil
	}
	if b := gr.carved.nextBlockCapacity; b != nil && b.generation == gr.base.Pool.GetGeneration() && b.addressBits == bits {
		return b
	}
	out := &blockCapacity{generation: gr.base.Pool.GetGeneration(), addressBits: bits, freeSpace: poolutil.NewFree(nil)}
	alone := &v1alpha1.NetworkPoolSpec{
		Carve: spec.Carve, AllocationPrefixLength: spec.AllocationPrefixLength, AllocateReservedIPAddresses: spec.AllocateReservedIPAddresses,
	}
	if layout, errs := poolspec.Compile(alone, exampleBlock(spec.Carve, bits)); len(errs) == 0 {
		out.freeSpace = poolutil.NewFree(layout.Allocatable())
		out.unitCount = out.freeSpace.Prefixes(layout.UnitBits()).Int64()
	}
	gr.carved.nextBlockCapacity = out
	return out
}

// exampleBlock returns a block as the parent may allocate it. If the block is in the network of the parent, it is not
// at an end of that network.
func exampleBlock(c *v1alpha1.Carve, bits int) v1alpha1.CarvedBlock {
	somewhere := map[int]string{32: "64.0.0.0", 128: "4000::"}[bits]
	p := netip.PrefixFrom(netip.MustParseAddr(somewhere), int(c.PrefixLength)).Masked()
	out := v1alpha1.CarvedBlock{Range: p.String()}
	if c.Network == v1alpha1.RoutedNetwork {
		out.Prefix, out.Gateway = poolutil.RoutedNetwork(p, c.Gateway == v1alpha1.LastGateway)
	}
	return out
}

// unitsPerBlock returns how many units, addresses or prefixes, a block holds at most, 0 if that is not known yet.
func (gr *Growth) unitsPerBlock() int64 {
	if b := gr.nextBlockCapacity(); b != nil {
		return b.unitCount
	}
	return 0
}

// fitsShape reports whether a block has room for a shape: for that many consecutive addresses, for a prefix of that
// length, or for any unit.
func (b *blockCapacity) fitsShape(s RangeShape) bool {
	switch {
	case s.PrefixLength > 0:
		return b.freeSpace.Prefixes(s.PrefixLength).Int64() > 0
	case s.Count > 0:
		return b.freeSpace.Largest() >= s.Count
	}
	return b.unitCount > 0
}
