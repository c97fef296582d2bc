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

// restFor is how long a CIDR that a Node had is passed over: routes to it may linger. It keeps no Node waiting.
const restFor = 10 * time.Minute

// Books remember which CIDRs of a cluster are taken, by whom: both families at once, so a Node gets all or nothing. A CIDR
// is free when it is proven that the Node's UID is gone, whatever its range has become meanwhile. They are not safe for
// concurrent use.
type Books struct {
	taken [2]*ledger.Ledger
	// rests are in the order in which they end.
	rests []rest
}

type rest struct {
	cidr  netip.Prefix
	key   ledger.Key
	until time.Time
}

// Clash says that a Node has some of what another one has.
type Clash struct {
	Node, Other string
	OtherUID    types.UID
	// CIDR is what the other one has.
	CIDR netip.Prefix
}

// NewBooks returns books in which nothing is taken but what is excluded, as the CIDRs of Services are.
func NewBooks(excluded []netip.Prefix) *Books {
	b := &Books{}
	for f := range b.taken {
		b.taken[f] = ledger.New(&netipx.IPSet{}, Family(f).bits())
	}
	for _, p := range excluded {
		b.state(p, ledger.Kept, types.UID(p.String()), p.String())
	}
	return b
}

// Watch keeps the free space of ranges at hand. What is taken of a range that is not watched finds nothing.
func (b *Books) Watch(ranges ...*Range) {
	for _, r := range ranges {
		for f, cidrs := range r.gives {
			for _, p := range cidrs {
				b.taken[f].Watch(p)
			}
		}
	}
}

func (b *Books) state(p netip.Prefix, source ledger.Source, uid types.UID, name string) {
	b.taken[FamilyOf(p)].Add(ledger.Fact{
		Key: ledger.Key{Source: source, UID: uid}, Owner: ledger.Owner{Name: name, UID: uid}, Range: netipx.RangeOfPrefix(p.Masked()),
	})
}

// Set notes what a Node has. Its podCIDRs never change once they are set, so a grant to it can land no more, and one
// without them withdraws nothing: it may be an old sighting. It returns who has some of that too, when it is news.
func (b *Books) Set(n *Node) (clashes []Clash) {
	if !slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return !b.knows(n.UID, p) }) {
		return nil
	}
	for _, l := range b.taken {
		l.Remove(ledger.Key{Source: ledger.Grant, UID: n.UID})
	}
	for _, p := range n.CIDRs {
		for _, h := range b.taken[FamilyOf(p)].Overlapping(netipx.RangeOfPrefix(p.Masked())) {
			if h.Source.Uses() && h.Owner.UID != n.UID {
				cidr, _ := h.Range.Prefix()
				clashes = append(clashes, Clash{Node: n.Name, Other: h.Owner.Name, OtherUID: h.Owner.UID, CIDR: cidr})
			}
		}
		b.state(p, ledger.Object, n.UID, n.Name)
	}
	return clashes
}

// knows reports whether a Node was seen with a CIDR.
func (b *Books) knows(uid types.UID, p netip.Prefix) bool {
	f, is := b.taken[FamilyOf(p)].Get(ledger.Key{Source: ledger.Object, UID: uid})
	return is && f.Range == netipx.RangeOfPrefix(p.Masked())
}

// Grant notes a grant that is on record, or is about to be.
func (b *Books) Grant(n *Node, cidrs []netip.Prefix) {
	for _, p := range cidrs {
		b.state(p, ledger.Grant, n.UID, n.Name)
	}
}

// Withdraw takes a grant back that is not on record. What its Node was seen with stays.
func (b *Books) Withdraw(uid types.UID) {
	for _, l := range b.taken {
		l.Remove(ledger.Key{Source: ledger.Grant, UID: uid})
	}
}

// Alone reports whether nobody but a UID has any of some CIDRs, nor is it excluded.
func (b *Books) Alone(uid types.UID, cidrs []netip.Prefix) bool {
	return !slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return b.taken[FamilyOf(p)].FindOverlapping(netipx.RangeOfPrefix(p.Masked()), func(f *ledger.Fact) bool {
			return f.Source != ledger.Cooling && f.Owner.UID != uid
		}) != nil
	})
}

// OthersHave reports whether another Node than that of a UID was seen with some of CIDRs.
func (b *Books) OthersHave(uid types.UID, cidrs []netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool {
		return b.taken[FamilyOf(p)].FindOverlapping(netipx.RangeOfPrefix(p.Masked()), func(f *ledger.Fact) bool {
			return f.Source == ledger.Object && f.Owner.UID != uid
		}) != nil
	})
}

