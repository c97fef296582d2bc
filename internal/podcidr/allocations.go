package podcidr

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// coolingPeriod is how long a CIDR that a Node had is passed over, as routes to it may linger. It keeps no Node
// waiting.
const coolingPeriod = 10 * time.Minute

// Allocations records which CIDRs of a cluster are taken, and by which Nodes: both families at once, so that a Node
// gets all or nothing. A CIDR is free when it is proven that the Node's UID is gone, whatever its range has become
// meanwhile. Allocations is not safe for concurrent use.
type Allocations struct {
	ledgers [2]*ledger.Ledger
	// cooling are the released CIDRs, in the order in which their cooling ends.
	cooling []coolingCIDR
}

type coolingCIDR struct {
	cidr      netip.Prefix
	ledgerKey ledger.Key
	until     time.Time
}

// Conflict records that the CIDRs of a Node overlap those of another Node.
type Conflict struct {
	NodeName, OtherNodeName string
	OtherNodeUID            types.UID
	// OtherCIDR is the CIDR of the other Node.
	OtherCIDR netip.Prefix
}

// NewAllocations returns Allocations in which only the excluded CIDRs are taken, for example those of Services.
func NewAllocations(excluded []netip.Prefix) *Allocations {
	b := &Allocations{}
	for f := range b.ledgers {
		b.ledgers[f] = ledger.New(&netipx.IPSet{}, Family(f).addressBits())
	}
	for _, p := range excluded {
		b.addFact(p, ledger.SourceHeld, types.UID(p.String()), p.String())
	}
	return b
}

// TrackRanges starts to track the free space of ranges. Nothing is found free in a range that is not tracked.
func (as *Allocations) TrackRanges(ranges ...*Range) {
	for _, r := range ranges {
		for f, cidrs := range r.allocatable {
			for _, p := range cidrs {
				as.ledgers[f].WatchPrefix(p)
			}
		}
	}
}

func (as *Allocations) addFact(p netip.Prefix, source ledger.Source, uid types.UID, name string) {
	as.ledgers[FamilyForPrefix(p)].AddFact(ledger.Fact{
		Key: ledger.Key{Source: source, UID: uid}, Owner: ledger.Owner{Name: name, UID: uid}, Range: netipx.RangeOfPrefix(p.Masked()),
	})
}

// RecordNode records the CIDRs of a Node. Its podCIDRs never change once they are set, so a grant to it can no longer
// land; a Node without CIDRs withdraws nothing, as it may be an old observation. RecordNode returns the conflicts with
// other Nodes, when the CIDRs are new.
func (as *Allocations) RecordNode(n *Node) (clashes []Conflict) {
	if !slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return !as.hasNodeCIDR(n.UID, p) }) {
		return nil
	}
	for _, l := range as.ledgers {
		l.RemoveFact(ledger.Key{Source: ledger.SourceGrant, UID: n.UID})
	}
	for _, p := range n.CIDRs {
		for _, h := range as.ledgers[FamilyForPrefix(p)].OverlappingFacts(netipx.RangeOfPrefix(p.Masked())) {
			if h.Source.IsInUse() && h.Owner.UID != n.UID {
				cidr, _ := h.Range.Prefix()
				clashes = append(clashes, Conflict{NodeName: n.Name, OtherNodeName: h.Owner.Name, OtherNodeUID: h.Owner.UID, OtherCIDR: cidr})
			}
		}
		as.addFact(p, ledger.SourceObject, n.UID, n.Name)
	}
	return clashes
}

// hasNodeCIDR reports whether a Node was seen with a CIDR.
func (as *Allocations) hasNodeCIDR(uid types.UID, p netip.Prefix) bool {
	f, ok := as.ledgers[FamilyForPrefix(p)].FindFact(ledger.Key{Source: ledger.SourceObject, UID: uid})
	return ok && f.Range == netipx.RangeOfPrefix(p.Masked())
}

// RecordGrant records a grant that is committed, or is about to be.
func (as *Allocations) RecordGrant(n *Node, cidrs []netip.Prefix) {
	for _, p := range cidrs {
		as.addFact(p, ledger.SourceGrant, n.UID, n.Name)
	}
}

// WithdrawGrant removes a grant that is not committed. The CIDRs that its Node was seen with stay.
func (as *Allocations) WithdrawGrant(uid types.UID) {
	for _, l := range as.ledgers {
		l.RemoveFact(ledger.Key{Source: ledger.SourceGrant, UID: uid})
	}
}

// IsExclusive reports whether none of the CIDRs overlaps what another Node has or is granted, or what is excluded.
func (as *Allocations) IsExclusive(uid types.UID, cidrs []netip.Prefix) bool {
	return !slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return as.ledgers[FamilyForPrefix(p)].FindOverlappingFact(netipx.RangeOfPrefix(p.Masked()), func(f *ledger.Fact) bool {
			return f.Source != ledger.SourceCooling && f.Owner.UID != uid
		}) != nil
	})
}

// IsUsedByOther reports whether a Node of another UID was seen with some of the CIDRs.
func (as *Allocations) IsUsedByOther(uid types.UID, cidrs []netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return as.ledgers[FamilyForPrefix(p)].FindOverlappingFact(netipx.RangeOfPrefix(p.Masked()), func(f *ledger.Fact) bool {
			return f.Source == ledger.SourceObject && f.Owner.UID != uid
		}) != nil
	})
}

