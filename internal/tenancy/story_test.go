package tenancy

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// story is a Cluster, its pools, and an allocator that serves a block if there is room for it.
type story struct {
	pools  []Pool
	room   []int64 // the actual contiguous free space; the status shows it after updateStatuses
	at     *CurrentAllocation
	tried  []PoolAttempt
	writes int
}

func (s *story) served() bool { return s.at != nil && s.at.Phase == v1alpha1.AllocationAllocated }

// updateStatuses brings the status of every pool up to date.
func (s *story) updateStatuses() {
	for i := range s.pools {
		s.pools[i].LargestFreeBlock = s.room[i]
	}
}

// allocate runs the allocator once, with the phases that it writes.
func (s *story) allocate() {
	if s.at == nil || s.at.Deleting || s.served() {
		return
	}
	for i, p := range s.pools {
		if p.Ref != s.at.Pool || p.Availability != PoolOpen {
			continue
		}
		s.at.Phase, s.at.Reason = v1alpha1.AllocationFailed, full
		if s.room[i] >= int64(s.at.Count) {
			s.at.Phase, s.at.Reason = v1alpha1.AllocationAllocated, v1alpha1.ReadyReason
		}
	}
}

// act runs the controller once. It keeps no state beside the objects, as after a restart.
func (s *story) act() Decision {
	d := DecideInitialBlock(AllocationRequest{Count: 8, Pools: s.pools, Current: s.at, Attempts: ParseAttempts(FormatAttempts(s.tried))})
	if FormatAttempts(d.Attempts) != FormatAttempts(s.tried) {
		s.tried = d.Attempts
		s.writes++
	}
	switch d.Action {
	case ActionCreate:
		s.at = &CurrentAllocation{Pool: d.Pool, Count: 8, Phase: v1alpha1.AllocationPending}
		s.writes++
	case ActionReplace:
		s.at = nil
		s.writes++
	case ActionDone, ActionWait, ActionExhausted:
	}
	return d
}

// settle runs the allocator and the controller until neither writes anything, and returns the last decision.
func (s *story) settle(t *rapid.T) (last Decision) {
	for range 10 * (len(s.pools) + 1) {
		before := s.writes
		s.allocate()
		s.updateStatuses()
		if last = s.act(); s.writes == before {
			return last
		}
	}
	t.Fatalf("it never comes to rest: %+v, standing %+v", s.pools, s.at)
	return last
}

// TestFailoverEnds checks that, whatever happens to the pools, the Cluster is served as soon as an open pool has room
// and none settles, that every pool is asked before the Cluster reports that none has room, and that nothing is
// written at rest.
func TestFailoverEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &story{}
		n := rapid.IntRange(1, 4).Draw(t, "pools")
		for i := range n {
			s.pools = append(s.pools, Pool{Ref: newPoolRef(string(rune('a' + i))), Availability: PoolOpen})
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
				s.updateStatuses()
			case 3:
				s.pools[pick()].Availability = PoolAvailability(rapid.IntRange(int(PoolMissing), int(PoolOpen)).Draw(t, "state"))
			case 4: // A wrong status: other requests came in between.
				s.pools[pick()].LargestFreeBlock = rapid.Int64Range(0, 16).Draw(t, "reported")
			case 5:
				checkRest(t, s)
			case 6:
				checkRest(t, s)
				i := pick()
				s.pools[i].Availability, s.room[i] = PoolOpen, 8
				for j := range s.pools { // Settling ends by itself, one way or the other.
					if s.pools[j].Availability == PoolSettling {
						s.pools[j].Availability = rapid.SampledFrom([]PoolAvailability{PoolClosed, PoolOpen}).Draw(t, "settled")
					}
				}
				if s.settle(t); !s.served() {
					t.Fatalf("pool %s has room, and no Cluster is served: %+v", s.pools[i].Ref.Name, s)
				}
			}
		}
		if d := s.act(); d.Action != ActionDone || len(d.Attempts) > 0 {
			t.Fatalf("served, and yet %+v", d)
		}
	})
}

func checkRest(t *rapid.T, s *story) {
	last := s.settle(t)
	if last.Action != ActionExhausted {
		return
	}
	for _, p := range s.pools {
		asked := false
		for _, a := range s.tried {
			asked = asked || a.Pool == p.Ref
		}
		if p.Availability == PoolOpen && !asked {
			t.Fatalf("pool %s was never asked", p.Ref.Name)
		}
	}
}
