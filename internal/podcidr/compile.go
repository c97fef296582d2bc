package podcidr

import (
	"math"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// least and most bound the host bits of a Node, as the KEP has them.
const (
	leastHostBits = 4
	mostHostBits4 = 28
	mostHostBits6 = 124
)

// Compile makes a Range of a spec, or says what is wrong with that.
func Compile(ref Ref, spec Spec) (*Range, field.ErrorList) {
	path := field.NewPath("spec")
	out := &Range{Ref: ref, elastic: spec.Elastic, capacity: math.MaxInt64}
	var errs field.ErrorList
	out.selector, errs = compileSelector(path.Child("nodeSelector"), spec.Selector)
	named := false
	for _, f := range []Family{IPv4, IPv6} {
		at := path.Child([...]string{"ipv4", "ipv6"}[f])
		if len(spec.CIDRs[f]) == 0 && !spec.Elastic[f] {
			continue
		}
		named = true
		bits := spec.HostBits[f]
		if most := [...]int{mostHostBits4, mostHostBits6}[f]; bits < leastHostBits || bits > most {
			errs = append(errs, field.Invalid(path.Child("perNodeHostBits"), bits, "is not between 4 and 28 for IPv4, or 124 for IPv6"))
			continue
		}
		out.lengths[f] = f.bits() - bits
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

// addCIDRs adds the ranges of a family, and bounds the capacity by them.
func (r *Range) addCIDRs(at *field.Path, f Family, cidrs []netip.Prefix) (errs field.ErrorList) {
	for _, p := range cidrs {
		switch {
		case !p.IsValid() || FamilyOf(p) != f:
			errs = append(errs, field.Invalid(at, p.String(), "is no "+f.String()+" CIDR"))
		case p != p.Masked():
			errs = append(errs, field.Invalid(at, p.String(), "has bits set beyond its prefix length; write "+p.Masked().String()))
		case p.Bits() > r.lengths[f]:
			errs = append(errs, field.Invalid(at, p.String(), "is smaller than what perNodeHostBits gives one Node; use fewer host bits, or a larger CIDR"))
		default:
			r.cidrs[f] = append(r.cidrs[f], p)
		}
	}
	slices.SortFunc(r.cidrs[f], func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	r.gives[f] = r.cidrs[f]
	if !r.elastic[f] {
		r.capacity = min(r.capacity, r.total(f).Int64())
	}
	return errs
}
