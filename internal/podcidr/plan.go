package podcidr

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Grant gives a Node its CIDRs, one of each family of a range.
type Grant struct {
	Node  *Node
	From  Ref
	CIDRs []netip.Prefix
	// Tries is how many ranges were looked at.
	Tries int
}

// Refusal is why a Node gets nothing.
type Refusal struct {
	// Full are the ranges that apply to it and have no room, first choice first; none: no range applies to it.
	Full []Ref
	// Growing: the first of them that can grow is to.
	Growing bool
}

// Decision is what became of the Nodes that wait.
type Decision struct {
	Grants  []Grant
	Refused map[types.UID]Refusal
	// full are the ranges in which one Node found no room: the next one finds none either.
	full map[*Range]bool
}

// Plan gives CIDRs to Nodes that wait, oldest first, at most limit of them, and takes these in the books. A Node gets them
// of the first range that applies to it and has room. Where one that applies better can grow, it waits for that: else it
// would have a CIDR of the wrong size for its whole life.
func Plan(b *Books, ranges []*Range, waiting []*Node, limit int, now time.Time) Decision {
	d := Decision{Refused: map[types.UID]Refusal{}, full: map[*Range]bool{}}
	open := slices.DeleteFunc(Sorted(ranges), func(r *Range) bool { return r.Closing })
	b.Watch(open...)
	nodes := slices.DeleteFunc(slices.Clone(waiting), func(n *Node) bool { return n.Deleting || len(n.CIDRs) > 0 })
	slices.SortFunc(nodes, func(a, b *Node) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	for _, n := range nodes {
		if len(d.Grants) >= limit {
			break
		}
		d.decide(b, Order(open, n), n, now)
	}
	return d
}

func (d *Decision) decide(b *Books, choices []*Range, n *Node, now time.Time) {
	var no Refusal
	for _, r := range choices {
		if !d.full[r] {
			if cidrs, ok := b.Take(r, n, now); ok {
				d.Grants = append(d.Grants, Grant{Node: n, From: r.Ref, CIDRs: cidrs, Tries: len(no.Full) + 1})
				return
			}
			d.full[r] = true
		}
		no.Full = append(no.Full, r.Ref)
		if r.Grows && (r.elastic[IPv4] || r.elastic[IPv6]) {
			no.Growing = true
			break
		}
	}
	d.Refused[n.UID] = no
}

func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
