package poolspec

import (
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// maxAddressBits is the length of an IPv6 address.
const maxAddressBits = 128

// Compile returns the layout of a spec, or all errors that can be found in it. It does not rely on the rules of the
// CRD: those cannot compute with sets, and an object may be older than they are. The addresses of a carved pool are
// those of its open blocks.
func Compile(spec *v1alpha1.NetworkPoolSpec, open ...v1alpha1.CarvedBlock) (*Layout, field.ErrorList) {
	c := &compiler{spec: spec, blocks: open, path: field.NewPath("spec"), layout: &Layout{
		pins: map[string]netip.Addr{}, pinOwners: map[netip.Addr]string{}, unusablePins: map[string]string{},
	}}
	// Each step needs the results of the one before.
	for _, step := range []func(){c.compileDeclared, c.compileUnitBits, c.compileNetworks, c.compileIndependentFields} {
		if step(); len(c.errs) > 0 {
			return nil, c.errs
		}
	}
	c.layout.addPinsToGrantable()
	c.layout.computeZoneRanges()
	return c.layout, nil
}

// compileIndependentFields runs the steps that do not depend on each other, so that the user sees the errors of all of
// them at once. A carved pool without blocks has no address family yet.
func (c *compiler) compileIndependentFields() {
	c.validateOrder()
	if c.addressBits == 0 {
		c.layout.allocatable = c.layout.declared
		return
	}
	c.compileGateway()
	c.compilePins()
	c.compileAllocatable()
}

// validateOrder refuses an unknown order: such a pool would be served in another order than its spec shows.
func (c *compiler) validateOrder() {
	all := []v1alpha1.AllocationOrder{"", v1alpha1.BestFitOrder, v1alpha1.LeastRecentlyUsedOrder}
	if !slices.Contains(all, c.spec.AllocationOrder) {
		c.addInvalidf(c.path.Child("allocationOrder"), c.spec.AllocationOrder, "is no order: leave it out, or write %s or %s", all[1], all[2])
	}
}

// compileDeclared reads the addresses that the pool declares.
func (c *compiler) compileDeclared() {
	if c.isCarved() {
		c.compileBlocks()
		return
	}
	var set netipx.IPSetBuilder
	if c.spec.CIDR == "" && len(c.spec.Addresses) == 0 {
		c.errs = append(c.errs, field.Required(c.path, "a pool needs addresses: set cidr, addresses, or both"))
	}
	if c.spec.CIDR != "" {
		if p, ok := c.parsePrefix(c.path.Child("cidr"), c.spec.CIDR); ok {
			set.AddPrefix(p)
			c.layout.cidr = p
		}
	}
	for i, text := range c.spec.Addresses {
		r, ok := c.parseRange(c.path.Child("addresses").Index(i), text)
		if !ok {
			continue
		}
		set.AddRange(r)
		// A range without a slash names addresses, and no network, even if it is a whole prefix.
		if p, isPrefix := r.Prefix(); isPrefix && strings.Contains(text, "/") {
			c.layout.addressCIDRs = append(c.layout.addressCIDRs, p)
		}
	}
	c.layout.declared = c.buildSet(&set)
}

// compileUnitBits checks the length of the prefix that each claim gets.
func (c *compiler) compileUnitBits() {
	c.layout.unitBits = c.addressBits
	length := c.spec.AllocationPrefixLength
	if c.addressBits == 0 {
		c.layout.unitBits = int(ptr.Deref(length, maxAddressBits))
		return
	}
	if length == nil {
		return
	}
	path := c.path.Child("allocationPrefixLength")
	if *length < 1 || int(*length) > c.addressBits {
		c.addInvalidf(path, *length, "must be between 1 and %d", c.addressBits)
		return
	}
	c.layout.unitBits = int(*length)
	whole, err := poolutil.TrimToPrefixes(c.layout.declared, c.layout.unitBits)
	if !c.isCarved() && (err != nil || len(whole.Ranges()) == 0) {
		c.addInvalidf(path, *length, "the pool does not hold one whole prefix of this length; choose a longer one")
	}
}
