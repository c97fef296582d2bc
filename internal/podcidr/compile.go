package podcidr

import (
	"math"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// minHostBits, maxHostBitsIPv4 and maxHostBitsIPv6 bound the host bits of a Node, as in the KEP.
const (
	minHostBits     = 4
	maxHostBitsIPv4 = 28
	maxHostBitsIPv6 = 124
)

// CompileRange compiles a spec into a Range, or returns what is wrong with it.
func CompileRange(ref Ref, spec RangeSpec) (*Range, field.ErrorList) {
	path := field.NewPath("spec")
	out := &Range{Ref: ref, elastic: spec.Elastic, capacity: math.MaxInt64}
	var errs field.ErrorList
	out.selector, errs = compileSelector(path.Child("nodeSelector"), spec.NodeSelector)
	named := false
	for _, f := range []Family{IPv4, IPv6} {
		at := path.Child([...]string{"ipv4", "ipv6"}[f])
		if len(spec.CIDRs[f]) == 0 && !spec.Elastic[f] {
			continue
		}
		named = true
		bits := spec.HostBits[f]
		if most := [...]int{maxHostBitsIPv4, maxHostBitsIPv6}[f]; bits < minHostBits || bits > most {
			errs = append(errs, field.Invalid(path.Child("perNodeHostBits"), bits, "is not between 4 and 28 for IPv4, or 124 for IPv6"))
			continue
		}
		out.nodePrefixLengths[f] = f.addressBits() - bits
		errs = append(errs, out.addCIDRs(at, f, spec.CIDRs[f])...)
	}
	if !named {
		errs = append(errs, field.Required(path, "needs ipv4, ipv6, or both"))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return out, nil
}

// addCIDRs adds the CIDRs of a family, and bounds the capacity by them.
func (r *Range) addCIDRs(at *field.Path, f Family, cidrs []netip.Prefix) (errs field.ErrorList) {
	for _, p := range cidrs {
		switch {
		case !p.IsValid() || FamilyForPrefix(p) != f:
			errs = append(errs, field.Invalid(at, p.String(), "is no "+f.String()+" CIDR"))
		case p != p.Masked():
			errs = append(errs, field.Invalid(at, p.String(), "has bits set beyond its prefix length; write "+p.Masked().String()))
		case p.Bits() > r.nodePrefixLengths[f]:
			errs = append(errs, field.Invalid(at, p.String(), "is smaller than what perNodeHostBits gives one Node; use fewer host bits, or a larger CIDR"))
		default:
			r.cidrs[f] = append(r.cidrs[f], p)
		}
	}
	slices.SortFunc(r.cidrs[f], func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	r.allocatable[f] = r.cidrs[f]
	if !r.elastic[f] {
		r.capacity = min(r.capacity, r.familyCapacity(f).Int64())
	}
	return errs
}
