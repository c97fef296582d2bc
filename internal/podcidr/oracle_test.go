package podcidr

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// slowAllocations is Allocations as plain lists. It tries every CIDR that could be granted, one after the other.
type slowAllocations struct {
	has, grants map[types.UID][]netip.Prefix
	rests       []netip.Prefix
}

func (s *slowAllocations) taken(p netip.Prefix, rests bool) bool {
	for _, m := range []map[types.UID][]netip.Prefix{s.has, s.grants} {
		for _, all := range m {
			if slices.ContainsFunc(all, func(q netip.Prefix) bool { return q.Masked().Overlaps(p) }) {
				return true
			}
		}
	}
	return rests && slices.ContainsFunc(s.rests, p.Overlaps)
}

// room reports whether a range has room, cooling CIDRs included.
func (s *slowAllocations) room(r *Range) bool {
	for _, f := range r.Families() {
		free := slices.ContainsFunc(r.cidrs[f], func(p netip.Prefix) bool {
			return slices.ContainsFunc(cutInto(p, r.nodePrefixLengths[f]), func(q netip.Prefix) bool { return !s.taken(q, false) })
		})
		if !free {
			return false
		}
	}
	return true
}

func cutInto(p netip.Prefix, bits int) (out []netip.Prefix) {
	for a := p.Addr(); a.IsValid() && p.Contains(a); {
		q := netip.PrefixFrom(a, bits)
		out = append(out, q)
		next := a
		for range 1 << (p.Addr().BitLen() - bits) {
			if next = next.Next(); !next.IsValid() {
				break
			}
		}
		a = next
	}
	return out
}

// TestAllocationsAgainstList checks that a granted CIDR is free, of the right size, in an open range, of every family
// or of none, and that it is granted whenever there is one: at the ends of both families too, from nested ranges, and
// beside CIDRs that others set.
func TestAllocationsAgainstList(t *testing.T) {
	worlds := map[string][]*Range{
		"Nested": {
			newTestRange(t, "all", withCIDRs(4, "10.0.0.0/24")), newTestRange(t, "half", withCIDRs(5, "10.0.0.128/25")), newTestRange(t, "small", withCIDRs(4, "10.0.0.192/27")),
			newTestRange(t, "dual", withCIDRs(4, "10.0.0.64/26", "fd00::/122")),
		},
		"First": {newTestRange(t, "v4", withCIDRs(4, "0.0.0.0/25")), newTestRange(t, "dual", withCIDRs(4, "0.0.0.0/26", "::/123"))},
		"Last": {
			newTestRange(t, "v4", withCIDRs(4, "255.255.255.0/24")), newTestRange(t, "v6", withCIDRs(4, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff80/121")),
			newTestRange(t, "dual", withCIDRs(5, "255.255.255.128/25", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff80/121")),
		},
	}
	for name, ranges := range worlds {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				compareWithSlow(t, rand.New(rand.NewPCG(seed, 7)), ranges)
			}
		})
	}
}

func compareWithSlow(t *testing.T, rnd *rand.Rand, ranges []*Range) {
	t.Helper()
	b, s := NewAllocations(nil), &slowAllocations{has: map[types.UID][]netip.Prefix{}, grants: map[types.UID][]netip.Prefix{}}
	for range 200 {
		r := ranges[rnd.IntN(len(ranges))]
		b.TrackRanges(r)
		n := newTestNode(fmt.Sprint(rnd.IntN(40)))
		switch known := s.has[n.UID] != nil || s.grants[n.UID] != nil; rnd.IntN(4) {
		case 0: // a Node is gone
			for _, p := range slices.Concat(s.has[n.UID], s.grants[n.UID]) {
				s.rests = append(s.rests, p.Masked())
			}
			b.ReleaseNode(n.UID, noon)
			delete(s.has, n.UID)
			delete(s.grants, n.UID)
		case 1: // another writer sets some CIDR
			if s.has[n.UID] != nil {
				continue
			}
			for _, f := range r.Families() {
				p := r.cidrs[f][0]
				all := cutInto(p, min(p.Bits()+rnd.IntN(p.Addr().BitLen()-p.Bits()), p.Addr().BitLen()))
				n.CIDRs = append(n.CIDRs, all[rnd.IntN(len(all))])
			}
			b.RecordNode(n)
			s.has[n.UID] = n.CIDRs
			delete(s.grants, n.UID)
		default:
			if known {
				continue
			}
			room := s.room(r)
			got, ok := b.AllocateForNode(r, n, noon.Add(time.Second))
			if ok != room {
				t.Fatalf("%s: given %v, there is room: %v", r.Name, got, room)
			}
			s.check(t, r, got)
			if ok {
				s.grants[n.UID] = got
				s.rests = slices.DeleteFunc(s.rests, func(p netip.Prefix) bool { return slices.ContainsFunc(got, p.Overlaps) })
			}
		}
	}
}

func (s *slowAllocations) check(t *testing.T, r *Range, got []netip.Prefix) {
	t.Helper()
	for i, p := range got {
		f := r.Families()[i]
		if p.Bits() != r.nodePrefixLengths[f] || s.taken(p, false) || !slices.ContainsFunc(r.cidrs[f], func(q netip.Prefix) bool { return q.Overlaps(p) && q.Bits() <= p.Bits() }) {
			t.Fatalf("%s: %v is wrong, or in use", r.Name, p)
		}
	}
	if len(got) > 0 && len(got) != len(r.Families()) {
		t.Fatalf("%s: %v of %d families", r.Name, got, len(r.Families()))
	}
}
