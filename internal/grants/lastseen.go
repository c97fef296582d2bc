package grants

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// lastSeen is what the newest version of a pool says that was seen, by the watch, a list or the answer to a write. Other
// pools of its network go by this and not by the base, which is of before until the pool is reconciled, and nothing at
// all until that is done for the first time: they read its spec as soon as it is seen, and what was in flight by then
// belongs to that.
type lastSeen struct {
	uid     types.UID
	version string
	// status is nil where the pool was not seen. It is shared, and never changed.
	status *v1alpha1.NetworkPoolStatus
	// flights are the grants in flight, blocks what a carved pool has open: read when they are asked for, once.
	read    bool
	flights []flight
	blocks  []openBlock
	// beyond: some of the flights are of nothing that the layout grants, which beyondOf is.
	beyond   bool
	beyondOf *poolspec.Layout
	compared bool
	// edited: it may have addresses beyond its spec.
	edited bool
}

// flight is a grant in flight, and what was granted.
type flight struct {
	grant v1alpha1.Grant
	r     netipx.IPRange
}

// openBlock is a block that a carved pool has open on record.
type openBlock struct {
	name   string
	prefix netip.Prefix
}

// NoteSeen notes what a version of the pool says, if it is the newest. A caller that publishes its spec calls this
// first.
func (m *Memory) NoteSeen(pool v1alpha1.Pool) {
	if m.last.status == nil || term.Newer(pool.GetResourceVersion(), m.last.version) {
		m.note(pool)
	}
}

// note notes what a version of the pool says.
func (m *Memory) note(pool v1alpha1.Pool) {
	m.forgetSurveys(pool)
	if m.last.uid != pool.GetUID() {
		m.listed = false
		clear(m.Surveyed) // another pool of the name was listed
	}
	edited := pool.GetGeneration() > 1 || pool.PoolSpec().Carve != nil
	m.last = lastSeen{uid: pool.GetUID(), version: pool.GetResourceVersion(), status: pool.PoolStatus(), edited: edited}
	m.seen = true
}

// inFlight returns the grants in flight.
func (k *lastSeen) inFlight() []flight {
	k.parse()
	return k.flights
}

// openBlocks returns what a carved pool has open.
func (k *lastSeen) openBlocks() []openBlock {
	k.parse()
	return k.blocks
}

func (k *lastSeen) parse() {
	if k.read || k.status == nil {
		return
	}
	k.read = true
	for _, g := range InFlightOf(k.status) {
		if r, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil {
			k.flights = append(k.flights, flight{g, r})
		}
	}
	for _, on := range k.status.Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil {
			k.blocks = append(k.blocks, openBlock{on.Allocation, p})
		}
	}
}

// fliesBeyond reports whether anything in flight is nothing that a layout grants; without one, nothing is.
func (k *lastSeen) fliesBeyond(layout *poolspec.Layout) bool {
	if k.compared && k.beyondOf == layout {
		return k.beyond
	}
	k.beyond = slices.ContainsFunc(k.inFlight(), func(f flight) bool { return layout == nil || !layout.MayGrant(f.r) })
	k.compared, k.beyondOf = true, layout
	return k.beyond
}

// forgetSurveys has a pool of another holder listed again where a grant in flight has gone from its status and nothing
// of it was seen: it became an object that the watch is yet to show, or nothing. Until a list has shown which, it counts
// as in use.
func (m *Memory) forgetSurveys(seen v1alpha1.Pool) {
	if m.Holder || m.last.uid != seen.GetUID() {
		m.unseen = nil
		return
	}
	still := map[v1alpha1.Grant]struct{}{}
	for _, g := range InFlightOf(seen.PoolStatus()) {
		still[g] = struct{}{}
	}
	m.unseen = slices.DeleteFunc(m.unseen, m.sawEndOf)
	before := len(m.unseen)
	for _, f := range m.last.inFlight() {
		if _, flies := still[f.grant]; !flies && !m.sawEndOf(f) {
			m.unseen = append(m.unseen, f)
		}
	}
	if len(m.unseen) > before {
		m.Vanished++
		clear(m.Surveyed)
	}
}

// sawEndOf reports whether something was seen of what became of a grant: its claimant remembers it, or is gone.
func (m *Memory) sawEndOf(f flight) bool {
	uid := types.UID(f.grant.UID)
	_, remembers := m.Ledger.Get(ledger.Key{Source: ledger.Record, UID: uid})
	return remembers || m.IsGone(uid)
}

// HasUnseen reports whether a grant has gone from the status, and what became of it was not seen.
func (m *Memory) HasUnseen() bool {
	m.unseen = slices.DeleteFunc(m.unseen, m.sawEndOf)
	return len(m.unseen) > 0
}

// IsUnlisted reports whether a pool of another holder may have addresses beyond its spec that no watch has shown. What this
// manager listed of pools at its start may be newer than what it listed of claims: a grant may have been made, and have
// become an object, in between. From then on HasUnseen knows of such.
func (m *Memory) IsUnlisted() bool { return m.last.edited && !m.listed && !m.Holder }

// NoteSurvey notes that all that the pool has was listed for a reason, by a list that began when so many grants had
// vanished. False: another one has since, which the list may lack.
func (m *Memory) NoteSurvey(reason v1alpha1.YieldedPool, vanished int) bool {
	if m.Vanished != vanished {
		return false
	}
	m.unseen, m.listed = nil, true
	m.Surveyed[reason] = true
	return true
}
