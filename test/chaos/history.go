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

// history records what users did and observed. For porcupine each address is a register: an owner acquires it between
// the request and the moment the address is seen, and releases it between the deletion and the moment the owner is
// gone. Events are observed late, never early, so each interval contains the moment of the event.
type history struct {
	startedAt time.Time

	mu      sync.Mutex
	tenures map[types.UID]*tenure
	// addressChanges lists the owners whose addresses changed, which violates I4.
	addressChanges []string
}

// tenure is the life of a claim or of an allocation. Times count from the start of the history; zero means that the
// event has not happened yet.
type tenure struct {
	kind, name                             string
	pool                                   string
	addresses                              netipx.IPRange
	requestedAt, seenAt, deletedAt, goneAt time.Duration
	// servedCh is closed when the addresses are seen, goneCh when the owner is gone.
	servedCh, goneCh chan struct{}
}

func newHistory() *history { return &history{startedAt: time.Now(), tenures: map[types.UID]*tenure{}} }

func (h *history) elapsed() time.Duration { return max(1, time.Since(h.startedAt)) }

// tenureFor returns the tenure of an owner. Its user and the watches report events of it in any order. The caller
// holds mu.
func (h *history) tenureFor(owner types.UID) *tenure {
	t := h.tenures[owner]
	if t == nil {
		t = &tenure{servedCh: make(chan struct{}), goneCh: make(chan struct{})}
		h.tenures[owner] = t
	}
	return t
}

// recordRequest records the creation of an owner, by a call that began at the given time.
func (h *history) recordRequest(owner types.UID, kind, name string, at time.Duration) *tenure {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tenureFor(owner)
	t.kind, t.name, t.requestedAt = kind, name, at
	return t
}

// recordAddresses records the addresses of an owner. Addresses that appear after the owner is gone are void: no claim
// can use them.
func (h *history) recordAddresses(owner types.UID, pool string, addresses netipx.IPRange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tenureFor(owner)
	switch {
	case t.goneAt > 0:
	case t.seenAt == 0:
		t.pool, t.addresses, t.seenAt = pool, addresses, h.elapsed()
		close(t.servedCh)
	case t.addresses != addresses:
		h.addressChanges = append(h.addressChanges, fmt.Sprintf("%s %s had %v and has %v", t.kind, t.name, t.addresses, addresses))
	}
}

// recordDeletion records the start of the deletion of an owner.
func (h *history) recordDeletion(t *tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.deletedAt == 0 {
		t.deletedAt = h.elapsed()
	}
}

// recordGone records that an owner is gone.
func (h *history) recordGone(owner types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tenureFor(owner); t.goneAt == 0 {
		t.goneAt = h.elapsed()
		close(t.goneCh)
	}
}

// activeTenures returns the tenures that were seen with addresses and whose deletion has not begun.
func (h *history) activeTenures() (out []*tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tenures {
		if t.seenAt > 0 && t.deletedAt == 0 {
			out = append(out, t)
		}
	}
	return out
}

// registerStep is an operation on one address.
type registerStep struct {
	pool      string
	address   netip.Addr
	owner     types.UID
	isRelease bool
}

// addressModel models an address: its state is the owner, or empty.
var addressModel = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		type key struct {
			pool    string
			address netip.Addr
		}
		parts := map[key][]porcupine.Operation{}
		for _, o := range all {
			s := o.Input.(registerStep) //nolint:forcetypeassert // there are no others
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
		s := input.(registerStep) //nolint:forcetypeassert // there are no others
		if s.isRelease {
			return state == s.owner, types.UID("")
		}
		return state == types.UID(""), s.owner
	},
	DescribeOperation: func(input, _ any) string {
		s := input.(registerStep) //nolint:forcetypeassert // there are no others
		if s.isRelease {
			return fmt.Sprintf("%s releases %s", s.owner, s.address)
		}
		return fmt.Sprintf("%s acquires %s", s.owner, s.address)
	},
}

// toOperations returns the operations for porcupine. An operation whose end was not observed may end at any time.
func (h *history) toOperations() (out []porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.elapsed()
	client := 0
	for owner, t := range h.tenures {
		if t.seenAt == 0 {
			continue
		}
		for a := t.addresses.From(); t.addresses.Contains(a); a = a.Next() {
			client++
			s := registerStep{pool: t.pool, address: a, owner: owner}
			out = append(out, porcupine.Operation{ClientId: client, Input: s, Call: int64(t.requestedAt), Return: int64(t.seenAt)})
			if t.deletedAt == 0 {
				continue
			}
			s.isRelease = true
			gone := t.goneAt
			if gone == 0 {
				gone = end
			}
			out = append(out, porcupine.Operation{ClientId: client, Input: s, Call: int64(t.deletedAt), Return: int64(gone)})
		}
	}
	return out
}
