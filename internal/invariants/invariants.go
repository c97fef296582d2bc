// Package invariants checks objects of the API server against the promises of docs/design.md: no address is held
// twice, and none is lost. Tests of every level use it.
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

// History records the address that each claimant was seen with. The zero value is ready to use.
type History struct {
	// BlocksMayBeRemoved reports whether the test removes blocks from carved pools that use them.
	BlocksMayBeRemoved bool

	addressByOwner map[types.UID]string
	// networkByOwner are the claimants that were granted something, with the network of the pool at that time.
	networkByOwner map[types.UID]string
	// childPoolByBlock are the pools of all blocks that were seen, including blocks that are gone.
	childPoolByBlock map[types.UID]pools.Key
}

// CheckMoment returns the violations of what must hold at any moment: no address is held by two living objects of a
// pool, or granted while another pool of the network has granted it (I1); and the addresses of a claim or allocation
// never change (I4).
func (h *History) CheckMoment(o pools.Objects) []string {
	if h.addressByOwner == nil {
		h.addressByOwner, h.networkByOwner, h.childPoolByBlock = map[types.UID]string{}, map[types.UID]string{}, map[types.UID]pools.Key{}
	}
	var bad []string
	held := map[pools.Key][]heldRange{}
	networkOf, above := networksByPool(o), parentsByPool(o)
	h.recordChildPools(o)
	living, added := h.grantsInFlight(o), []heldRange(nil)
	for _, x := range listHeldRanges(o) {
		if !x.isLiving {
			continue // void: no living claim can use it (R2)
		}
		living = append(living, x)
		held[x.pool] = append(held[x.pool], x)
		if before, seen := h.addressByOwner[x.ownerUID]; seen && before != x.addressText {
			bad = append(bad, fmt.Sprintf("I4: the address of %s %s changed from %s to %s", x.kind, x.objectName, before, x.addressText))
		}
		h.addressByOwner[x.ownerUID] = x.addressText
	}
	for _, all := range held {
		slices.SortStableFunc(all, func(a, b heldRange) int { return a.ipRange.From().Compare(b.ipRange.From()) })
		var last heldRange // the one that reaches furthest
		for _, x := range all {
			if last.ipRange.IsValid() && x.ipRange.From().Compare(last.ipRange.To()) <= 0 {
				bad = append(bad, fmt.Sprintf("I1: %s of %v is held by %s and %s", x.ipRange.From(), x.pool, last.objectName, x.objectName))
			}
			if !last.ipRange.IsValid() || !x.ipRange.To().Less(last.ipRange.To()) {
				last = x
			}
		}
	}
	// A grant counts from its commit on, in the network that its pool had then. An operator is responsible for
	// networks that become the same one later.
	for _, x := range living {
		network, known := networkOf[x.pool]
		if _, seen := h.networkByOwner[x.ownerUID]; !seen && known {
			h.networkByOwner[x.ownerUID] = network
			added = append(added, x)
		}
	}
	if !h.BlocksMayBeRemoved {
		bad = append(bad, checkOutsideBlocks(above, living)...)
	}
	for _, x := range added {
		for _, y := range living {
			network, known := h.networkByOwner[x.ownerUID]
			otherNetwork, too := h.networkByOwner[y.ownerUID]
			inBlock := isAtOrBelow(above, y.pool, x.childPool) || isAtOrBelow(above, x.pool, y.childPool)
			if x.pool != y.pool && known && too && network == otherNetwork && x.ipRange.Overlaps(y.ipRange) && !inBlock {
				bad = append(bad, fmt.Sprintf("I1: %s is given to %s by %v, and %s has it of %v", x.ipRange.From(), x.objectName, x.pool, y.objectName, y.pool))
			}
		}
	}
	return bad
}

// checkOutsideBlocks returns the grants of carved pools, also those in flight, that are outside of the pool's blocks.
func checkOutsideBlocks(above map[pools.Key]pools.Key, living []heldRange) (bad []string) {
	blocks := map[pools.Key]*netipx.IPSetBuilder{}
	for child := range above {
		blocks[child] = &netipx.IPSetBuilder{}
	}
	for _, b := range living {
		if set := blocks[b.childPool]; set != nil && b.ipRange.IsValid() {
			set.AddRange(b.ipRange)
		}
	}
	blockSets := map[pools.Key]*netipx.IPSet{}
	for child, set := range blocks {
		blockSets[child], _ = set.IPSet() // for valid ranges, IPSet returns no error
	}
	for _, x := range living {
		if _, carved := above[x.pool]; !carved || !x.ipRange.IsValid() {
			continue
		}
		if !blockSets[x.pool].ContainsRange(x.ipRange) { // adjacent blocks may contain it together
			bad = append(bad, fmt.Sprintf("R13: %s is given to %s by %v, which has no such block", x.ipRange.From(), x.objectName, x.pool))
		}
	}
	return bad
}

