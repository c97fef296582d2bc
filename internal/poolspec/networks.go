package poolspec

import (
	"net/netip"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// maxNetworks bounds how many networks spec.prefix may cut the pool into: their first and last
// addresses are taken out one by one.
const maxNetworks = 65536

// networks reads subnets and prefix.
func (c *compiler) networks() {
	entry := map[netip.Prefix]int{}
	for i, s := range c.spec.Subnets {
		path := c.path.Child("subnets").Index(i)
		p, ok := c.prefixOf(path.Child("cidr"), s.CIDR)
		if !ok {
			continue
		}
		if other, taken := entry[p]; taken {
			c.invalidf(path.Child("cidr"), s.CIDR, "is a duplicate of subnets[%d]; remove one of the two entries", other)
			continue
		}
		entry[p] = i
		net := subnet{prefix: p}
		if s.Gateway != "" {
			if net.gateway, ok = c.address(path.Child("gateway"), s.Gateway); ok && !reaches(p, net.gateway) {
				c.invalidf(path.Child("gateway"), s.Gateway, "is outside the subnet %s; a gateway is an address of its own subnet%s", p,
					c.forFamily("", ", or link-local (fe80::/10)"))
			}
		}
		c.out.subnets = append(c.out.subnets, net)
		c.zone(path, p, s.FailureDomains)
	}
	if length := c.spec.Prefix; length != nil {
		if *length < 0 || int(*length) > c.bits {
			c.invalidf(c.path.Child("prefix"), *length, "must be between 0 and %d", c.bits)
			return
		}
		c.out.prefix = length
	}
}

// outsideSubnets are the declared addresses that spec.prefix and spec.gateway speak of.
func (c *compiler) outsideSubnets() *netipx.IPSet {
	var set netipx.IPSetBuilder
	set.AddSet(c.out.declared)
	for _, s := range c.out.subnets {
		set.RemovePrefix(s.prefix)
	}
	return c.build(&set)
}

// gateway reads spec.gateway and checks that the addresses it is for can reach it.
func (c *compiler) gateway() {
	if c.spec.Gateway == "" {
		return
	}
	path, text := c.path.Child("gateway"), c.spec.Gateway
	gateway, ok := c.address(path, text)
	if !ok {
		return
	}
	c.out.gateway = gateway
	served := c.outsideSubnets()
	if len(served.Ranges()) == 0 {
		c.invalidf(path, text, "is the gateway of no address, because every address is in one of the subnets; set the gateway there")
	}
	// Every address is a network of its own: the gateway is reached on-link.
	if c.out.prefix != nil && int(*c.out.prefix) == c.bits {
		return
	}
	for _, a := range c.edges(served) {
		switch net := c.out.networkOf(a).prefix; {
		case net.Contains(gateway):
		case net.Bits() == c.bits: // a link-local gateway does not tell the length either
			c.invalidf(path, text, "needs prefix: without it the network that %s shares with the gateway is not known", a)
			return
		case !reaches(net, gateway):
			c.invalidf(path, text, "is outside %s, the network of %s; correct prefix, %s", net, a,
				c.forFamily("or describe several networks with subnets", "describe several networks with subnets, or use a link-local gateway (fe80::/10)"))
			return
		}
	}
}

// reaches reports whether hosts of a network can use a gateway. A link-local address of IPv6 is on every link; of IPv4,
// hosts have no route to it unless they are given one.
func reaches(net netip.Prefix, gateway netip.Addr) bool {
	return net.Contains(gateway) || (gateway.Is6() && gateway.IsLinkLocalUnicast())
}

// forFamily is the text of two that is true of the pool's family.
func (c *compiler) forFamily(ipv4, ipv6 string) string {
	if c.out.is6 {
		return ipv6
	}
	return ipv4
}

// edges are addresses of a set of which at least one is in each network that addresses of the set live in: where
// the set begins and ends, and on both sides of where a network does, since networks may lie in one another.
func (c *compiler) edges(set *netipx.IPSet) []netip.Addr {
	var out []netip.Addr
	for _, r := range set.Ranges() {
		out = append(out, r.From(), r.To())
	}
	if c.out.prefix != nil {
		return out // these networks do not lie in one another
	}
	for _, p := range c.out.networks() {
		r := netipx.RangeOfPrefix(p)
		for _, a := range []netip.Addr{r.From().Prev(), r.From(), r.To(), r.To().Next()} {
			if a.IsValid() && set.Contains(a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// excludeNetworkAddresses takes out what hosts of the pool's networks cannot use.
func (c *compiler) excludeNetworkAddresses(set *netipx.IPSetBuilder) {
	exclude := func(p netip.Prefix) {
		all, usable := netipx.RangeOfPrefix(p), poolutil.Usable(p)
		for _, edge := range []netip.Addr{all.From(), all.To()} {
			// The edge may lie in a smaller subnet, where it is an address as any other.
			if !usable.Contains(edge) && c.out.networkOf(edge).prefix == p {
				set.Remove(edge)
			}
		}
	}
	for _, s := range c.out.subnets {
		exclude(s.prefix)
	}
	for _, b := range c.out.blocks {
		exclude(b.networkOf(b.prefix.Addr()).prefix)
	}
	if c.out.prefix == nil {
		for _, p := range c.out.networks() {
			exclude(p)
		}
		return
	}
	bits, n := int(*c.out.prefix), 0
	if bits >= c.bits-1 {
		return // networks of one or two addresses have nothing to exclude
	}
	for _, r := range c.outsideSubnets().Ranges() {
		for a := r.From(); a.IsValid() && a.Compare(r.To()) <= 0; {
			if n++; n > maxNetworks {
				c.invalidf(c.path.Child("prefix"), bits, "cuts the pool into more than %d networks; "+
					"use a shorter prefix, or allocateReservedIPAddresses", maxNetworks)
				return
			}
			p := netip.PrefixFrom(a, bits).Masked()
			exclude(p)
			a = netipx.PrefixLastIP(p).Next()
		}
	}
}
