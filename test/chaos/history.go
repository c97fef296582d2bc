package main

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
)

// history is what users did and saw. Each address is a register for porcupine: an owner acquires it between the moment
// it asks and the moment the address is seen, and releases it between the moment it lets go and the moment it is gone.
// What is seen is seen late, never early: an interval holds the moment at which it happened.
type history struct {
	start time.Time

	mu      sync.Mutex
	tenures map[types.UID]*tenure
	// changed are owners whose addresses changed (I4).
	changed []string
}

// tenure is the life of a claim or of an allocation. Times are since the start; zero: not yet.
type tenure struct {
	kind, name              string
	pool                    string
	has                     netipx.IPRange
	asked, seen, left, gone time.Duration
	// served and ended are closed when it is seen and when it is gone.
	served, ended chan struct{}
}

func newHistory() *history { return &history{start: time.Now(), tenures: map[types.UID]*tenure{}} }

func (h *history) now() time.Duration { return max(1, time.Since(h.start)) }

// of is the tenure of an owner, which is told of by its user and by watches, in any order. The caller holds mu.
func (h *history) of(owner types.UID) *tenure {
	t := h.tenures[owner]
	if t == nil {
		t = &tenure{served: make(chan struct{}), ended: make(chan struct{})}
		h.tenures[owner] = t
	}
	return t
}

// asks notes that an owner was created by a call that began at a moment.
func (h *history) asks(owner types.UID, kind, name string, at time.Duration) *tenure {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.of(owner)
	t.kind, t.name, t.asked = kind, name, at
	return t
}

// sees notes what an owner has. What appears when its owner is gone is void: nobody can use it.
func (h *history) sees(owner types.UID, pool string, has netipx.IPRange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.of(owner)
	switch {
	case t.gone > 0:
	case t.seen == 0:
		t.pool, t.has, t.seen = pool, has, h.now()
		close(t.served)
	case t.has != has:
		h.changed = append(h.changed, fmt.Sprintf("%s %s had %v and has %v", t.kind, t.name, t.has, has))
	}
}

// leaves notes that somebody begins to delete an owner.
func (h *history) leaves(t *tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.left == 0 {
		t.left = h.now()
	}
}

// ends notes that an owner is gone.
func (h *history) ends(owner types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.of(owner); t.gone == 0 {
		t.gone = h.now()
		close(t.ended)
	}
}

// living are the owners that have been seen with addresses and that nobody has begun to delete.
func (h *history) living() (out []*tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tenures {
		if t.seen > 0 && t.left == 0 {
			out = append(out, t)
		}
	}
	return out
}

// step is an operation on one address.
type step struct {
	pool     string
	address  netip.Addr
	owner    types.UID
	releases bool
}

// register is an address: its state is the owner, or empty.
var register = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		type key struct {
			pool    string
			address netip.Addr
		}
		parts := map[key][]porcupine.Operation{}
		for _, o := range all {
			s := o.Input.(step) //nolint:forcetypeassert // there are no others
			parts[key{s.pool, s.address}] = append(parts[key{s.pool, s.address}], o)
		}
		out := make([][]porcupine.Operation, 0, len(parts))
		for _, part := range parts {
			out = append(out, part)
		}
		return out
	},
	Init: func() any { return types.UID("") },
	Step: func(state, input, _ any) (bool, any) {
		s := input.(step) //nolint:forcetypeassert // there are no others
		if s.releases {
			return state == s.owner, types.UID("")
		}
		return state == types.UID(""), s.owner
	},
	DescribeOperation: func(input, _ any) string {
		s := input.(step) //nolint:forcetypeassert // there are no others
		if s.releases {
			return fmt.Sprintf("%s releases %s", s.owner, s.address)
		}
		return fmt.Sprintf("%s acquires %s", s.owner, s.address)
	},
}

// operations are what porcupine looks at. What nobody saw the end of may end at any time.
func (h *history) operations() (out []porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.now()
	client := 0
	for owner, t := range h.tenures {
		if t.seen == 0 {
			continue
		}
		for a := t.has.From(); t.has.Contains(a); a = a.Next() {
			client++
			s := step{pool: t.pool, address: a, owner: owner}
			out = append(out, porcupine.Operation{ClientId: client, Input: s, Call: int64(t.asked), Return: int64(t.seen)})
			if t.left == 0 {
				continue
			}
			s.releases = true
			gone := t.gone
			if gone == 0 {
				gone = end
			}
			out = append(out, porcupine.Operation{ClientId: client, Input: s, Call: int64(t.left), Return: int64(gone)})
		}
	}
	return out
}
