package poolspec

import (
	"net/netip"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// maxNetworks limits the networks into which spec.prefix may cut the pool: their first and last addresses are excluded
// one by one.
const maxNetworks = 65536

// compileNetworks reads subnets and prefix.
func (c *compiler) compileNetworks() {
	entry := map[netip.Prefix]int{}
	for i, s := range c.spec.Subnets {
		path := c.path.Child("subnets").Index(i)
		p, ok := c.parsePrefix(path.Child("cidr"), s.CIDR)
		if !ok {
			continue
		}
		if other, taken := entry[p]; taken {
			c.addInvalidf(path.Child("cidr"), s.CIDR, "is a duplicate of subnets[%d]; remove one of the two entries", other)
			continue
		}
		entry[p] = i
		net := subnet{prefix: p}
		if s.Gateway != "" {
			if net.gateway, ok = c.parseAddress(path.Child("gateway"), s.Gateway); ok && !canReachGateway(p, net.gateway) {
				c.addInvalidf(path.Child("gateway"), s.Gateway, "is outside the subnet %s; a gateway is an address of its own subnet%s", p,
					c.textForFamily("", ", or link-local (fe80::/10)"))
			}
		}
		c.layout.subnets = append(c.layout.subnets, net)
		c.compileZone(path, p, s.FailureDomains)
	}
	if length := c.spec.Prefix; length != nil {
		if *length < 0 || int(*length) > c.addressBits {
			c.addInvalidf(c.path.Child("prefix"), *length, "must be between 0 and %d", c.addressBits)
			return
		}
		c.layout.prefixLength = length
	}
}

// addressesOutsideSubnets returns the declared addresses to which spec.prefix and spec.gateway apply.
func (c *compiler) addressesOutsideSubnets() *netipx.IPSet {
	var set netipx.IPSetBuilder
	set.AddSet(c.layout.declared)
	for _, s := range c.layout.subnets {
		set.RemovePrefix(s.prefix)
	}
	return c.buildSet(&set)
}

// compileGateway reads spec.gateway and checks that its addresses can reach it.
func (c *compiler) compileGateway() {
	if c.spec.Gateway == "" {
		return
	}
	path, text := c.path.Child("gateway"), c.spec.Gateway
	gateway, ok := c.parseAddress(path, text)
	if !ok {
		return
	}
	c.layout.gateway = gateway
	served := c.addressesOutsideSubnets()
	if len(served.Ranges()) == 0 {
		c.addInvalidf(path, text, "is the gateway of no address, because every address is in one of the subnets; set the gateway there")
	}
	// Each address is a network of its own, which reaches the gateway on-link.
	if c.layout.prefixLength != nil && int(*c.layout.prefixLength) == c.addressBits {
		return
	}
	for _, a := range c.networkEdges(served) {
		switch net := c.layout.subnetForAddress(a).prefix; {
		case net.Contains(gateway):
		case net.Bits() == c.addressBits: // a link-local gateway does not define the length either
			c.addInvalidf(path, text, "needs prefix: without it the network that %s shares with the gateway is not known", a)
			return
		case !canReachGateway(net, gateway):
			c.addInvalidf(path, text, "is outside %s, the network of %s; correct prefix, %s", net, a,
				c.textForFamily("or describe several networks with subnets", "describe several networks with subnets, or use a link-local gateway (fe80::/10)"))
			return
		}
	}
}

// canReachGateway reports whether hosts of a network can use a gateway. An IPv6 link-local address is on every link;
// for an IPv4 one, hosts have no route unless one is configured.
func canReachGateway(net netip.Prefix, gateway netip.Addr) bool {
	return net.Contains(gateway) || (gateway.Is6() && gateway.IsLinkLocalUnicast())
}

// textForFamily returns the text for the pool's family.
func (c *compiler) textForFamily(ipv4, ipv6 string) string {
	if c.layout.is6 {
		return ipv6
	}
	return ipv4
}

// networkEdges returns addresses of a set, at least one in each network of its addresses: the ends of its ranges, and
// both sides of the ends of each network, as networks may be nested.
func (c *compiler) networkEdges(set *netipx.IPSet) []netip.Addr {
	var out []netip.Addr
	for _, r := range set.Ranges() {
		out = append(out, r.From(), r.To())
	}
	if c.layout.prefixLength != nil {
		return out // these networks are not nested
	}
	for _, p := range c.layout.specNetworks() {
		r := netipx.RangeOfPrefix(p)
		for _, a := range []netip.Addr{r.From().Prev(), r.From(), r.To(), r.To().Next()} {
			if a.IsValid() && set.Contains(a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// excludeNetworkAddresses removes the addresses that hosts of the pool's networks cannot use.
func (c *compiler) excludeNetworkAddresses(set *netipx.IPSetBuilder) {
	exclude := func(p netip.Prefix) {
		all, usable := netipx.RangeOfPrefix(p), poolutil.Usable(p)
		for _, edge := range []netip.Addr{all.From(), all.To()} {
			// The edge may be in a smaller subnet, where it is an ordinary address.
			if !usable.Contains(edge) && c.layout.subnetForAddress(edge).prefix == p {
				set.Remove(edge)
			}
		}
	}
	for _, s := range c.layout.subnets {
		exclude(s.prefix)
	}
	for _, b := range c.layout.blocks {
		exclude(b.subnetForAddress(b.prefix.Addr()).prefix)
	}
	if c.layout.prefixLength == nil {
		for _, p := range c.layout.specNetworks() {
			exclude(p)
		}
		return
	}
	bits, n := int(*c.layout.prefixLength), 0
	if bits >= c.addressBits-1 {
		return // networks of one or two addresses have none to exclude
	}
	for _, r := range c.addressesOutsideSubnets().Ranges() {
		for a := r.From(); a.IsValid() && a.Compare(r.To()) <= 0; {
			if n++; n > maxNetworks {
				c.addInvalidf(c.path.Child("prefix"), bits, "cuts the pool into more than %d networks; "+
					"use a shorter prefix, or allocateReservedIPAddresses", maxNetworks)
				return
			}
			p := netip.PrefixFrom(a, bits).Masked()
			exclude(p)
			a = netipx.PrefixLastIP(p).Next()
		}
	}
}
