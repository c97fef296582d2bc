// Package podcidr decides which CIDRs Nodes get for their Pods: which ranges apply to a Node and in which order, what
// is free in them, and which CIDR each Node gets. It reads and writes nothing. The rules are those of [KEP-2593].
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

// Family is an IP family. The values index arrays that have an element for each family.
type Family int

// The IP families.
const (
	IPv4 Family = iota
	IPv6
)

// addressBits returns the length of an address of the family in bits.
func (f Family) addressBits() int { return [...]int{32, 128}[f] }

func (f Family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// FamilyForPrefix returns the family of a CIDR.
func FamilyForPrefix(p netip.Prefix) Family {
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

// RangeSpec is the parsed spec of a ClusterCIDR.
type RangeSpec struct {
	// NodeSelector selects the Nodes; nil, or a selector without terms, selects all of them, as a fallback.
	NodeSelector *corev1.NodeSelector
	// HostBits is how many bits of an address each Node has for its Pods, by family; 0 means nothing of that family.
	HostBits [2]int
	// CIDRs are the CIDRs that those of Nodes are cut from, by family. They do not overlap.
	CIDRs [2][]netip.Prefix
	// Elastic reports whether more CIDRs of the family may come from a pool.
	Elastic [2]bool
}

// Range is the compiled spec of a ClusterCIDR. It never changes, except CanGrow, Closing, and the CIDRs of an elastic
// family.
type Range struct {
	Ref
	selector *selector
	// nodePrefixLengths are the prefix lengths of the CIDRs that a Node gets, by family; 0 means nothing of that
	// family.
	nodePrefixLengths [2]int
	// cidrs are the CIDRs that those of Nodes are cut from; allocatable are those of them that CIDRs may still be
	// granted from.
	cidrs, allocatable [2][]netip.Prefix
	elastic            [2]bool
	// capacity is how many Nodes the range can ever serve.
	capacity int64
	// CanGrow reports whether the elastic families have room to grow, as far as is known; Closing reports whether
	// nothing more is granted from the range.
	CanGrow, Closing bool
}

// Node is what is known of a Node.
type Node struct {
	Name      string
	UID       types.UID
	CreatedAt time.Time
	Labels    map[string]string
	// LabelsTimeout is how long after its registration a Node may still get labels that it does not have yet; 0 means
	// that none are announced.
	LabelsTimeout time.Duration
	// CIDRs are its spec.podCIDRs. Host bits that are set are ignored, as they are by the components that set up
	// routes.
	CIDRs []netip.Prefix
	// ClusterCIDRName names the ClusterCIDR that its CIDRs come from, according to its annotation.
	ClusterCIDRName string
	// Deleting reports whether the Node is being deleted. It keeps its CIDRs, and gets no others.
	Deleting bool
}

// Capacity returns how many Nodes the range can ever serve: the minimum over its families, at most math.MaxInt64.
func (r *Range) Capacity() int64 { return r.capacity }

// IsElastic reports whether CIDRs of a family come from a pool.
func (r *Range) IsElastic(f Family) bool { return r.elastic[f] }

// SetBlocks sets the CIDRs of an elastic family, and which of them CIDRs may be granted from. The caller must build new
// Allocations when these are fewer than before.
func (r *Range) SetBlocks(f Family, all, allocatable []netip.Prefix) {
	if r.elastic[f] {
		r.cidrs[f], r.allocatable[f] = all, allocatable
	}
}

// CIDRsForFamily returns all CIDRs of a family; AllocatableCIDRs returns those that may be granted from.
func (r *Range) CIDRsForFamily(f Family) []netip.Prefix { return r.cidrs[f] }

// AllocatableCIDRs returns the CIDRs of a family that may be granted from.
func (r *Range) AllocatableCIDRs(f Family) []netip.Prefix { return r.allocatable[f] }

// CurrentCapacity returns how many Nodes the present CIDRs can serve: the minimum over the families, at most
// math.MaxInt64.
func (r *Range) CurrentCapacity() int64 {
	least := int64(math.MaxInt64)
	for _, f := range r.Families() {
		least = min(least, r.familyCapacity(f).Int64())
	}
	return least
}

func (r *Range) familyCapacity(f Family) (out poolutil.Count) {
	for _, p := range r.cidrs[f] {
		out = out.Plus(poolutil.CountPrefixes(netipx.RangeOfPrefix(p), r.nodePrefixLengths[f]))
	}
	return out
}

// HasSelector reports whether the range is for certain Nodes only, selected by labels or name.
func (r *Range) HasSelector() bool { return r.selector != nil }

// DescribeSelector returns which Nodes the range is for, as text: AllNodesText, NoNodeText, or the terms of the
// selector.
func (r *Range) DescribeSelector() string { return r.selector.String() }

// CIDRs returns the CIDRs that those of Nodes are cut from, of both families.
func (r *Range) CIDRs() []netip.Prefix { return slices.Concat(r.cidrs[:]...) }

// StaticCIDRs returns the CIDRs of the families that do not come from a pool.
func (r *Range) StaticCIDRs() (out []netip.Prefix) {
	for f, cidrs := range r.cidrs {
		if !r.elastic[f] {
			out = append(out, cidrs...)
		}
	}
	return out
}

// OverlapsAny reports whether CIDRs have addresses of the range.
func (r *Range) OverlapsAny(cidrs []netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return slices.ContainsFunc(r.cidrs[FamilyForPrefix(p)], p.Overlaps)
	})
}

// ContainsAll reports whether each of the CIDRs is within one that may be granted from.
func (r *Range) ContainsAll(cidrs []netip.Prefix) bool {
	return !slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(r.allocatable[FamilyForPrefix(p)], func(of netip.Prefix) bool { return of.Bits() <= p.Bits() && of.Contains(p.Addr()) })
	})
}

// NodePrefixLengths returns the prefix lengths of the CIDRs that a Node gets, by family; 0 means nothing of that
// family.
func (r *Range) NodePrefixLengths() [2]int { return r.nodePrefixLengths }

// Families returns the families in which a Node gets a CIDR.
func (r *Range) Families() []Family {
	switch {
	case r.nodePrefixLengths[IPv6] == 0:
		return []Family{IPv4}
	case r.nodePrefixLengths[IPv4] == 0:
		return []Family{IPv6}
	}
	return []Family{IPv4, IPv6}
}

func (r Ref) String() string { return fmt.Sprintf("%s %s", r.Kind, r.Name) }
