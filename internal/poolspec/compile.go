package poolspec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// maxBits is the length of the longest address.
const maxBits = 128

// compiler collects a layout and what is wrong with the spec.
type compiler struct {
	spec *v1alpha1.NetworkPoolSpec
	// blocks are those that a carved pool has open.
	blocks []v1alpha1.CarvedBlock
	path   *field.Path
	errs   field.ErrorList
	out    *Layout
	bits   int // 32 or 128, once the family is known
}

// Compile returns the layout of a spec, or every error that can be found in it. It does not rely on
// the rules of the CRD: those cannot add up sets, and an object may be older than they are. A carved pool has the
// addresses of the blocks that it has open.
func Compile(spec *v1alpha1.NetworkPoolSpec, open ...v1alpha1.CarvedBlock) (*Layout, field.ErrorList) {
	c := &compiler{spec: spec, blocks: open, path: field.NewPath("spec"), out: &Layout{
		pins: map[string]netip.Addr{}, owners: map[netip.Addr]string{}, unfit: map[string]string{},
	}}
	// Each step needs what the one before it read.
	for _, step := range []func(){c.declare, c.units, c.networks, c.rest} {
		if step(); len(c.errs) > 0 {
			return nil, c.errs
		}
	}
	c.out.addPins()
	c.out.cutZones()
	return c.out, nil
}

// rest are the steps that do not need each other: whoever has several errors sees them at once. A carved pool without
// blocks has no family yet.
func (c *compiler) rest() {
	c.order()
	if c.bits == 0 {
		c.out.allocatable = c.out.declared
		return
	}
	c.gateway()
	c.pin()
	c.allocatable()
}

// order refuses an order that there is not: a pool would else be served in another one than it says.
func (c *compiler) order() {
	all := []v1alpha1.AllocationOrder{"", v1alpha1.BestFitOrder, v1alpha1.LeastRecentlyUsedOrder}
	if !slices.Contains(all, c.spec.AllocationOrder) {
		c.invalidf(c.path.Child("allocationOrder"), c.spec.AllocationOrder, "is no order: leave it out, or write %s or %s", all[1], all[2])
	}
}

func (c *compiler) invalidf(path *field.Path, value any, format string, args ...any) {
	c.errs = append(c.errs, field.Invalid(path, value, fmt.Sprintf(format, args...)))
}

// parse reads a CIDR, a range or one address and holds it to the pool's one family, which the first
// one decides.
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

// address reads one address.
func (c *compiler) address(path *field.Path, text string) (netip.Addr, bool) {
	if strings.ContainsAny(text, "/-") {
		c.invalidf(path, text, "must be one address")
		return netip.Addr{}, false
	}
	r, ok := c.parse(path, text)
	return r.From(), ok
}

// prefixOf reads a CIDR.
func (c *compiler) prefixOf(path *field.Path, text string) (netip.Prefix, bool) {
	if !strings.Contains(text, "/") {
		c.invalidf(path, text, "must be a CIDR: an address, a slash and a prefix length")
		return netip.Prefix{}, false
	}
	r, ok := c.parse(path, text)
	if !ok {
		return netip.Prefix{}, false
	}
	return r.Prefix()
}

// declare reads what the pool names as its addresses.
func (c *compiler) declare() {
	if c.carved() {
		c.declareBlocks()
		return
	}
	var set netipx.IPSetBuilder
	if c.spec.CIDR == "" && len(c.spec.Addresses) == 0 {
		c.errs = append(c.errs, field.Required(c.path, "a pool needs addresses: set cidr, addresses, or both"))
	}
	if c.spec.CIDR != "" {
		if p, ok := c.prefixOf(c.path.Child("cidr"), c.spec.CIDR); ok {
			set.AddPrefix(p)
			c.out.cidr = p
		}
	}
	for i, text := range c.spec.Addresses {
		r, ok := c.parse(c.path.Child("addresses").Index(i), text)
		if !ok {
			continue
		}
		set.AddRange(r)
		// A range that happens to be a whole prefix names addresses, not a network.
		if p, isPrefix := r.Prefix(); isPrefix && strings.Contains(text, "/") {
			c.out.cidrs = append(c.out.cidrs, p)
		}
	}
	c.out.declared = c.build(&set)
}

// build ends a set. It cannot fail: what goes in has been parsed and is of one family.
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
	length := c.spec.AllocationPrefixLength
	if c.bits == 0 {
		c.out.unitBits = int(ptr.Deref(length, maxBits))
		return
	}
	if length == nil {
		return
	}
	path := c.path.Child("allocationPrefixLength")
	if *length < 1 || int(*length) > c.bits {
		c.invalidf(path, *length, "must be between 1 and %d", c.bits)
		return
	}
	c.out.unitBits = int(*length)
	whole, err := poolutil.TrimToPrefixes(c.out.declared, c.out.unitBits)
	if !c.carved() && (err != nil || len(whole.Ranges()) == 0) {
		c.invalidf(path, *length, "the pool does not hold one whole prefix of this length; choose a longer one")
	}
}
