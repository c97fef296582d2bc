package grants

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// clusterctl deletes an object that it has moved, and takes all finalizers off it in the next request. Where it was ended
// between the two the object is being deleted for ever, as our finalizers are on it, and no move goes on: what is being
// deleted cannot be written over what it was copied to. So they come off here, once what the object had is held on record.

// leftover is what is known of the end of a move of one object: when our finalizers are to come off next, and how often that
// has failed.
type leftover struct {
	due      time.Time
	failures int
}

// EndsOfMoves are those of which the finalizers are to come off now, and how long until there are others.
type EndsOfMoves struct {
	Claimants []types.UID
	Attached  []*Attached
	Wait      time.Duration
}

// EndsOfMoves returns what clusterctl has left behind of a move, at most so many. Each is due once in a while: it is tried
// again.
func (m *Memory) EndsOfMoves(now time.Time, room int) (out EndsOfMoves) {
	if len(m.moving)+len(m.movingAttached) == 0 {
		clear(m.leftToUs)
		return out
	}
	held := m.heldOnRecord()
	due := func(uid types.UID) bool {
		left := m.leftToUs[uid]
		if left == nil {
			left = &leftover{due: now.Add(ending.Patience)}
			m.leftToUs[uid] = left
		}
		is := !left.due.After(now)
		switch {
		case is && room <= 0:
			return false // a job that ends wakes the pool
		case is:
			room--
			left.due = term.Later(now, ending.Patience)
		}
		out.Wait = Sooner(out.Wait, left.due.Sub(now))
		return is
	}
	for uid, c := range m.moving {
		if c.isEndOfMove(held) && c.MayBeTried(now) && due(uid) {
			out.Claimants = append(out.Claimants, uid)
		}
	}
	for uid, a := range m.movingAttached {
		if a.Protected && (!a.IP.IsValid() || held.holds(m.Ledger.Unit(a.IP))) && due(uid) {
			out.Attached = append(out.Attached, a)
		}
	}
	for uid := range m.leftToUs {
		if m.moving[uid] == nil && m.movingAttached[uid] == nil {
			delete(m.leftToUs, uid)
		}
	}
	return out
}

// NoteEndOfMove notes how it went to take our finalizer off an IPAddress that clusterctl has moved. It returns when that is
// tried again, if it failed; zero: it did not.
func (m *Memory) NoteEndOfMove(uid types.UID, err error, now time.Time) (again time.Time) {
	left := m.leftToUs[uid]
	switch {
	case left == nil:
	case err == nil:
		left.failures = 0
	default:
		left.due = term.Later(now, max(ending.Patience, term.NextTry(now, left.failures, 0, err).Sub(now)))
		left.failures++
		return left.due
	}
	return again
}

// IsEndOfMove reports whether our finalizers may come off a claimant that clusterctl has moved.
func (m *Memory) IsEndOfMove(c *Claimant) bool { return c.Moved && c.isEndOfMove(m.heldOnRecord()) }

func (c *Claimant) isEndOfMove(held kept) bool {
	return c.Moved && len(c.withoutOurs()) < len(c.Others)+ones(c.HasFinalizer) && (!c.HasRecord() || held.holds(c.Record))
}

// EndOfMove takes our finalizers off a claimant that clusterctl has moved.
func EndOfMove(c *Claimant) Step {
	return Step{Request: Request{Verb: Patch, Name: "moved"}, Meta: map[string]any{"finalizers": c.withoutOurs()}}
}

// withoutOurs are the finalizers of others.
func (c *Claimant) withoutOurs() []string {
	out := []string{}
	for _, f := range c.Others {
		if !strings.HasPrefix(f, ending.Ours) {
			out = append(out, f)
		}
	}
	return out
}

func ones(is bool) int {
	if is {
		return 1
	}
	return 0
}

// kept are ranges that a pool keeps back, in order, none of which touch; nil: all is kept back.
type kept []netipx.IPRange

// heldOnRecord is what the status of the pool says is kept back: all where the pool is not there, and gives nothing.
func (m *Memory) heldOnRecord() kept {
	if m.Base == nil {
		return nil
	}
	var held netipx.IPSetBuilder
	for _, h := range m.Base.PoolStatus().Held {
		if r, err := poolutil.ParseRange(h.First + "-" + h.Last); err == nil {
			held.AddRange(r)
		}
	}
	set, err := held.IPSet()
	if err != nil {
		return kept{} // nothing is known to be kept back
	}
	return append(kept{}, set.Ranges()...)
}

// holds reports whether all of a range is kept back.
func (k kept) holds(r netipx.IPRange) bool {
	if k == nil {
		return true
	}
	after, found := slices.BinarySearchFunc(k, r.From(), func(h netipx.IPRange, ip netip.Addr) int { return h.From().Compare(ip) })
	if found {
		after++
	}
	return after > 0 && !k[after-1].To().Less(r.To())
}
