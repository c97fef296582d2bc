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

// slow is what Books are, as a list. It looks at every CIDR that could be given, one after the other.
type slow struct {
	has, grants map[types.UID][]netip.Prefix
	rests       []netip.Prefix
}

func (s *slow) taken(p netip.Prefix, rests bool) bool {
	for _, m := range []map[types.UID][]netip.Prefix{s.has, s.grants} {
		for _, all := range m {
			if slices.ContainsFunc(all, func(q netip.Prefix) bool { return q.Masked().Overlaps(p) }) {
				return true
			}
		}
	}
	return rests && slices.ContainsFunc(s.rests, p.Overlaps)
}

// room reports whether a range has room, with what rests.
func (s *slow) room(r *Range) bool {
	for _, f := range r.Families() {
		free := slices.ContainsFunc(r.cidrs[f], func(p netip.Prefix) bool {
			return slices.ContainsFunc(cutInto(p, r.lengths[f]), func(q netip.Prefix) bool { return !s.taken(q, false) })
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

// What is given is free, of the right size, in an open range, of every family or of none, and given whenever it is there:
// at the ends of both families too, from ranges that nest, beside what others gave.
func TestBooksAgainstAList(t *testing.T) {
	worlds := map[string][]*Range{
		"Nested": {
			aRange(t, "all", cut(4, "10.0.0.0/24")), aRange(t, "half", cut(5, "10.0.0.128/25")), aRange(t, "small", cut(4, "10.0.0.192/27")),
			aRange(t, "dual", cut(4, "10.0.0.64/26", "fd00::/122")),
		},
		"First": {aRange(t, "v4", cut(4, "0.0.0.0/25")), aRange(t, "dual", cut(4, "0.0.0.0/26", "::/123"))},
		"Last": {
			aRange(t, "v4", cut(4, "255.255.255.0/24")), aRange(t, "v6", cut(4, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff80/121")),
			aRange(t, "dual", cut(5, "255.255.255.128/25", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff80/121")),
		},
	}
	for name, ranges := range worlds {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				against(t, rand.New(rand.NewPCG(seed, 7)), ranges)
			}
		})
	}
}

func against(t *testing.T, rnd *rand.Rand, ranges []*Range) {
	t.Helper()
	b, s := NewBooks(nil), &slow{has: map[types.UID][]netip.Prefix{}, grants: map[types.UID][]netip.Prefix{}}
	for range 200 {
		r := ranges[rnd.IntN(len(ranges))]
		b.Watch(r)
		n := aNode(fmt.Sprint(rnd.IntN(40)))
		switch known := s.has[n.UID] != nil || s.grants[n.UID] != nil; rnd.IntN(4) {
		case 0: // a Node is gone
			for _, p := range slices.Concat(s.has[n.UID], s.grants[n.UID]) {
				s.rests = append(s.rests, p.Masked())
			}
			b.Drop(n.UID, noon)
			delete(s.has, n.UID)
			delete(s.grants, n.UID)
		case 1: // somebody gives it some CIDR
			if s.has[n.UID] != nil {
				continue
			}
			for _, f := range r.Families() {
				p := r.cidrs[f][0]
				all := cutInto(p, min(p.Bits()+rnd.IntN(p.Addr().BitLen()-p.Bits()), p.Addr().BitLen()))
				n.CIDRs = append(n.CIDRs, all[rnd.IntN(len(all))])
			}
			b.Set(n)
			s.has[n.UID] = n.CIDRs
			delete(s.grants, n.UID)
		default:
			if known {
				continue
			}
			room := s.room(r)
			got, ok := b.Take(r, n, noon.Add(time.Second))
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

func (s *slow) check(t *testing.T, r *Range, got []netip.Prefix) {
	t.Helper()
	for i, p := range got {
		f := r.Families()[i]
		if p.Bits() != r.lengths[f] || s.taken(p, false) || !slices.ContainsFunc(r.cidrs[f], func(q netip.Prefix) bool { return q.Overlaps(p) && q.Bits() <= p.Bits() }) {
			t.Fatalf("%s: %v is wrong, or somebody's", r.Name, p)
		}
	}
	if len(got) > 0 && len(got) != len(r.Families()) {
		t.Fatalf("%s: %v of %d families", r.Name, got, len(r.Families()))
	}
}
