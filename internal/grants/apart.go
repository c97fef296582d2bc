package grants

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// YieldsTo reports whether it is on record that a pool yields to another one.
func (m *Memory) YieldsTo(to v1alpha1.YieldedPool) bool {
	return m.Base != nil && slices.Contains(m.Base.PoolStatus().Yields, to)
}

// forgetSurveys has a pool of another holder listed again where a grant in flight has gone from its status and nothing
// of it was seen: it became an object that the watch is yet to show, or nothing.
func (m *Memory) forgetSurveys(seen v1alpha1.Pool) {
	if m.Base == nil || m.Holder || len(m.Surveyed) == 0 {
		return
	}
	still := InFlightOf(seen.PoolStatus())
	for _, g := range InFlightOf(m.Base.PoolStatus()) {
		uid := types.UID(g.UID)
		_, remembers := m.Ledger.Get(ledger.Key{Source: ledger.Record, UID: uid})
		if !slices.Contains(still, g) && !remembers && !m.IsGone(uid) {
			clear(m.Surveyed)
			return
		}
	}
}

// UsedIn returns what a pool has in use or in flight of some ranges.
func (m *Memory) UsedIn(ranges []netipx.IPRange) (out []netipx.IPRange) {
	for _, r := range ranges {
		out = append(out, m.usedOf(r)...)
	}
	return out
}

func (m *Memory) usedOf(r netipx.IPRange) (out []netipx.IPRange) {
	add := func(used netipx.IPRange) {
		if used.From().Less(r.From()) {
			used = netipx.IPRangeFrom(r.From(), used.To())
		}
		if r.To().Less(used.To()) {
			used = netipx.IPRangeFrom(used.From(), r.To())
		}
		if used.IsValid() {
			out = append(out, used)
		}
	}
	m.Ledger.Taken(r.From(), func(taken netipx.IPRange, facts []*ledger.Fact) bool {
		if r.To().Less(taken.From()) {
			return false
		}
		if slices.ContainsFunc(facts, m.proves) {
			add(taken)
		}
		return true
	})
	if m.Base != nil {
		for _, g := range InFlightOf(m.Base.PoolStatus()) {
			if granted, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil && granted.Overlaps(r) {
				add(granted)
			}
		}
	}
	return out
}

// proves reports whether a fact says that addresses are in use. A record alone does so for a pool that was there while this
// manager ran: anybody can write one for a pool that never was.
func (m *Memory) proves(h *ledger.Fact) bool {
	if h.Source == ledger.Record && !m.seen {
		c := m.Claimants[h.UID]
		return c != nil && c.HadAddress
	}
	return h.Source.Uses()
}

// UsesBeyond reports whether anything outside of the spec is in use, or in flight.
func (m *Memory) UsesBeyond() bool {
	if m.Ledger.Counts().OutOfRange > 0 {
		return true
	}
	return m.Base != nil && m.Layout != nil && slices.ContainsFunc(InFlightOf(m.Base.PoolStatus()), func(g v1alpha1.Grant) bool {
		granted, err := poolutil.ParseRange(g.First + "-" + g.Last)
		return err == nil && !m.Layout.MayGrant(granted)
	})
}

// SetApart states what is kept apart, and nothing else.
func (m *Memory) SetApart(apart map[netipx.IPRange]pools.Key) {
	for r, key := range m.apart {
		if apart[r] != key {
			m.Ledger.Remove(ledger.Key{Source: ledger.Shared, UID: types.UID(r.String())})
		}
	}
	for r, key := range apart {
		m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Shared, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
	}
	m.apart = apart
}

// KeepApart states at once that another pool has a range. A look at all pools that is under way begins again.
func (m *Memory) KeepApart(r netipx.IPRange, key pools.Key) {
	m.KeptApart++
	if m.apart == nil {
		m.apart = map[netipx.IPRange]pools.Key{}
	}
	m.apart[r] = key
	m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Shared, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
}

// LostBlocks are what a carved pool has open on record, and no IPAllocation has: those were taken away by force. Its claims
// keep what they have of it.
func (m *Memory) LostBlocks() (out []netipx.IPRange) {
	if m.Base == nil {
		return nil
	}
	for _, on := range m.Base.PoolStatus().Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil && !m.has(on.Allocation, p) {
			out = append(out, netipx.RangeOfPrefix(p))
		}
	}
	return out
}

// News is what the older pools of a network wait to hear of a younger one.
type News struct {
	Version string
	Used    int64
}
