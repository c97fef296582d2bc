package poolspec

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// block is one that a carved pool has open, and the network that its addresses live in.
type block struct {
	prefix  netip.Prefix
	network int
	gateway netip.Addr
}

func (b block) networkOf(a netip.Addr) subnet {
	return subnet{netip.PrefixFrom(a, b.network).Masked(), b.gateway}
}

// carved reports whether the pool takes its addresses from another. What its spec says of addresses then speaks of the
// blocks that it has now: of others it may have later.
func (c *compiler) carved() bool { return c.spec.Carve != nil }

// declareBlocks reads the blocks that a carved pool has open.
func (c *compiler) declareBlocks() {
	var set netipx.IPSetBuilder
	for i, b := range c.blocks {
		path := c.path.Root().Child("status", "blocks").Index(i)
		p, ok := c.prefixOf(path.Child("range"), b.Range)
		if !ok {
			continue
		}
		if b.Prefix < 0 || int(b.Prefix) > c.bits {
			c.invalidf(path.Child("prefix"), b.Prefix, "must be between 0 and %d", c.bits)
			continue
		}
		out := block{prefix: p, network: int(b.Prefix)}
		if b.Gateway != "" {
			if out.gateway, ok = c.address(path.Child("gateway"), b.Gateway); !ok {
				continue
			}
		}
		set.AddPrefix(p)
		c.out.blocks = append(c.out.blocks, out)
	}
	c.out.declared = c.build(&set)
}

// Within is what is left of a layout where a carved pool has these blocks: of those that were closed since it was compiled,
// nothing.
func (l *Layout) Within(open []netipx.IPRange) *Layout {
	out := *l
	isOpen := func(a netip.Addr) bool {
		return slices.ContainsFunc(open, func(r netipx.IPRange) bool { return r.Contains(a) })
	}
	out.declared, out.allocatable = common(l.declared, open), common(l.allocatable, open)
	out.blocks = slices.DeleteFunc(slices.Clone(l.blocks), func(b block) bool { return !isOpen(b.prefix.Addr()) })
	out.pins, out.owners = map[string]netip.Addr{}, map[netip.Addr]string{}
	for name, a := range l.pins {
		if isOpen(a) {
			out.pins[name], out.owners[a] = a, name
		}
	}
	out.addPins()
	return &out
}

// common is the part of a set that is in ranges.
func common(s *netipx.IPSet, ranges []netipx.IPRange) *netipx.IPSet {
	var b, in netipx.IPSetBuilder
	for _, r := range ranges {
		in.AddRange(r)
	}
	open, _ := in.IPSet() // of parsed ranges, there is a set
	b.AddSet(s)
	b.Intersect(open)
	out, _ := b.IPSet()
	return out
}
