// Package invariants checks objects of the API server against the promise of docs/design.md: an
// address is never held twice and never lost. Every level of tests uses it.
package invariants

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// History remembers which address each claim was seen with. The zero value is ready to use.
type History struct {
	// BlocksMayGo: somebody takes blocks from carved pools that use them.
	BlocksMayGo bool

	given map[types.UID]string
	// granted are the claims that were granted something, with the network of the pool at that time.
	granted map[types.UID]string
	// children are the pools that blocks were for, those of blocks that are gone too.
	children map[types.UID]pools.Key
}

// Moment returns what must not be at any moment: an address of two living objects of a pool, or given while another
// pool of the network has it given (I1), and a claim or an allocation whose addresses changed (I4).
func (h *History) Moment(o pools.Objects) []string {
	if h.given == nil {
		h.given, h.granted, h.children = map[types.UID]string{}, map[types.UID]string{}, map[types.UID]pools.Key{}
	}
	var bad []string
	held := map[pools.Key][]holding{}
	networkOf, above := networks(o), parents(o)
	h.noteChildren(o)
	living, fresh := h.inFlight(o), []holding(nil)
	for _, x := range holdings(o) {
		if !x.living {
			continue // void: no living claim can use it (R2)
		}
		living = append(living, x)
		held[x.pool] = append(held[x.pool], x)
		if before, seen := h.given[x.owner]; seen && before != x.text {
			bad = append(bad, fmt.Sprintf("I4: the address of %s %s changed from %s to %s", x.kind, x.who, before, x.text))
		}
		h.given[x.owner] = x.text
	}
	for _, all := range held {
		slices.SortStableFunc(all, func(a, b holding) int { return a.rng.From().Compare(b.rng.From()) })
		var last holding // the one that reaches furthest
		for _, x := range all {
			if last.rng.IsValid() && x.rng.From().Compare(last.rng.To()) <= 0 {
				bad = append(bad, fmt.Sprintf("I1: %s of %v is held by %s and %s", x.rng.From(), x.pool, last.who, x.who))
			}
			if !last.rng.IsValid() || !x.rng.To().Less(last.rng.To()) {
				last = x
			}
		}
	}
	// A grant counts from its commit on, in the network that its pool had then: what became the same network later, an
	// operator has brought about.
	for _, x := range living {
		network, known := networkOf[x.pool]
		if _, seen := h.granted[x.owner]; !seen && known {
			h.granted[x.owner] = network
			fresh = append(fresh, x)
		}
	}
	if !h.BlocksMayGo {
		bad = append(bad, outsideBlocks(above, living)...)
	}
	for _, x := range fresh {
		for _, y := range living {
			mine, known := h.granted[x.owner]
			its, too := h.granted[y.owner]
			inBlock := below(above, y.pool, x.child) || below(above, x.pool, y.child)
			if x.pool != y.pool && known && too && mine == its && x.rng.Overlaps(y.rng) && !inBlock {
				bad = append(bad, fmt.Sprintf("I1: %s is given to %s by %v, and %s has it of %v", x.rng.From(), x.who, x.pool, y.who, y.pool))
			}
		}
	}
	return bad
}

// outsideBlocks returns what of a carved pool is given, or in flight, outside of its blocks.
func outsideBlocks(above map[pools.Key]pools.Key, living []holding) (bad []string) {
	blocks := map[pools.Key]*netipx.IPSetBuilder{}
	for child := range above {
		blocks[child] = &netipx.IPSetBuilder{}
	}
	for _, b := range living {
		if set := blocks[b.child]; set != nil && b.rng.IsValid() {
			set.AddRange(b.rng)
		}
	}
	has := map[pools.Key]*netipx.IPSet{}
	for child, set := range blocks {
		has[child], _ = set.IPSet() // of valid ranges, there is a set
	}
	for _, x := range living {
		if _, carved := above[x.pool]; !carved || !x.rng.IsValid() {
			continue
		}
		if !has[x.pool].ContainsRange(x.rng) { // blocks that lie side by side may have it together
			bad = append(bad, fmt.Sprintf("R13: %s is given to %s by %v, which has no such block", x.rng.From(), x.who, x.pool))
		}
	}
	return bad
}

// noteChildren notes which pools blocks are for: a grant to one may be in flight when that is gone.
func (h *History) noteChildren(o pools.Objects) {
	for _, p := range o.Pools {
		for _, b := range p.PoolStatus().Blocks { // of which the IPAllocation may be gone
			h.children[types.UID(b.UID)] = pools.KeyOf(p)
		}
	}
	for i := range o.Allocations {
		if key, is := pools.ChildOf(&o.Allocations[i]); is {
			h.children[o.Allocations[i].UID] = key
		}
	}
}

// inFlight are the grants in flight.
func (h *History) inFlight(o pools.Objects) []holding {
	var out []holding
	for _, p := range o.Pools {
		if p.PoolStatus().Allocator == nil {
			continue
		}
		for _, g := range p.PoolStatus().Allocator.InFlight {
			if r, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil {
				out = append(out, holding{pool: pools.KeyOf(p), rng: r, who: g.Namespace + "/" + g.Name, owner: types.UID(g.UID), living: true, child: h.children[types.UID(g.UID)]})
			}
		}
	}
	return out
}