// InUse is how many Nodes have some of a CIDR, or are granted some.
func (b *Books) InUse(p netip.Prefix) (n int64) {
	for _, f := range b.taken[FamilyOf(p)].Overlapping(netipx.RangeOfPrefix(p.Masked())) {
		if f.Source == ledger.Object || f.Source == ledger.Grant {
			n++
		}
	}
	return n
}

// Excluded reports whether some of a CIDR is not for Nodes, and what of it.
func (b *Books) Excluded(p netip.Prefix) (netip.Prefix, bool) {
	for _, f := range b.taken[FamilyOf(p)].Overlapping(netipx.RangeOfPrefix(p.Masked())) {
		if cidr, is := f.Range.Prefix(); is && f.Source == ledger.Kept {
			return cidr, true
		}
	}
	return netip.Prefix{}, false
}

// Drop notes the proof that a Node's UID is gone. What it had rests for a while.
func (b *Books) Drop(uid types.UID, now time.Time) {
	for _, l := range b.taken {
		for _, source := range []ledger.Source{ledger.Object, ledger.Grant} {
			fact, was := l.Remove(ledger.Key{Source: source, UID: uid})
			p, is := fact.Range.Prefix()
			if !was || !is {
				continue
			}
			key := ledger.Key{Source: ledger.Cooling, UID: uid}
			l.Add(ledger.Fact{Key: key, Range: fact.Range})
			b.rests = append(b.rests, rest{cidr: p, key: key, until: now.Add(restFor)})
		}
	}
}

// Take takes a CIDR of each family of a range for a Node, as a grant, or nothing: in the first of its CIDRs that has room,
// from the smallest free block that holds one. What rests is taken only where nothing else is left, what rests for the
// longest time first. It costs O(log n) in Nodes.
func (b *Books) Take(r *Range, n *Node, now time.Time) ([]netip.Prefix, bool) {
	for len(b.rests) > 0 && !b.rests[0].until.After(now) {
		b.wake(0)
	}
	var out []netip.Prefix
	for _, f := range r.Families() {
		p, ok := b.first(r, f)
		if !ok {
			return nil, false
		}
		out = append(out, p)
	}
	b.Grant(n, out)
	return out, true
}

// first finds what Take takes of a family.
func (b *Books) first(r *Range, f Family) (netip.Prefix, bool) {
	for {
		for _, p := range r.gives[f] {
			if found, ok := b.taken[f].FirstIn(p, r.lengths[f]); ok {
				return found, true
			}
		}
		i := slices.IndexFunc(b.rests, func(x rest) bool { return slices.ContainsFunc(r.gives[f], x.cidr.Overlaps) })
		if i < 0 {
			return netip.Prefix{}, false
		}
		b.wake(i)
	}
}

// wake ends a rest.
func (b *Books) wake(i int) {
	b.taken[FamilyOf(b.rests[i].cidr)].Remove(b.rests[i].key)
	b.rests = slices.Delete(b.rests, i, i+1)
}

// Room is for how many Nodes there is room in a range: the least of its families, at most math.MaxInt64. What rests counts
// as far as it holds whole CIDRs of a Node. It costs as much as there are free blocks.
func (b *Books) Room(r *Range) int64 {
	least := int64(math.MaxInt64)
	for _, f := range r.Families() {
		least = min(least, b.RoomOf(r, f))
	}
	return least
}

// RoomOf is the room of one family of a range. What rests in pieces smaller than a Node's CIDR counts where nothing else is
// in the way of a whole one.
func (b *Books) RoomOf(r *Range, f Family) (room int64) {
	pieces := map[netip.Prefix]bool{}
	for _, p := range r.gives[f] {
		room = plus(room, b.taken[f].FreeIn(p, r.lengths[f]).Int64())
		for _, x := range b.rests {
			switch {
			case !x.cidr.Overlaps(p):
			case x.cidr.Bits() > r.lengths[f]:
				pieces[netip.PrefixFrom(x.cidr.Addr(), r.lengths[f]).Masked()] = true
			case b.rested(f, x):
				room = plus(room, int64(1)<<min(r.lengths[f]-max(x.cidr.Bits(), p.Bits()), 62))
			}
		}
	}
	for whole := range pieces {
		if b.onlyRests(f, whole) {
			room = plus(room, 1)
		}
	}
	return room
}

// rested reports whether nobody has what rests.
func (b *Books) rested(f Family, x rest) bool {
	return len(b.taken[f].Overlapping(netipx.RangeOfPrefix(x.cidr))) == 1
}

// onlyRests reports whether what is taken of a CIDR rests.
func (b *Books) onlyRests(f Family, p netip.Prefix) bool {
	return !slices.ContainsFunc(b.taken[f].Overlapping(netipx.RangeOfPrefix(p)), func(h *ledger.Fact) bool { return h.Source != ledger.Cooling })
}
