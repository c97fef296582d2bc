package poolspec

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// carvedBlock is an open block of a carved pool, and the network of its addresses.
type carvedBlock struct {
	prefix      netip.Prefix
	networkBits int
	gateway     netip.Addr
}

// isCarved reports whether the pool takes its addresses from another pool. The addresses in its spec are then checked
// against the blocks that it has now: blocks that it gets later may have others.
func (c *compiler) isCarved() bool { return c.spec.Carve != nil }

// compileBlocks reads the open blocks of a carved pool.
func (c *compiler) compileBlocks() {
	var set netipx.IPSetBuilder
	for i, b := range c.blocks {
		path := c.path.Root().Child("status", "blocks").Index(i)
		p, ok := c.parsePrefix(path.Child("range"), b.Range)
		if !ok {
			continue
		}
		if b.Prefix < 0 || int(b.Prefix) > c.addressBits {
			c.addInvalidf(path.Child("prefix"), b.Prefix, "must be between 0 and %d", c.addressBits)
			continue
		}
		out := carvedBlock{prefix: p, networkBits: int(b.Prefix)}
		if b.Gateway != "" {
			if out.gateway, ok = c.parseAddress(path.Child("gateway"), b.Gateway); !ok {
				continue
			}
		}
		set.AddPrefix(p)
		c.layout.blocks = append(c.layout.blocks, out)
	}
	c.layout.declared = c.buildSet(&set)
}

// RestrictTo returns the layout without the blocks of a carved pool that are not among open: those that were closed
// since it was compiled.
func (l *Layout) RestrictTo(open []netipx.IPRange) *Layout {
	out := *l
	isOpen := func(a netip.Addr) bool {
		return slices.ContainsFunc(open, func(r netipx.IPRange) bool { return r.Contains(a) })
	}
	out.declared, out.allocatable = intersectRanges(l.declared, open), intersectRanges(l.allocatable, open)
	out.blocks = slices.DeleteFunc(slices.Clone(l.blocks), func(b carvedBlock) bool { return !isOpen(b.prefix.Addr()) })
	out.pins, out.pinOwners = map[string]netip.Addr{}, map[netip.Addr]string{}
	for name, a := range l.pins {
		if isOpen(a) {
			out.pins[name], out.pinOwners[a] = a, name
		}
	}
	out.addPinsToGrantable()
	return &out
}

// intersectRanges returns the part of a set that is in ranges.
func intersectRanges(s *netipx.IPSet, ranges []netipx.IPRange) *netipx.IPSet {
	var b, in netipx.IPSetBuilder
	for _, r := range ranges {
		in.AddRange(r)
	}
	open, _ := in.IPSet() // cannot fail: the ranges are valid
	b.AddSet(s)
	b.Intersect(open)
	out, _ := b.IPSet()
	return out
}
