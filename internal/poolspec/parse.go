package poolspec

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// compiler collects the layout of a spec, and its errors.
type compiler struct {
	spec *v1alpha1.NetworkPoolSpec
	// blocks are the open blocks of a carved pool.
	blocks      []v1alpha1.CarvedBlock
	path        *field.Path
	errs        field.ErrorList
	layout      *Layout
	addressBits int // 32 or 128; 0 until the family is known
}

func (c *compiler) addInvalidf(path *field.Path, value any, format string, args ...any) {
	c.errs = append(c.errs, field.Invalid(path, value, fmt.Sprintf(format, args...)))
}

// parseRange parses a CIDR, a range or an address. All must be of one address family, which the first one decides.
func (c *compiler) parseRange(path *field.Path, text string) (netipx.IPRange, bool) {
	r, err := poolutil.ParseRange(text)
	if err != nil {
		c.addInvalidf(path, text, "%v", err)
		return r, false
	}
	if c.addressBits == 0 {
		c.addressBits = r.From().BitLen()
		c.layout.is6 = r.From().Is6()
	}
	if r.From().BitLen() != c.addressBits {
		c.addInvalidf(path, text, "is of another address family than the rest of the pool; a pool has one family, use two pools")
		return r, false
	}
	return r, true
}

// parseAddress parses a single address.
func (c *compiler) parseAddress(path *field.Path, text string) (netip.Addr, bool) {
	if strings.ContainsAny(text, "/-") {
		c.addInvalidf(path, text, "must be one address")
		return netip.Addr{}, false
	}
	r, ok := c.parseRange(path, text)
	return r.From(), ok
}

// parsePrefix parses a CIDR.
func (c *compiler) parsePrefix(path *field.Path, text string) (netip.Prefix, bool) {
	if !strings.Contains(text, "/") {
		c.addInvalidf(path, text, "must be a CIDR: an address, a slash and a prefix length")
		return netip.Prefix{}, false
	}
	r, ok := c.parseRange(path, text)
	if !ok {
		return netip.Prefix{}, false
	}
	return r.Prefix()
}

// buildSet returns the set of a builder. It cannot fail: its ranges are valid and of one family.
func (c *compiler) buildSet(b *netipx.IPSetBuilder) *netipx.IPSet {
	s, err := b.IPSet()
	if err != nil {
		c.errs = append(c.errs, field.InternalError(c.path, err))
		return &netipx.IPSet{}
	}
	return s
}