// networks are those of the pools that must not give what another one has. One that allows overlaps is a network of its own,
// with all that is carved from it.
func networks(o pools.Objects) map[pools.Key]string {
	out := map[pools.Key]string{}
	above := parents(o)
	for _, p := range o.Pools {
		key, spec := pools.KeyOf(p), p.PoolSpec()
		switch {
		case spec.Carve != nil:
		case spec.AllowOverlap:
			out[key] = "that of " + key.String()
		default:
			out[key] = spec.Network
		}
	}
	for child := range above {
		if network, known := out[root(above, child)]; known {
			out[child] = network
		}
	}
	return out
}

// parents are the pools that carved ones are carved from.
func parents(o pools.Objects) map[pools.Key]pools.Key {
	out := map[pools.Key]pools.Key{}
	for _, p := range o.Pools {
		if parent, carved := pools.ParentOf(p); carved {
			out[pools.KeyOf(p)] = parent
		}
	}
	return out
}

// deepest is more often than addresses are carved.
const deepest = 8

func root(above map[pools.Key]pools.Key, key pools.Key) pools.Key {
	for range deepest {
		if parent, carved := above[key]; carved {
			key = parent
		}
	}
	return key
}

// below reports whether a pool is another one, or carved from it. No pool is below none.
func below(above map[pools.Key]pools.Key, pool, other pools.Key) bool {
	if other == (pools.Key{}) {
		return false
	}
	for range deepest {
		if pool == other {
			return true
		}
		pool = above[pool]
	}
	return false
}

// holding is what an object has.
type holding struct {
	pool pools.Key
	// rng is invalid where the address cannot be read.
	rng             netipx.IPRange
	text, kind, who string
	// owner is the claim or the allocation; living: it exists. byHand: no provider made the IPAddress.
	owner          types.UID
	living, byHand bool
	// child is the carved pool that it is a block for, if it is one.
	child pools.Key
}

