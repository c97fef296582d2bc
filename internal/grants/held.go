package grants

import (
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// MaxHeldRanges bounds the entries of status.held.
const MaxHeldRanges = 128

// heldIDLength is the length of the id of an entry, which makes it one of 10^11. An id has to differ only from the
// ids of earlier entries with the same range.
const heldIDLength = 8

// AddHeldRange holds a range until an operator releases it. If there are too many entries it merges adjacent ones, so
// that the status stays small. A merged entry also holds the addresses between the two, which costs nothing: the pool
// grants nothing new while it has an entry.
func (m *PoolState) AddHeldRange(r netipx.IPRange, h v1alpha1.HeldRange) {
	m.setHeldRange(r, h)
	for len(m.heldRanges) > MaxHeldRanges {
		m.mergeHeldRanges()
	}
}

func (m *PoolState) setHeldRange(r netipx.IPRange, h v1alpha1.HeldRange) {
	if h.ID == "" {
		h.ID = rand.String(heldIDLength)
	}
	m.heldRanges[r] = h
	m.Ledger.AddFact(ledger.Fact{Key: ledgerKeyForRange(ledger.SourceHeld, r), Owner: ledger.Owner{Namespace: h.Namespace, Name: h.Name}, Range: r})
}

func (m *PoolState) removeHeldRange(r netipx.IPRange) {
	delete(m.heldRanges, r)
	m.Ledger.RemoveFact(ledgerKeyForRange(ledger.SourceHeld, r))
}

// mergeHeldRanges merges every second entry with the one before it.
func (m *PoolState) mergeHeldRanges() {
	order := make([]netipx.IPRange, 0, len(m.heldRanges))
	for r := range m.heldRanges {
		order = append(order, r)
	}
	slices.SortFunc(order, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
	for pair := range slices.Chunk(order, 2) {
		if len(pair) < 2 || pair[0].From().Is4() != pair[1].From().Is4() {
			continue
		}
		reason := m.heldRanges[pair[0]].Reason
		to := pair[1].To()
		if to.Less(pair[0].To()) {
			to = pair[0].To()
		}
		joined := netipx.IPRangeFrom(pair[0].From(), to)
		m.removeHeldRange(pair[0])
		m.removeHeldRange(pair[1])
		m.setHeldRange(joined, v1alpha1.HeldRange{First: joined.From().String(), Last: to.String(), Reason: reason})
	}
}

// holdMovedClaimant holds the range of a claimant that is being moved to another cluster. A record without our
// finalizer was written by a user and does not count.
func (m *PoolState) holdMovedClaimant(c *Claimant) {
	if c.Moved && c.HasRecord() {
		m.holdMovedRange(c.Owner, c.RecordedRange)
	}
}

// holdAllMoved holds the ranges of all objects that are being moved to another cluster now.
func (m *PoolState) holdAllMoved() {
	for _, c := range m.movingClaimants {
		m.holdMovedClaimant(c)
	}
	for _, b := range m.Carved.Blocks {
		m.holdMovedBlock(b)
	}
	for _, a := range m.Addresses {
		if a.moved && a.IP.IsValid() {
			m.holdMovedRange(a.ledgerOwner(), m.Ledger.UnitRange(a.IP))
		}
	}
}

// isRangeHeld reports whether all of a range is held by one entry.
func (m *PoolState) isRangeHeld(r netipx.IPRange) bool {
	return m.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
		return h.Source == ledger.SourceHeld && h.Range.Contains(r.From()) && h.Range.Contains(r.To())
	}) != nil
}

// holdMovedRange holds a range that is being moved to another cluster, so that it is not granted here (R9).
func (m *PoolState) holdMovedRange(o ledger.Owner, r netipx.IPRange) {
	if !r.IsValid() {
		return
	}
	if m.isRangeHeld(r) {
		return
	}
	m.AddHeldRange(r, v1alpha1.HeldRange{
		First: r.From().String(), Last: r.To().String(), Reason: v1alpha1.MovedReason, Namespace: o.Namespace, Name: o.Name,
	})
}

// ledgerKeyForRange returns the key of a fact that is keyed by its range, because no object states it.
func ledgerKeyForRange(s ledger.Source, r netipx.IPRange) ledger.Key {
	return ledger.Key{Source: s, UID: types.UID(r.String())}
}
