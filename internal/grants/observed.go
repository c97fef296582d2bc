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
)

// Observed is the newest version of the pool that was observed, also where another manager holds it, and the grants
// of that manager whose outcome is not known. The holder has none of these.
type Observed struct {
	// observed is the newest version of the pool that was observed. unresolvedGrants are grants that have left its
	// status and whose outcome was not observed; VanishedCount counts how often that happened.
	latest           observedPool
	unresolvedGrants []inFlightGrant
	VanishedCount    int
	// ever reports whether the pool existed at any time while this manager ran.
	ever bool
	// ListedFor has the reasons for which everything of this pool was listed (allocator.surveyPool).
	ListedFor map[v1alpha1.YieldedPool]bool
	// fullyListed reports whether everything of this pool was listed since this manager started (NeedsListing).
	fullyListed bool

	space     *Space
	claimants *Claimants
	carved    *CarvedPool
	term      *TermState
}

// HasYieldedTo reports whether the status of the pool records that it yields to another pool.
func (o *Observed) HasYieldedTo(to v1alpha1.YieldedPool) bool {
	return o.latest.status != nil && slices.Contains(o.latest.status.Yields, to)
}

// isInOpenBlock reports whether a range is in one block of a carved pool that is open on record.
func (o *Observed) isInOpenBlock(r netipx.IPRange) bool {
	return slices.ContainsFunc(o.latest.openBlocks(), func(on openBlock) bool {
		return on.prefix.Contains(r.From()) && on.prefix.Contains(r.To())
	})
}

// LostBlockRanges returns the ranges that are open on record in a carved pool and that no IPAllocation has any more,
// because it was removed by force. The claims of the pool keep their addresses in them.
func (o *Observed) LostBlockRanges() (out []netipx.IPRange) {
	for _, on := range o.latest.openBlocks() {
		if !o.carved.hasBlockPrefix(on.name, on.prefix) {
			out = append(out, netipx.RangeOfPrefix(on.prefix))
		}
	}
	return out
}

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

// inFlightGrants returns the grants in flight.
func (op *observedPool) inFlightGrants() []inFlightGrant {
	op.parseStatus()
	return op.grants
}

// openBlocks returns the open blocks of a carved pool.
func (op *observedPool) openBlocks() []openBlock {
	op.parseStatus()
	return op.blocks
}

func (op *observedPool) parseStatus() {
	if op.parsed || op.status == nil {
		return
	}
	op.parsed = true
	for _, g := range InFlightFromStatus(op.status) {
		if r, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil {
			op.grants = append(op.grants, inFlightGrant{g, r})
		}
	}
	for _, on := range op.status.Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil {
			op.blocks = append(op.blocks, openBlock{on.Allocation, p})
		}
	}
}

// hasInFlightOutside reports whether a grant in flight is outside the ranges that a layout may grant. Without a
// layout, every grant is.
func (op *observedPool) hasInFlightOutside(layout *poolspec.Layout) bool {
	if op.outsideChecked && op.outsideLayout == layout {
		return op.hasOutside
	}
	op.hasOutside = slices.ContainsFunc(op.inFlightGrants(), func(f inFlightGrant) bool { return layout == nil || !layout.MayGrant(f.ipRange) })
	op.outsideChecked, op.outsideLayout = true, layout
	return op.hasOutside
}

// trackUnresolvedGrants compares the grants in flight of a new version of the pool with those before. If another
// manager holds the pool, a grant may have left its status although neither its object nor its end was observed: it
// became an object that the watch has not shown yet, or nothing. Until a list shows which, the grant counts as in
// use, and the pool is listed again.
func (o *Observed) trackUnresolvedGrants(seen v1alpha1.Pool) {
	if o.term.Holder || o.latest.uid != seen.GetUID() {
		o.unresolvedGrants = nil
		return
	}
	still := map[v1alpha1.Grant]struct{}{}
	for _, g := range InFlightFromStatus(seen.PoolStatus()) {
		still[g] = struct{}{}
	}
	o.unresolvedGrants = slices.DeleteFunc(o.unresolvedGrants, o.isGrantResolved)
	before := len(o.unresolvedGrants)
	for _, f := range o.latest.inFlightGrants() {
		if _, flies := still[f.grant]; !flies && !o.isGrantResolved(f) {
			o.unresolvedGrants = append(o.unresolvedGrants, f)
		}
	}
	if len(o.unresolvedGrants) > before {
		o.VanishedCount++
		clear(o.ListedFor)
	}
}

// isGrantResolved reports whether the outcome of a grant was observed: its claimant has it on record, or is gone.
func (o *Observed) isGrantResolved(f inFlightGrant) bool {
	uid := types.UID(f.grant.UID)
	_, remembers := o.space.Ledger.FindFact(ledger.Key{Source: ledger.SourceRecord, UID: uid})
	return remembers || o.claimants.Gone.Has(uid)
}

// HasUnresolvedGrants reports whether a grant has left the status and its outcome was not observed.
func (o *Observed) HasUnresolvedGrants() bool {
	o.unresolvedGrants = slices.DeleteFunc(o.unresolvedGrants, o.isGrantResolved)
	return len(o.unresolvedGrants) > 0
}

// NeedsListing reports whether a pool that another manager holds may have addresses outside its spec that no watch
// has shown. The first list of pools may be newer than the first list of claims: in between, a grant may have been
// committed and may have become an object. HasUnresolvedGrants covers all later grants.
func (o *Observed) NeedsListing() bool {
	return o.latest.mayExceedSpec && !o.fullyListed && !o.term.Holder
}

// RecordListing records that everything of the pool was listed for a reason. vanished is the VanishedCount when that
// list began. RecordListing reports false, and records nothing, if another grant has vanished since, because the list
// may not contain its object.
func (o *Observed) RecordListing(reason v1alpha1.YieldedPool, vanished int) bool {
	if o.VanishedCount != vanished {
		return false
	}
	o.unresolvedGrants, o.fullyListed = nil, true
	o.ListedFor[reason] = true
	return true
}