// recordChildPools records which pools blocks are for: a grant may still be in flight when its block is gone.
func (h *History) recordChildPools(o pools.Objects) {
	for _, p := range o.Pools {
		for _, b := range p.PoolStatus().Blocks { // their IPAllocations may be gone
			h.childPoolByBlock[types.UID(b.UID)] = pools.KeyForPool(p)
		}
	}
	for i := range o.Allocations {
		if key, ok := pools.ChildPoolKey(&o.Allocations[i]); ok {
			h.childPoolByBlock[o.Allocations[i].UID] = key
		}
	}
}

// grantsInFlight returns the grants in flight of all pools.
func (h *History) grantsInFlight(o pools.Objects) []heldRange {
	var out []heldRange
	for _, p := range o.Pools {
		if p.PoolStatus().Allocator == nil {
			continue
		}
		for _, g := range p.PoolStatus().Allocator.InFlight {
			if r, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil {
				out = append(out, heldRange{pool: pools.KeyForPool(p), ipRange: r, objectName: g.Namespace + "/" + g.Name, ownerUID: types.UID(g.UID), isLiving: true, childPool: h.childPoolByBlock[types.UID(g.UID)]})
			}
		}
	}
	return out
}

// networksByPool returns the network of each pool; pools of one network must not grant the same addresses. A pool
// that allows overlaps is a network of its own, with all pools that are carved from it.
func networksByPool(o pools.Objects) map[pools.Key]string {
	out := map[pools.Key]string{}
	above := parentsByPool(o)
	for _, p := range o.Pools {
		key, spec := pools.KeyForPool(p), p.PoolSpec()
		switch {
		case spec.Carve != nil:
		case spec.AllowOverlap:
			out[key] = "that of " + key.String()
		default:
			out[key] = spec.Network
		}
	}
	for child := range above {
		if network, known := out[rootPool(above, child)]; known {
			out[child] = network
		}
	}
	return out
}

// parentsByPool returns the parent of each carved pool.
func parentsByPool(o pools.Objects) map[pools.Key]pools.Key {
	out := map[pools.Key]pools.Key{}
	for _, p := range o.Pools {
		if parent, carved := pools.ParentPoolKey(p); carved {
			out[pools.KeyForPool(p)] = parent
		}
	}
	return out
}

// maxCarveDepth exceeds the number of levels that addresses can be carved in.
const maxCarveDepth = 8

func rootPool(above map[pools.Key]pools.Key, key pools.Key) pools.Key {
	for range maxCarveDepth {
		if parent, carved := above[key]; carved {
			key = parent
		}
	}
	return key
}

// isAtOrBelow reports whether a pool is the other one, or carved from it. It returns false if other is the zero Key.
func isAtOrBelow(above map[pools.Key]pools.Key, pool, other pools.Key) bool {
	if other == (pools.Key{}) {
		return false
	}
	for range maxCarveDepth {
		if pool == other {
			return true
		}
		pool = above[pool]
	}
	return false
}

// heldRange is the range that an object holds.
type heldRange struct {
	pool pools.Key
	// ipRange is invalid if the address cannot be parsed.
	ipRange                       netipx.IPRange
	addressText, kind, objectName string
	// ownerUID is the UID of the claimant; isLiving reports whether the claimant exists; userCreated reports whether
	// no provider created the IPAddress.
	ownerUID              types.UID
	isLiving, userCreated bool
	// childPool is the carved pool that the object is a block of; zero if it is no block.
	childPool pools.Key
}

