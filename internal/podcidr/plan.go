package podcidr

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Grant assigns CIDRs to a Node, one of each family of a range.
type Grant struct {
	Node     *Node
	RangeRef Ref
	CIDRs    []netip.Prefix
	// RangesTried is how many ranges were tried, the one that serves the Node included.
	RangesTried int
}

// Refusal is the reason why a Node gets nothing.
type Refusal struct {
	// FullRanges are the ranges that apply to the Node and have no room, first choice first; none means that no range
	// applies to it.
	FullRanges []Ref
	// AwaitsGrowth reports whether the Node waits until the last of FullRanges grows.
	AwaitsGrowth bool
}

// Decision is the result of planning for the Nodes that wait.
type Decision struct {
	Grants   []Grant
	Refusals map[types.UID]Refusal
	// fullRanges are the ranges in which a Node found no room: the next Node finds none either.
	fullRanges map[*Range]bool
}

// PlanGrants grants CIDRs to Nodes that wait, oldest first, to at most limit of them, and records the grants in b. A
// Node gets the CIDRs of the first range that applies to it and has room. Where a range that applies better can grow,
// the Node waits for that: otherwise it would have a CIDR of the wrong size for its whole life.
func PlanGrants(b *Allocations, ranges []*Range, waiting []*Node, limit int, now time.Time) Decision {
	d := Decision{Refusals: map[types.UID]Refusal{}, fullRanges: map[*Range]bool{}}
	open := slices.DeleteFunc(SortRanges(ranges), func(r *Range) bool { return r.Closing })
	b.TrackRanges(open...)
	nodes := slices.DeleteFunc(slices.Clone(waiting), func(n *Node) bool { return n.Deleting || len(n.CIDRs) > 0 })
	slices.SortFunc(nodes, func(a, b *Node) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name)) })
	for _, n := range nodes {
		if len(d.Grants) >= limit {
			break
		}
		d.planNode(b, RangesForNode(open, n), n, now)
	}
	return d
}

func (d *Decision) planNode(b *Allocations, choices []*Range, n *Node, now time.Time) {
	var refusal Refusal
	for _, r := range choices {
		if !d.fullRanges[r] {
			if cidrs, ok := b.AllocateForNode(r, n, now); ok {
				d.Grants = append(d.Grants, Grant{Node: n, RangeRef: r.Ref, CIDRs: cidrs, RangesTried: len(refusal.FullRanges) + 1})
				return
			}
			d.fullRanges[r] = true
		}
		refusal.FullRanges = append(refusal.FullRanges, r.Ref)
		if r.CanGrow && (r.elastic[IPv4] || r.elastic[IPv6]) {
			refusal.AwaitsGrowth = true
			break
		}
	}
	d.Refusals[n.UID] = refusal
}

func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
