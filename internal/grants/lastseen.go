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

// observedPool is the newest version of a pool that was observed, by the watch, a list or the answer to a write.
// Other pools of the network go by this version and not by the base pool: the base is older until the pool is
// reconciled, and missing until its first reconcile. They read the spec of a pool as soon as it is observed, so they
// have to read the grants in flight of the same version.
type observedPool struct {
	uid             types.UID
	resourceVersion string
	// status is nil if the pool was not observed. It is shared and never modified.
	status *v1alpha1.NetworkPoolStatus
	// grants are the grants in flight and blocks are the open blocks of a carved pool. They are parsed once, on first
	// use.
	parsed bool
	grants []inFlightGrant
	blocks []openBlock
	// hasOutside reports whether a grant in flight is outside the ranges that outsideLayout may grant; outsideChecked
	// reports whether that was computed.
	hasOutside     bool
	outsideLayout  *poolspec.Layout
	outsideChecked bool
	// mayExceedSpec reports whether the pool may have addresses outside its spec.
	mayExceedSpec bool
}

// inFlightGrant is a grant in flight, and its parsed range.
type inFlightGrant struct {
	grant   v1alpha1.Grant
	ipRange netipx.IPRange
}

// openBlock is a block of a carved pool that is open on record.
type openBlock struct {
	name   string
	prefix netip.Prefix
}

// ObservePool records a version of the pool, if it is the newest. A caller that publishes the spec of the pool calls
// this first.
func (m *PoolState) ObservePool(pool v1alpha1.Pool) {
	if m.observed.status == nil || term.IsNewerVersion(pool.GetResourceVersion(), m.observed.resourceVersion) {
		m.recordObserved(pool)
	}
}

// recordObserved records a version of the pool.
func (m *PoolState) recordObserved(pool v1alpha1.Pool) {
	m.trackUnresolvedGrants(pool)
	if m.observed.uid != pool.GetUID() {
		m.fullyListed = false
		clear(m.ListedFor) // that was another pool of the same name
	}
	edited := pool.GetGeneration() > 1 || pool.PoolSpec().Carve != nil
	m.observed = observedPool{uid: pool.GetUID(), resourceVersion: pool.GetResourceVersion(), status: pool.PoolStatus(), mayExceedSpec: edited}
	m.everObserved = true
}

// inFlightGrants returns the grants in flight.
func (k *observedPool) inFlightGrants() []inFlightGrant {
	k.parseStatus()
	return k.grants
}

// openBlocks returns the open blocks of a carved pool.
func (k *observedPool) openBlocks() []openBlock {
	k.parseStatus()
	return k.blocks
}

func (k *observedPool) parseStatus() {
	if k.parsed || k.status == nil {
		return
	}
	k.parsed = true
	for _, g := range InFlightFromStatus(k.status) {
		if r, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil {
			k.grants = append(k.grants, inFlightGrant{g, r})
		}
	}
	for _, on := range k.status.Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil {
			k.blocks = append(k.blocks, openBlock{on.Allocation, p})
		}
	}
}

// hasInFlightOutside reports whether a grant in flight is outside the ranges that a layout may grant. Without a
// layout, every grant is.
func (k *observedPool) hasInFlightOutside(layout *poolspec.Layout) bool {
	if k.outsideChecked && k.outsideLayout == layout {
		return k.hasOutside
	}
	k.hasOutside = slices.ContainsFunc(k.inFlightGrants(), func(f inFlightGrant) bool { return layout == nil || !layout.MayGrant(f.ipRange) })
	k.outsideChecked, k.outsideLayout = true, layout
	return k.hasOutside
}

// trackUnresolvedGrants compares the grants in flight of a new version of the pool with those before. If another
// manager holds the pool, a grant may have left its status although neither its object nor its end was observed: it
// became an object that the watch has not shown yet, or nothing. Until a list shows which, the grant counts as in
// use, and the pool is listed again.
func (m *PoolState) trackUnresolvedGrants(seen v1alpha1.Pool) {
	if m.Holder || m.observed.uid != seen.GetUID() {
		m.unresolvedGrants = nil
		return
	}
	still := map[v1alpha1.Grant]struct{}{}
	for _, g := range InFlightFromStatus(seen.PoolStatus()) {
		still[g] = struct{}{}
	}
	m.unresolvedGrants = slices.DeleteFunc(m.unresolvedGrants, m.isGrantResolved)
	before := len(m.unresolvedGrants)
	for _, f := range m.observed.inFlightGrants() {
		if _, flies := still[f.grant]; !flies && !m.isGrantResolved(f) {
			m.unresolvedGrants = append(m.unresolvedGrants, f)
		}
	}
	if len(m.unresolvedGrants) > before {
		m.VanishedCount++
		clear(m.ListedFor)
	}
}

// isGrantResolved reports whether the outcome of a grant was observed: its claimant has it on record, or is gone.
func (m *PoolState) isGrantResolved(f inFlightGrant) bool {
	uid := types.UID(f.grant.UID)
	_, remembers := m.Ledger.FindFact(ledger.Key{Source: ledger.SourceRecord, UID: uid})
	return remembers || m.Has(uid)
}

// HasUnresolvedGrants reports whether a grant has left the status and its outcome was not observed.
func (m *PoolState) HasUnresolvedGrants() bool {
	m.unresolvedGrants = slices.DeleteFunc(m.unresolvedGrants, m.isGrantResolved)
	return len(m.unresolvedGrants) > 0
}

// NeedsListing reports whether a pool that another manager holds may have addresses outside its spec that no watch
// has shown. The first list of pools may be newer than the first list of claims: in between, a grant may have been
// committed and may have become an object. HasUnresolvedGrants covers all later grants.
func (m *PoolState) NeedsListing() bool {
	return m.observed.mayExceedSpec && !m.fullyListed && !m.Holder
}

// RecordListing records that everything of the pool was listed for a reason. vanished is the VanishedCount when that
// list began. RecordListing reports false, and records nothing, if another grant has vanished since, because the list
// may not contain its object.
func (m *PoolState) RecordListing(reason v1alpha1.YieldedPool, vanished int) bool {
	if m.VanishedCount != vanished {
		return false
	}
	m.unresolvedGrants, m.fullyListed = nil, true
	m.ListedFor[reason] = true
	return true
}
