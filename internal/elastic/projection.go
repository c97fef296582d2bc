package elastic

import "go4.org/netipx"

// DesiredPool is the desired state of a load balancer's pool that contains blocks.
type DesiredPool struct {
	Name   string
	Ranges []netipx.IPRange
	// AutoAssign reports whether the pool serves new Services.
	AutoAssign bool
	// Draining reports whether a block of the pool is about to be withdrawn.
	Draining bool
}

// Projection maps blocks to pools of the load balancer.
type Projection struct {
	// SharedPool is the name of the pool that contains all blocks.
	SharedPool string
	// PoolPerAllocation reports whether each block instead has a pool of its own, with the name of the block.
	PoolPerAllocation bool
}

// GrowthPool returns the name of the pool that growth is added to. It is empty if that pool does not exist yet,
// because each block has a pool of its own.
func (p Projection) GrowthPool() string {
	if p.PoolPerAllocation {
		return ""
	}
	return p.SharedPool
}

// UsablePools returns the pools of all blocks that a cluster may use. Blocks that are being withdrawn come last: only
// a Service that finds no other address is a reason to keep one.
func (p Projection) UsablePools(blocks []Block) []DesiredPool {
	return p.buildPools(blocks, func(b *Block) bool { return !b.Deleting })
}

// ProjectedPools returns the pools to write into a cluster: those of the blocks that are not being withdrawn. A block
// with a pool of its own stops serving new Services before it is withdrawn.
func (p Projection) ProjectedPools(blocks []Block) []DesiredPool {
	return p.buildPools(blocks, func(b *Block) bool { return !b.isDrainingOrDeleting() })
}

// buildPools returns the pools of the blocks for which wanted returns true.
func (p Projection) buildPools(blocks []Block, wanted func(*Block) bool) []DesiredPool {
	if p.PoolPerAllocation {
		return buildPoolPerAllocation(blocks, wanted)
	}
	var all, leaving []netipx.IPRange
	for i := range blocks {
		switch b := &blocks[i]; {
		case !b.Range.IsValid() || !wanted(b):
		case b.isDrainingOrDeleting():
			leaving = append(leaving, b.Range)
		default:
			all = append(all, b.Range)
		}
	}
	if all = append(all, leaving...); len(all) == 0 {
		return nil
	}
	return []DesiredPool{{Name: p.SharedPool, Ranges: all, AutoAssign: true}}
}

// buildPoolPerAllocation returns one pool for each block. The pool of a block that is not wanted stays until it
// serves no Service.
func buildPoolPerAllocation(blocks []Block, wanted func(*Block) bool) []DesiredPool {
	var out []DesiredPool
	for i := range blocks {
		if b := &blocks[i]; b.Range.IsValid() && (wanted(b) || !b.Emptied) {
			out = append(out, DesiredPool{Name: b.Name, Ranges: []netipx.IPRange{b.Range}, AutoAssign: wanted(b), Draining: b.isDrainingOrDeleting()})
		}
	}
	return out
}
