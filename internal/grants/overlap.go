package grants

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// Overlap has what this pool and the other pools of its network have in common, and which of them yields (R11), as
// the comparison of all pools has found it.
type Overlap struct {
	// Message names a pool of the same network that has some of the same addresses, empty if there is none.
	// WithOlderPool reports whether that pool is older than this one.
	Message       string
	WithOlderPool bool
	// YieldPending reports whether the status does not record yet that this pool yields to an older one.
	YieldPending bool
	// WaitMessage names the younger pool that has to yield its addresses to this one.
	WaitMessage string
	// Yields are the older pools that this pool yields to, as the next commit writes them. OutstandingYieldMessage
	// describes why the pool still yields to one of them that it does not overlap any more.
	Yields                  []v1alpha1.YieldedPool
	OutstandingYieldMessage string
	// UnwatchedUsage has the last read of each older pool that this pool yields to and that no watch of this manager
	// shows.
	UnwatchedUsage map[v1alpha1.YieldedPool]UnwatchedUsage
	// LastUpdate is the state of this pool for which the older pools were last enqueued.
	LastUpdate OverlapUpdate

	space     *Space
	observed  *Observed
	claimants *Claimants
}

// UsedRangesIn returns the parts of some ranges that the pool has in use or in flight. The ranges must be in
// ascending order. The cost is the smaller of the number of ranges and the number of taken ranges, times the cost of
// one lookup.
func (o *Overlap) UsedRangesIn(ranges []netipx.IPRange) (out []netipx.IPRange) {
	for rest := ranges; len(rest) > 0; {
		r, next := rest[0], netip.Addr{}
		o.space.Ledger.VisitTakenRanges(r.From(), func(taken netipx.IPRange, facts []*ledger.Fact) bool {
			if r.To().Less(taken.From()) {
				next = taken.From()
				return false
			}
			if slices.ContainsFunc(facts, o.provesUse) {
				out = append(out, intersectRanges(r, taken))
			}
			return true
		})
		if !next.IsValid() {
			break
		}
		rest = rangesFrom(rest[1:], next)
	}
	for _, flights := range [][]inFlightGrant{o.observed.latest.inFlightGrants(), o.observed.unresolvedGrants} {
		for _, f := range flights {
			for _, r := range rangesFrom(ranges, f.ipRange.From()) {
				if f.ipRange.To().Less(r.From()) {
					break
				}
				out = append(out, intersectRanges(r, f.ipRange))
			}
		}
	}
	return out
}

// provesUse reports whether a fact proves that its addresses are in use. A record alone is a proof only for a pool
// that existed while this manager ran: any user can write a record that names a pool that never existed.
func (o *Overlap) provesUse(h *ledger.Fact) bool {
	if h.Source == ledger.SourceRecord && !o.observed.ever {
		c := o.claimants.ByUID[h.UID]
		return c != nil && c.StatusHasAddress
	}
	return h.Source.IsInUse()
}

// UsedOutsideSpec returns the parts of some ranges that the pool has in use, if it uses anything outside its own
// addresses. Other pools take the addresses of this pool from the newest spec that was observed: of is the version of
// that spec, and layout is its layout. The pool itself may not be reconciled with that spec yet, and then counts as
// out of range what the previous spec did not cover.
func (o *Overlap) UsedOutsideSpec(ranges []netipx.IPRange, of SpecVersion, layout *poolspec.Layout) []netipx.IPRange {
	lost := o.observed.LostBlockRanges()
	switch {
	case len(lost) > 0 || o.hasUseOutsideSpec():
		return slices.Concat(o.UsedRangesIn(ranges), commonRanges(lost, ranges))
	case o.isLayoutOutdated(of):
		return slices.DeleteFunc(o.UsedRangesIn(ranges), func(r netipx.IPRange) bool {
			return o.observed.isInOpenBlock(r) || (layout != nil && layout.MayGrant(r))
		})
	}
	return nil
}

// hasUseOutsideSpec reports whether anything is in use, or in flight, outside the spec that the pool was last
// reconciled with.
func (o *Overlap) hasUseOutsideSpec() bool {
	return o.space.Ledger.Counts().OutOfRange > 0 || o.observed.latest.hasInFlightOutside(o.space.Layout) || o.observed.HasUnresolvedGrants()
}

// isLayoutOutdated reports whether the layout was compiled from another spec than the one that other pools go by, or
// from other blocks than the status records.
func (o *Overlap) isLayoutOutdated(of SpecVersion) bool {
	return o.space.layoutVersion != of || (o.observed.latest.status != nil && !slices.EqualFunc(o.space.layoutBlocks, o.observed.latest.status.Blocks, equalBlockAddresses))
}
