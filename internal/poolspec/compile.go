package poolspec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// compiler collects a layout and what is wrong with the spec.
type compiler struct {
	spec *v1alpha1.NetworkPoolSpec
	path *field.Path
	errs field.ErrorList
	out  *Layout
	bits int // 32 or 128, once the family is known
}

// Compile returns the layout of a spec, or every error that set arithmetic can find in it. A spec
// the API server has accepted may still have errors: a CEL rule cannot compare IPv6 addresses.
func Compile(spec *v1alpha1.NetworkPoolSpec) (*Layout, field.ErrorList) {
	c := &compiler{spec: spec, path: field.NewPath("spec"), out: &Layout{
		pins: map[string]netip.Addr{}, owners: map[netip.Addr]string{},
	}}
	c.declare()
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	c.units()
	c.networks()
	c.pin()
	c.allocatable()
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	return c.out, nil
}

func (c *compiler) invalidf(path *field.Path, value any, format string, args ...any) {
	c.errs = append(c.errs, field.Invalid(path, value, fmt.Sprintf(format, args...)))
}

// parse reads a range and holds it to the pool's one family, which the first one decides.
func (c *compiler) parse(path *field.Path, text string) (netipx.IPRange, bool) {
	r, err := poolutil.ParseRange(text)
	if err != nil {
		c.invalidf(path, text, "%v", err)
		return r, false
	}
	if c.bits == 0 {
		c.bits = r.From().BitLen()
		c.out.is6 = r.From().Is6()
	}
	if r.From().BitLen() != c.bits {
		c.invalidf(path, text, "is of another address family than the rest of the pool; a pool has one family, use two pools")
		return r, false
	}
	return r, true
}

func (c *compiler) address(path *field.Path, text string) (netip.Addr, bool) {
	r, ok := c.parse(path, text)
	if ok && r.From() != r.To() {
		c.invalidf(path, text, "must be one address")
		return netip.Addr{}, false
	}
	return r.From(), ok
}

// prefixOf reads a CIDR.
func (c *compiler) prefixOf(path *field.Path, text string) (netip.Prefix, bool) {
	r, ok := c.parse(path, text)
	if !ok {
		return netip.Prefix{}, false
	}
	p, isPrefix := r.Prefix()
	if !isPrefix {
		c.invalidf(path, text, "must be a CIDR")
	}
	return p, isPrefix
}

// declare reads what the pool names as its addresses.
func (c *compiler) declare() {
	var set netipx.IPSetBuilder
	if c.spec.CIDR == "" && len(c.spec.Addresses) == 0 {
		c.errs = append(c.errs, field.Required(c.path.Child("cidr"), "a pool needs cidr or addresses"))
	}
	if c.spec.CIDR != "" {
		if p, ok := c.prefixOf(c.path.Child("cidr"), c.spec.CIDR); ok {
			set.AddPrefix(p)
			c.out.prefixes = append(c.out.prefixes, p)
		}
	}
	for i, text := range c.spec.Addresses {
		r, ok := c.parse(c.path.Child("addresses").Index(i), text)
		if !ok {
			continue
		}
		set.AddRange(r)
		if p, isPrefix := r.Prefix(); isPrefix && p.Bits() < c.bits {
			c.out.prefixes = append(c.out.prefixes, p)
		}
	}
	c.out.declared = c.build(&set)
}

func (c *compiler) build(b *netipx.IPSetBuilder) *netipx.IPSet {
	s, err := b.IPSet()
	if err != nil {
		c.errs = append(c.errs, field.InternalError(c.path, err))
		return &netipx.IPSet{}
	}
	return s
}

// units checks the prefix length that each claim gets.
func (c *compiler) units() {
	c.out.unitBits = c.bits
	if l := c.spec.AllocationPrefixLength; l != nil {
		if *l < 1 || int(*l) > c.bits {
			c.invalidf(c.path.Child("allocationPrefixLength"), *l, "must be between 1 and %d", c.bits)
			return
		}
		c.out.unitBits = int(*l)
	}
}

// networks reads subnets, prefix and gateway.
func (c *compiler) networks() {
	for i, s := range c.spec.Subnets {
		path := c.path.Child("subnets").Index(i)
		p, ok := c.prefixOf(path.Child("cidr"), s.CIDR)
		if !ok {
			continue
		}
		net := subnet{prefix: p}
		if s.Gateway != "" {
			if net.gateway, ok = c.address(path.Child("gateway"), s.Gateway); ok && !p.Contains(net.gateway) {
				c.invalidf(path.Child("gateway"), s.Gateway, "is outside the subnet %s", p)
			}
		}
		c.out.subnets = append(c.out.subnets, net)
	}
	if c.spec.Prefix != nil {
		if *c.spec.Prefix < 1 || int(*c.spec.Prefix) > c.bits {
			c.invalidf(c.path.Child("prefix"), *c.spec.Prefix, "must be between 1 and %d", c.bits)
			return
		}
		c.out.prefix = int(*c.spec.Prefix)
	}
	if c.spec.Gateway == "" {
		return
	}
	path := c.path.Child("gateway")
	gateway, ok := c.address(path, c.spec.Gateway)
	if !ok {
		return
	}
	c.out.gateway = gateway
	for _, r := range c.out.declared.Ranges() {
		if n := c.out.shortForm(r.From()); n.prefix.Bits() < c.bits && !n.prefix.Contains(gateway) {
			c.invalidf(path, c.spec.Gateway, "is outside %s, the network of %s; set prefix, or use subnets for several networks",
				n.prefix.Masked(), r.From())
			return
		}
	}
}

// pin reads the preAllocations.
func (c *compiler) pin() {
	gateways := c.gateways()
	for _, name := range slices.Sorted(maps.Keys(c.spec.PreAllocations)) {
		path, text := c.path.Child("preAllocations").Key(name), c.spec.PreAllocations[name]
		a, ok := c.address(path, text)
		if !ok {
			continue
		}
		switch other, taken := c.out.owners[a]; {
		case taken:
			c.invalidf(path, text, "is preAllocated to %q too; give each claim an address of its own", other)
		case !c.out.declared.Contains(a):
			c.invalidf(path, text, "is outside the pool")
		case slices.Contains(gateways, a):
			c.invalidf(path, text, "is a gateway")
		default:
			c.out.pins[name], c.out.owners[a] = a, name
		}
	}
}

func (c *compiler) gateways() []netip.Addr {
	var out []netip.Addr
	if c.out.gateway.IsValid() {
		out = append(out, c.out.gateway)
	}
	for _, s := range c.out.subnets {
		if s.gateway.IsValid() {
			out = append(out, s.gateway)
		}
	}
	return out
}