// holdings are what the IPAddresses, IPAllocations and IPLeases of our pools have.
func holdings(o pools.Objects) []holding {
	living, ending := map[types.UID]bool{}, map[types.NamespacedName]*ipamv1.IPAddressClaim{}
	for i := range o.Claims {
		c := &o.Claims[i]
		living[c.UID] = true
		if c.DeletionTimestamp != nil {
			ending[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
		}
	}
	var out []holding
	for i := range o.Addresses {
		a := &o.Addresses[i]
		pool, ours := pools.KeyOfRef(a.Namespace, a.Spec.PoolRef)
		if !ours {
			continue
		}
		x := holding{pool: pool, text: a.Spec.Address, kind: "claim", who: a.Namespace + "/" + a.Name, owner: claimUID(a, ending)}
		x.living = living[x.owner]
		x.byHand = len(a.OwnerReferences) == 0
		if ip, err := netip.ParseAddr(a.Spec.Address); err == nil {
			ip = ip.Unmap()
			x.rng, x.text = netipx.IPRangeFrom(ip, ip), ip.String()
		}
		out = append(out, x)
	}
	for i := range o.Allocations {
		a := &o.Allocations[i]
		r, has := ownRange(a, v1alpha1.IPAllocationFinalizer, a.Status.CIDR)
		if !has {
			continue
		}
		x := holding{pool: pools.KeyOfAllocation(a), rng: r, text: poolutil.ShowRange(r), kind: "allocation", who: a.Namespace + "/" + a.Name, owner: a.UID, living: true}
		if child, is := pools.ChildOf(a); is {
			x.child = child
		}
		out = append(out, x)
	}
	for i := range o.Leases {
		l := &o.Leases[i]
		if r, has := ownRange(l, v1alpha1.IPLeaseFinalizer, l.Status.Address); has {
			out = append(out, holding{
				pool: pools.KeyOfPool(l.Namespace, l.Spec.PoolRef), rng: r, text: poolutil.ShowRange(r), kind: "lease", who: l.Namespace + "/" + l.Name, owner: l.UID, living: true,
			})
		}
	}
	return out
}

// ownRange returns what an object has that shows its range in its own status: its record, which counts with our finalizer alone.
// One that was deleted, and that the finalizer of another keeps, has what its status shows.
func ownRange(o metav1.Object, finalizer, shown string) (r netipx.IPRange, has bool) {
	text := o.GetAnnotations()[v1alpha1.AddressAnnotation]
	if !slices.Contains(o.GetFinalizers(), finalizer) {
		if o.GetDeletionTimestamp() == nil {
			return r, false
		}
		text = shown
	}
	r, err := poolutil.ParseRange(text)
	return r, err == nil
}

// AtRest returns what must not be once nothing is under way any more: besides Moment, addresses
// without a claim, allocations and leases that do not show what they have, grants that were never settled, and counts
// that do not match (I2).
func (h *History) AtRest(o pools.Objects) []string {
	bad := h.Moment(o)
	all := holdings(o)
	used := rememberedOnly(o, all)
	for _, x := range all {
		used[x.pool] += max(1, poolutil.Size(x.rng))
		if !x.byHand && !x.living {
			bad = append(bad, fmt.Sprintf("I2: IPAddress %s has no claim", x.who))
		}
	}
	for i := range o.Allocations {
		a := &o.Allocations[i]
		shown, record := "", a.Annotations[v1alpha1.AddressAnnotation]
		if a.Status.Phase == v1alpha1.AllocationAllocated {
			shown = a.Status.CIDR
		}
		if shown != record && (a.DeletionTimestamp == nil || shown != "") {
			bad = append(bad, fmt.Sprintf("I2: IPAllocation %s/%s shows %q and remembers %q", a.Namespace, a.Name, shown, record))
		}
	}
	for i := range o.Leases {
		l := &o.Leases[i]
		if record := l.Annotations[v1alpha1.AddressAnnotation]; l.Status.Address != record && (l.DeletionTimestamp == nil || l.Status.Address != "") {
			bad = append(bad, fmt.Sprintf("I2: IPLease %s/%s shows %q and remembers %q", l.Namespace, l.Name, l.Status.Address, record))
		}
	}
	bad = append(bad, blocksAtRest(o)...)
	for _, p := range o.Pools {
		if pools.HasEnded(p) {
			continue
		}
		ref := pools.KeyOf(p)
		s := p.PoolStatus()
		if s.Allocator != nil && len(s.Allocator.InFlight) > 0 {
			bad = append(bad, fmt.Sprintf("I2: grants of %v still in flight: %d", ref, len(s.Allocator.InFlight)))
		}
		if n := s.AllocatedIPs + s.OutOfRangeIPs; n != used[ref] {
			bad = append(bad, fmt.Sprintf("I2: %v counts %d addresses in use, there are %d", ref, n, used[ref]))
		}
	}
	return bad
}

// rememberedOnly counts what claims remember, and no IPAddress or IPAllocation of the pool has: it is kept for them, though
// they may be refused it.
func rememberedOnly(o pools.Objects, all []holding) map[pools.Key]int64 {
	type one struct {
		pool pools.Key
		addr netip.Addr
	}
	counted := map[one]bool{}
	for _, x := range all {
		counted[one{x.pool, x.rng.From()}] = true
	}
	out := map[pools.Key]int64{}
	for i := range o.Claims {
		c := &o.Claims[i]
		pool, ours := pools.KeyOfRef(c.Namespace, c.Spec.PoolRef)
		r, err := poolutil.ParseRange(c.Annotations[v1alpha1.AddressAnnotation])
		if at := (one{pool, r.From()}); ours && err == nil && !counted[at] {
			counted[at] = true
			if !slices.ContainsFunc(all, func(x holding) bool { return x.pool == pool && x.rng.Overlaps(r) }) {
				out[pool]++
			}
		}
	}
	return out
}

// blocksAtRest returns what must not be of blocks once nothing is under way: one that a pool has and has not opened, and
// one that is open and not there.
func blocksAtRest(o pools.Objects) (bad []string) {
	for _, p := range o.Pools {
		if pools.HasEnded(p) {
			continue
		}
		has := map[string]string{}
		for i := range o.Allocations {
			a := &o.Allocations[i]
			child, is := pools.ChildOf(a)
			parent, carved := pools.ParentOf(p)
			if is && carved && child == pools.KeyOf(p) && parent == pools.KeyOfAllocation(a) && a.Status.Phase == v1alpha1.AllocationAllocated {
				has[a.Name] = a.Status.CIDR
			}
		}
		for _, b := range p.PoolStatus().Blocks {
			if has[b.Allocation] != b.Range {
				bad = append(bad, fmt.Sprintf("R13: %v has the block %s open as %s, and that has %q", pools.KeyOf(p), b.Allocation, b.Range, has[b.Allocation]))
			}
			delete(has, b.Allocation)
		}
		for name, cidr := range has {
			bad = append(bad, fmt.Sprintf("R13: %v has the block %s with %s, and has not opened it", pools.KeyOf(p), name, cidr))
		}
	}
	return bad
}

// claimUID is the claim of an IPAddress: the one that it names as its owner. Where that is deleted in the foreground the
// garbage collector takes the reference off, as the pool owns the IPAddress too: it is of the claim of its name then,
// which has the address on record.
func claimUID(a *ipamv1.IPAddress, ending map[types.NamespacedName]*ipamv1.IPAddressClaim) types.UID {
	for _, ref := range a.OwnerReferences {
		if ref.Kind == "IPAddressClaim" && ref.Name == a.Spec.ClaimRef.Name {
			return ref.UID
		}
	}
	c := ending[types.NamespacedName{Namespace: a.Namespace, Name: a.Name}]
	if c == nil || len(a.OwnerReferences) == 0 || !slices.Contains(c.Finalizers, v1alpha1.ClaimFinalizer) {
		return ""
	}
	if text, _, _ := strings.Cut(c.Annotations[v1alpha1.AddressAnnotation], "/"); text != a.Spec.Address {
		return ""
	}
	return c.UID
}
