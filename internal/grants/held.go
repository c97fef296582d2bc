package grants

import (
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// MaxHeld bounds the entries of status.held.
const MaxHeld = 128

// heldIDLength makes an id one of 10^11: it has to differ only from those that the same range was held by before.
const heldIDLength = 8

// AddHeld keeps a range back until an operator releases it. As the pool grants nothing while there is one, what
// is between two may be kept back with them: so many are joined that the status stays small.
func (m *Memory) AddHeld(r netipx.IPRange, h v1alpha1.HeldRange) {
	m.setHeld(r, h)
	for len(m.held) > MaxHeld {
		m.joinHeld()
	}
}

func (m *Memory) setHeld(r netipx.IPRange, h v1alpha1.HeldRange) {
	if h.ID == "" {
		h.ID = rand.String(heldIDLength)
	}
	m.held[r] = h
	m.Ledger.Add(ledger.Fact{Key: restKey(ledger.Kept, r), Owner: ledger.Owner{Namespace: h.Namespace, Name: h.Name}, Range: r})
}

func (m *Memory) dropHeld(r netipx.IPRange) {
	delete(m.held, r)
	m.Ledger.Remove(restKey(ledger.Kept, r))
}

// joinHeld joins each second entry with the one before it.
func (m *Memory) joinHeld() {
	order := make([]netipx.IPRange, 0, len(m.held))
	for r := range m.held {
		order = append(order, r)
	}
	slices.SortFunc(order, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
	for pair := range slices.Chunk(order, 2) {
		if len(pair) < 2 || pair[0].From().Is4() != pair[1].From().Is4() {
			continue
		}
		reason := m.held[pair[0]].Reason
		to := pair[1].To()
		if to.Less(pair[0].To()) {
			to = pair[0].To()
		}
		joined := netipx.IPRangeFrom(pair[0].From(), to)
		m.dropHeld(pair[0])
		m.dropHeld(pair[1])
		m.setHeld(joined, v1alpha1.HeldRange{First: joined.From().String(), Last: to.String(), Reason: reason})
	}
}

// keepMoved keeps back what a claim that is being moved to another cluster was given. A record without our finalizer is
// a user's.
func (m *Memory) keepMoved(c *Claimant) {
	if c.Moved && c.HasRecord() {
		m.holdMoved(c.Owner, c.Record)
	}
}

// keepAllMoved keeps back whatever is being moved to another cluster now.
func (m *Memory) keepAllMoved() {
	for _, c := range m.moving {
		m.keepMoved(c)
	}
	for _, b := range m.Carved.Blocks {
		m.keepMovedBlock(b)
	}
	for _, a := range m.Attached {
		if a.moved && a.IP.IsValid() {
			m.holdMoved(a.owner(), m.Ledger.Unit(a.IP))
		}
	}
}

// isHeld reports whether all of a range is kept back.
func (m *Memory) isHeld(r netipx.IPRange) bool {
	return m.Ledger.FindOverlapping(r, func(h *ledger.Fact) bool {
		return h.Source == ledger.Kept && h.Range.Contains(r.From()) && h.Range.Contains(r.To())
	}) != nil
}

// holdMoved keeps what is being moved to another cluster from being given away here (R9).
func (m *Memory) holdMoved(o ledger.Owner, r netipx.IPRange) {
	if !r.IsValid() {
		return
	}
	if m.isHeld(r) {
		return
	}
	m.AddHeld(r, v1alpha1.HeldRange{
		First: r.From().String(), Last: r.To().String(), Reason: v1alpha1.MovedReason, Namespace: o.Namespace, Name: o.Name,
	})
}

// restKey keys a fact that no object states by its range.
func restKey(s ledger.Source, r netipx.IPRange) ledger.Key {
	return ledger.Key{Source: s, UID: types.UID(r.String())}
}