// listHeldRanges returns what the IPAddresses, IPAllocations and IPLeases of our pools hold.
func listHeldRanges(o pools.Objects) []heldRange {
	living, ending := map[types.UID]bool{}, map[types.NamespacedName]*ipamv1.IPAddressClaim{}
	for i := range o.Claims {
		c := &o.Claims[i]
		living[c.UID] = true
		if c.DeletionTimestamp != nil {
			ending[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
		}
	}
	var out []heldRange
	for i := range o.Addresses {
		a := &o.Addresses[i]
		pool, ok := pools.KeyFromIPPoolReference(a.Namespace, a.Spec.PoolRef)
		if !ok {
			continue
		}
		x := heldRange{pool: pool, addressText: a.Spec.Address, kind: "claim", objectName: a.Namespace + "/" + a.Name, ownerUID: claimUIDForAddress(a, ending)}
		x.isLiving = living[x.ownerUID]
		x.userCreated = len(a.OwnerReferences) == 0
		if ip, err := netip.ParseAddr(a.Spec.Address); err == nil {
			ip = ip.Unmap()
			x.ipRange, x.addressText = netipx.IPRangeFrom(ip, ip), ip.String()
		}
		out = append(out, x)
	}
	for i := range o.Allocations {
		a := &o.Allocations[i]
		r, ok := recordedRange(a, v1alpha1.IPAllocationFinalizer, a.Status.CIDR)
		if !ok {
			continue
		}
		x := heldRange{pool: pools.KeyFromAllocation(a), ipRange: r, addressText: poolutil.ShowRange(r), kind: "allocation", objectName: a.Namespace + "/" + a.Name, ownerUID: a.UID, isLiving: true}
		if child, isChild := pools.ChildPoolKey(a); isChild {
			x.childPool = child
		}
		out = append(out, x)
	}
	for i := range o.Leases {
		l := &o.Leases[i]
		if r, ok := recordedRange(l, v1alpha1.IPLeaseFinalizer, l.Status.Address); ok {
			out = append(out, heldRange{
				pool: pools.KeyFromPoolReference(l.Namespace, l.Spec.PoolRef), ipRange: r, addressText: poolutil.ShowRange(r), kind: "lease", objectName: l.Namespace + "/" + l.Name, ownerUID: l.UID, isLiving: true,
			})
		}
	}
	return out
}

// recordedRange returns what an object holds that shows its range in its own status: its record, which counts only
// together with our finalizer. A deleted object that only another finalizer keeps holds what its status shows.
func recordedRange(o metav1.Object, finalizer, shown string) (r netipx.IPRange, ok bool) {
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

// CheckAtRest returns the violations of what must hold when nothing is in progress: those of CheckMoment, addresses
// without a claim, allocations and leases whose status differs from their record, unfinished grants, and counts that
// do not match (I2).
func (h *History) CheckAtRest(o pools.Objects) []string {
	bad := h.CheckMoment(o)
	all := listHeldRanges(o)
	used := countRecordOnlyAddresses(o, all)
	for _, x := range all {
		used[x.pool] += max(1, poolutil.Size(x.ipRange))
		if !x.userCreated && !x.isLiving {
			bad = append(bad, fmt.Sprintf("I2: IPAddress %s has no claim", x.objectName))
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
	bad = append(bad, checkBlocksAtRest(o)...)
	for _, p := range o.Pools {
		if pools.HasEnded(p) {
			continue
		}
		ref := pools.KeyForPool(p)
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

// countRecordOnlyAddresses counts the addresses that are recorded on claims and that no IPAddress or IPAllocation of
// the pool has: they are kept for the claims, although the claims may be refused them.
func countRecordOnlyAddresses(o pools.Objects, all []heldRange) map[pools.Key]int64 {
	type one struct {
		pool pools.Key
		addr netip.Addr
	}
	counted := map[one]bool{}
	for _, x := range all {
		counted[one{x.pool, x.ipRange.From()}] = true
	}
	out := map[pools.Key]int64{}
	for i := range o.Claims {
		c := &o.Claims[i]
		pool, ok := pools.KeyFromIPPoolReference(c.Namespace, c.Spec.PoolRef)
		r, err := poolutil.ParseRange(c.Annotations[v1alpha1.AddressAnnotation])
		if at := (one{pool, r.From()}); ok && err == nil && !counted[at] {
			counted[at] = true
			if !slices.ContainsFunc(all, func(x heldRange) bool { return x.pool == pool && x.ipRange.Overlaps(r) }) {
				out[pool]++
			}
		}
	}
	return out
}

// checkBlocksAtRest returns the violations of what must hold for blocks when nothing is in progress: a pool has
// opened each block that it has, and each open block exists.
func checkBlocksAtRest(o pools.Objects) (bad []string) {
	for _, p := range o.Pools {
		if pools.HasEnded(p) {
			continue
		}
		cidrs := map[string]string{}
		for i := range o.Allocations {
			a := &o.Allocations[i]
			child, ok := pools.ChildPoolKey(a)
			parent, carved := pools.ParentPoolKey(p)
			if ok && carved && child == pools.KeyForPool(p) && parent == pools.KeyFromAllocation(a) && a.Status.Phase == v1alpha1.AllocationAllocated {
				cidrs[a.Name] = a.Status.CIDR
			}
		}
		for _, b := range p.PoolStatus().Blocks {
			if cidrs[b.Allocation] != b.Range {
				bad = append(bad, fmt.Sprintf("R13: %v has the block %s open as %s, and that has %q", pools.KeyForPool(p), b.Allocation, b.Range, cidrs[b.Allocation]))
			}
			delete(cidrs, b.Allocation)
		}
		for name, cidr := range cidrs {
			bad = append(bad, fmt.Sprintf("R13: %v has the block %s with %s, and has not opened it", pools.KeyForPool(p), name, cidr))
		}
	}
	return bad
}

// claimUIDForAddress returns the UID of the claim of an IPAddress: the one that an owner reference names. If that
// claim is deleted in the foreground, the garbage collector removes the reference, because the pool also owns the
// IPAddress: then the IPAddress belongs to the claim of its name that is being deleted and has the address on record.
func claimUIDForAddress(a *ipamv1.IPAddress, ending map[types.NamespacedName]*ipamv1.IPAddressClaim) types.UID {
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