// CountUsers returns how many Nodes have some of a CIDR, or are granted some.
func (as *Allocations) CountUsers(p netip.Prefix) (n int64) {
	for _, f := range as.ledgers[FamilyForPrefix(p)].OverlappingFacts(netipx.RangeOfPrefix(p.Masked())) {
		if f.Source == ledger.SourceObject || f.Source == ledger.SourceGrant {
			n++
		}
	}
	return n
}

// OverlappingExclusion reports whether some of a CIDR is excluded, and returns the first excluded CIDR that overlaps
// it.
func (as *Allocations) OverlappingExclusion(p netip.Prefix) (netip.Prefix, bool) {
	for _, f := range as.ledgers[FamilyForPrefix(p)].OverlappingFacts(netipx.RangeOfPrefix(p.Masked())) {
		if cidr, ok := f.Range.Prefix(); ok && f.Source == ledger.SourceHeld {
			return cidr, true
		}
	}
	return netip.Prefix{}, false
}

// ReleaseNode records the proof that a Node's UID is gone. Its CIDRs cool down for coolingPeriod.
func (as *Allocations) ReleaseNode(uid types.UID, now time.Time) {
	for _, l := range as.ledgers {
		for _, source := range []ledger.Source{ledger.SourceObject, ledger.SourceGrant} {
			fact, removed := l.RemoveFact(ledger.Key{Source: source, UID: uid})
			p, ok := fact.Range.Prefix()
			if !removed || !ok {
				continue
			}
			key := ledger.Key{Source: ledger.SourceCooling, UID: uid}
			l.AddFact(ledger.Fact{Key: key, Range: fact.Range})
			as.cooling = append(as.cooling, coolingCIDR{cidr: p, ledgerKey: key, until: now.Add(coolingPeriod)})
		}
	}
}

// AllocateForNode takes a CIDR of each family of a range for a Node, as a grant, or nothing: in the first CIDR of the
// range that has room, from the smallest free block that holds one. Cooling CIDRs are taken only where nothing else is
// left, those that have been cooling longest first. It costs O(log n) in Nodes.
func (as *Allocations) AllocateForNode(r *Range, n *Node, now time.Time) ([]netip.Prefix, bool) {
	for len(as.cooling) > 0 && !as.cooling[0].until.After(now) {
		as.endCooling(0)
	}
	var out []netip.Prefix
	for _, f := range r.Families() {
		p, ok := as.findFreeCIDR(r, f)
		if !ok {
			return nil, false
		}
		out = append(out, p)
	}
	as.RecordGrant(n, out)
	return out, true
}

// findFreeCIDR returns the CIDR of a family that AllocateForNode takes.
func (as *Allocations) findFreeCIDR(r *Range, f Family) (netip.Prefix, bool) {
	for {
		for _, p := range r.allocatable[f] {
			if found, ok := as.ledgers[f].FindFreePrefix(p, r.nodePrefixLengths[f]); ok {
				return found, true
			}
		}
		i := slices.IndexFunc(as.cooling, func(x coolingCIDR) bool { return slices.ContainsFunc(r.allocatable[f], x.cidr.Overlaps) })
		if i < 0 {
			return netip.Prefix{}, false
		}
		as.endCooling(i)
	}
}

// endCooling ends the cooling of a CIDR.
func (as *Allocations) endCooling(i int) {
	as.ledgers[FamilyForPrefix(as.cooling[i].cidr)].RemoveFact(as.cooling[i].ledgerKey)
	as.cooling = slices.Delete(as.cooling, i, i+1)
}

// CountFree returns for how many more Nodes a range has room: the minimum over its families, at most math.MaxInt64.
// Cooling CIDRs count as far as they hold whole CIDRs of a Node. It costs O(free blocks).
func (as *Allocations) CountFree(r *Range) int64 {
	least := int64(math.MaxInt64)
	for _, f := range r.Families() {
		least = min(least, as.CountFreeInFamily(r, f))
	}
	return least
}

// CountFreeInFamily returns for how many more Nodes one family of a range has room. Cooling CIDRs that are smaller than
// a Node's CIDR count where nothing else takes any of a whole one.
func (as *Allocations) CountFreeInFamily(r *Range, f Family) (room int64) {
	pieces := map[netip.Prefix]bool{}
	for _, p := range r.allocatable[f] {
		room = addSaturating(room, as.ledgers[f].FreePrefixCount(p, r.nodePrefixLengths[f]).Int64())
		for _, x := range as.cooling {
			switch {
			case !x.cidr.Overlaps(p):
			case x.cidr.Bits() > r.nodePrefixLengths[f]:
				pieces[netip.PrefixFrom(x.cidr.Addr(), r.nodePrefixLengths[f]).Masked()] = true
			case as.isUnused(f, x):
				room = addSaturating(room, int64(1)<<min(r.nodePrefixLengths[f]-max(x.cidr.Bits(), p.Bits()), 62))
			}
		}
	}
	for whole := range pieces {
		if as.isOnlyCooling(f, whole) {
			room = addSaturating(room, 1)
		}
	}
	return room
}

// isUnused reports whether no Node has any of a cooling CIDR.
func (as *Allocations) isUnused(f Family, x coolingCIDR) bool {
	return len(as.ledgers[f].OverlappingFacts(netipx.RangeOfPrefix(x.cidr))) == 1
}

// isOnlyCooling reports whether nothing of a CIDR is taken but by cooling.
func (as *Allocations) isOnlyCooling(f Family, p netip.Prefix) bool {
	return !slices.ContainsFunc(as.ledgers[f].OverlappingFacts(netipx.RangeOfPrefix(p)), func(h *ledger.Fact) bool { return h.Source != ledger.SourceCooling })
}
