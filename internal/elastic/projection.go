package elastic

import "go4.org/netipx"

// Desired is a pool of MetalLB that has blocks, as it is to be.
type Desired struct {
	Name   string
	Ranges []netipx.IPRange
	// AutoAssign is false where no new Services are to be served.
	AutoAssign bool
	// Leaving pools have a block that is about to be taken away.
	Leaving bool
}

// Projection is how blocks become pools of MetalLB.
type Projection struct {
	// Pool is the name of the one that has all blocks.
	Pool string
	// Apart reports whether each block has a pool of its own instead, of the name of the block.
	Apart bool
}

// Grows is the name of the pool that growth is added to. It is empty where that pool does not exist yet: each block has
// one of its own.
func (p Projection) Grows() string {
	if p.Apart {
		return ""
	}
	return p.Pool
}

// Usable are the pools of all blocks that a cluster may use. Those that are being taken away come last: only a Service
// that finds nothing else is a reason to keep one.
func (p Projection) Usable(blocks []Block) []Desired {
	return p.pools(blocks, func(b *Block) bool { return !b.Deleting })
}

// Shown are the pools that a cluster is to be shown: those of the blocks that are not being taken away. A block with a
// pool of its own serves no new Services before it is taken away.
func (p Projection) Shown(blocks []Block) []Desired {
	return p.pools(blocks, func(b *Block) bool { return !b.leaving() })
}

// pools are those of the blocks that are wanted.
func (p Projection) pools(blocks []Block, wanted func(*Block) bool) []Desired {
	if p.Apart {
		return apart(blocks, wanted)
	}
	var all, leaving []netipx.IPRange
	for i := range blocks {
		switch b := &blocks[i]; {
		case !b.Range.IsValid() || !wanted(b):
		case b.leaving():
			leaving = append(leaving, b.Range)
		default:
			all = append(all, b.Range)
		}
	}
	if all = append(all, leaving...); len(all) == 0 {
		return nil
	}
	return []Desired{{Name: p.Pool, Ranges: all, AutoAssign: true}}
}

// apart are the pools of one block each. That of a block that is not wanted stays until it serves nobody.
func apart(blocks []Block, wanted func(*Block) bool) []Desired {
	var out []Desired
	for i := range blocks {
		if b := &blocks[i]; b.Range.IsValid() && (wanted(b) || !b.Emptied) {
			out = append(out, Desired{Name: b.Name, Ranges: []netipx.IPRange{b.Range}, AutoAssign: wanted(b), Leaving: b.leaving()})
		}
	}
	return out
}
