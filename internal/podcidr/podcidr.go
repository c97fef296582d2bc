// Package podcidr decides which CIDRs Nodes get for their Pods: which ranges apply to a Node and in which order, what of
// them is free, and who gets what. It reads and writes nothing. The rules are those of [KEP-2593].
//
// [KEP-2593]: https://github.com/kubernetes/enhancements/tree/master/keps/sig-network/2593-multiple-cluster-cidrs
package podcidr

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Family is an IP family. The values index arrays of both.
type Family int

// The families.
const (
	IPv4 Family = iota
	IPv6
)

// bits is the length of an address of the family.
func (f Family) bits() int { return [...]int{32, 128}[f] }

func (f Family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// FamilyOf is the family of a CIDR.
func FamilyOf(p netip.Prefix) Family {
	if p.Addr().Is4() {
		return IPv4
	}
	return IPv6
}

// Ref names the object that a range comes from.
type Ref struct {
	Kind, Name string
	UID        types.UID
}

// Spec is what a ClusterCIDR says.
type Spec struct {
	// Selector chooses the Nodes; nil, or one without terms: all of them, as a fallback.
	Selector *corev1.NodeSelector
	// HostBits is how many bits of an address each Node has for its Pods, by family; 0: nothing of that family.
	HostBits [2]int
	// CIDRs are what the CIDRs of Nodes are cut from, by family. They do not overlap.
	CIDRs [2][]netip.Prefix
	// Elastic: more CIDRs of the family may come, from a pool.
	Elastic [2]bool
}

// Range is a ClusterCIDR, compiled. It never changes, but for Grows, Closing, and what it has of an elastic family.
type Range struct {
	Ref
	selector *selector
	// lengths are the prefix lengths of what a Node gets, by family; 0: it gets nothing of that.
	lengths [2]int
	// cidrs are what the CIDRs of its Nodes are cut from, gives those of them that are still given from.
	cidrs, gives [2][]netip.Prefix
	elastic      [2]bool
	// capacity is how many Nodes it can ever serve.
	capacity int64
	// Grows: what is elastic has room to grow, as far as is known. Closing: nothing more is given of it.
	Grows, Closing bool
}

// Node is what is known of a Node.
type Node struct {
	Name    string
	UID     types.UID
	Created time.Time
	Labels  map[string]string
	// LabelsDue is within what time labels come that it does not have yet; 0: none are announced.
	LabelsDue time.Duration
	// CIDRs are its spec.podCIDRs. Bits of the host part are ignored, as they are by those who set up routes.
	CIDRs []netip.Prefix
	// From names the ClusterCIDR that its CIDRs are said to be from.
	From string
	// Deleting: it is being deleted. It keeps what it has, and gets nothing.
	Deleting bool
}

// Capacity is how many Nodes the range can ever serve: the least of its families, at most math.MaxInt64.
func (r *Range) Capacity() int64 { return r.capacity }

// Elastic reports whether CIDRs of a family come from a pool.
func (r *Range) Elastic(f Family) bool { return r.elastic[f] }

// SetBlocks says what there is of an elastic family, and from which of that more is given. Books are to be made anew when
// it is less than before.
func (r *Range) SetBlocks(f Family, all, gives []netip.Prefix) {
	if r.elastic[f] {
		r.cidrs[f], r.gives[f] = all, gives
	}
}

// All is what there is of a family, Gives what of it is given from.
func (r *Range) All(f Family) []netip.Prefix { return r.cidrs[f] }

// Gives is what of a family is given from.
func (r *Range) Gives(f Family) []netip.Prefix { return r.gives[f] }

// Serves is how many Nodes what there is now can serve: the least of the families, at most math.MaxInt64.
func (r *Range) Serves() int64 {
	least := int64(math.MaxInt64)
	for _, f := range r.Families() {
		least = min(least, r.total(f).Int64())
	}
	return least
}

func (r *Range) total(f Family) (out poolutil.Count) {
	for _, p := range r.cidrs[f] {
		out = out.Plus(poolutil.CountPrefixes(netipx.RangeOfPrefix(p), r.lengths[f]))
	}
	return out
}

// Chooses reports whether the range is for certain Nodes: labels decide.
func (r *Range) Chooses() bool { return r.selector != nil }

// Selects says which Nodes the range is for: All, None, or what they have.
func (r *Range) Selects() string { return r.selector.String() }

// CIDRs are what the CIDRs of Nodes are cut from, of both families.
func (r *Range) CIDRs() []netip.Prefix { return slices.Concat(r.cidrs[:]...) }

// Named are the CIDRs of those families that come from no pool.
func (r *Range) Named() (out []netip.Prefix) {
	for f, cidrs := range r.cidrs {
		if !r.elastic[f] {
			out = append(out, cidrs...)
		}
	}
	return out
}

// Covers reports whether CIDRs of a Node have addresses of the range.
func (r *Range) Covers(cidrs []netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return slices.ContainsFunc(r.cidrs[FamilyOf(p)], p.Overlaps)
	})
}

// Has reports whether each of some CIDRs is in what the range gives.
func (r *Range) Has(cidrs []netip.Prefix) bool {
	return !slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(r.gives[FamilyOf(p)], func(of netip.Prefix) bool { return of.Bits() <= p.Bits() && of.Contains(p.Addr()) })
	})
}

// Shares reports whether another range has addresses of this one.
func (r *Range) Shares(other *Range) bool {
	return r.Covers(other.cidrs[IPv4]) || r.Covers(other.cidrs[IPv6])
}

// Lengths are the prefix lengths of what a Node gets, by family; 0: nothing of that.
func (r *Range) Lengths() [2]int { return r.lengths }

// Families are those of which a Node gets a CIDR.
func (r *Range) Families() []Family {
	switch {
	case r.lengths[IPv6] == 0:
		return []Family{IPv4}
	case r.lengths[IPv4] == 0:
		return []Family{IPv6}
	}
	return []Family{IPv4, IPv6}
}

func (r Ref) String() string { return fmt.Sprintf("%s %s", r.Kind, r.Name) }
