package tenancy

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// story is a Cluster, its pools, and an allocator that serves a block where there is room for it.
type story struct {
	pools  []Pool
	room   []int64 // what is really free in a row; the status says it when told
	at     *Standing
	tried  []Attempt
	writes int
}

func (s *story) served() bool { return s.at != nil && s.at.Phase == v1alpha1.AllocationAllocated }

// tell brings every status up to date.
func (s *story) tell() {
	for i := range s.pools {
		s.pools[i].LargestFreeBlock = s.room[i]
	}
}

// allocate is the allocator's turn, with the phases that it writes.
func (s *story) allocate() {
	if s.at == nil || s.at.Deleting || s.served() {
		return
	}
	for i, p := range s.pools {
		if p.Ref != s.at.Pool || p.State != Open {
			continue
		}
		s.at.Phase, s.at.Reason = v1alpha1.AllocationFailed, full
		if s.room[i] >= int64(s.at.Count) {
			s.at.Phase, s.at.Reason = v1alpha1.AllocationAllocated, v1alpha1.ReadyReason
		}
	}
}

// act is the controller's turn. What it knows beside the objects is gone each time, as after a restart.
func (s *story) act() Decision {
	d := Next(Situation{Count: 8, Pools: s.pools, Standing: s.at, Tried: ParseTried(FormatTried(s.tried))})
	if FormatTried(d.Tried) != FormatTried(s.tried) {
		s.tried = d.Tried
		s.writes++
	}
	switch d.Action {
	case Try:
		s.at = &Standing{Pool: d.Pool, Count: 8, Phase: v1alpha1.AllocationPending}
		s.writes++
	case Replace:
		s.at = nil
		s.writes++
	case Done, Wait, Exhausted:
	}
	return d
}

// settle lets everybody do what they do until nobody does anything, and tells the last decision.
func (s *story) settle(t *rapid.T) (last Decision) {
	for range 10 * (len(s.pools) + 1) {
		before := s.writes
		s.allocate()
		s.tell()
		if last = s.act(); s.writes == before {
			return last
		}
	}
	t.Fatalf("it never comes to rest: %+v, standing %+v", s.pools, s.at)
	return last
}

// Whatever happens to the pools, the Cluster is served as soon as one that is open has room and none settles,
// every pool is asked before it is said that none has, and nothing is written at rest.
func TestFailoverEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &story{}
		n := rapid.IntRange(1, 4).Draw(t, "pools")
		for i := range n {
			s.pools = append(s.pools, Pool{Ref: pooln(string(rune('a' + i))), State: Open})
			s.room = append(s.room, rapid.Int64Range(0, 7).Draw(t, "room"))
		}
		pick := func() int { return rapid.IntRange(0, n-1).Draw(t, "pool") }
		for !s.served() {
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				s.act()
			case 1:
				s.allocate()
			case 2:
				s.tell()
			case 3:
				s.pools[pick()].State = PoolState(rapid.IntRange(int(Missing), int(Open)).Draw(t, "state"))
			case 4: // A status that is wrong: others came in between.
				s.pools[pick()].LargestFreeBlock = rapid.Int64Range(0, 16).Draw(t, "reported")
			case 5:
				checkRest(t, s)
			case 6:
				checkRest(t, s)
				i := pick()
				s.pools[i].State, s.room[i] = Open, 8
				for j := range s.pools { // Settling ends by itself, one way or the other.
					if s.pools[j].State == Settling {
						s.pools[j].State = rapid.SampledFrom([]PoolState{Closed, Open}).Draw(t, "settled")
					}
				}
				if s.settle(t); !s.served() {
					t.Fatalf("pool %s has room, and nobody is served: %+v", s.pools[i].Ref.Name, s)
				}
			}
		}
		if d := s.act(); d.Action != Done || len(d.Tried) > 0 {
			t.Fatalf("served, and yet %+v", d)
		}
	})
}

func checkRest(t *rapid.T, s *story) {
	last := s.settle(t)
	if last.Action != Exhausted {
		return
	}
	for _, p := range s.pools {
		asked := false
		for _, a := range s.tried {
			asked = asked || a.Pool == p.Ref
		}
		if p.State == Open && !asked {
			t.Fatalf("pool %s was never asked", p.Ref.Name)
		}
	}
}
