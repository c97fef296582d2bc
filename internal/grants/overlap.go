package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
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
	WaitMessage  string
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

// ExcludedRanges are the ranges of the pool that another pool of its network has or may grant (R11). Each is a fact
// in the ledger. There is none after RebuildLedger until the pools were compared again.
type ExcludedRanges struct {
	// excluded are the ranges that another pool of the network has or may grant. WaitMessage names the younger
	// pool that has to yield its addresses to this one.
	byRange map[netipx.IPRange]pools.Key
	// Count counts the calls of ExcludeRange. A comparison of the pool with all others detects by it that a
	// range was excluded meanwhile.
	Count int

	space *Space
}

// SetMessage records which pool of the network has some of the same addresses, whether that is older than this one,
// and whether the status does not record yet that this pool yields to an older one.
func (o *Overlap) SetMessage(message string, withOlderPool, yieldPending bool) {
	o.Message, o.WithOlderPool, o.YieldPending = message, withOlderPool, yieldPending
}

// SetYields records the pool that this one waits for, and the older pools that it yields to.
func (o *Overlap) SetYields(waitMessage string, yields []v1alpha1.YieldedPool, outstandingMessage string) {
	o.WaitMessage, o.Yields, o.OutstandingYieldMessage = waitMessage, yields, outstandingMessage
}

// TakeUpdate reports whether the older pools have a reason to be reconciled since the last call: the yields on record
// are others, or less is in use.
func (o *Overlap) TakeUpdate(update OverlapUpdate) bool {
	last := o.LastUpdate
	o.LastUpdate = update
	return update.YieldsVersion != last.YieldsVersion || update.UsedAddresses < last.UsedAddresses
}

// sharedPoolNote returns a note that names another pool of the network that has some of the addresses: the first one
// by name if there are several. It is empty if there is none.
func (e *ExcludedRanges) sharedPoolNote() string {
	first := ""
	for _, key := range e.byRange {
		if text := key.String(); first == "" || text < first {
			first = text
		}
	}
	if first == "" {
		return ""
	}
	return ", or " + first + " has them too"
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
			if r.To().Less(taken.To()) {
				next = r.To().Next() // it may reach into the next range
				return false
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

// rangesFrom returns the ranges that do not end before an address. The ranges must be in ascending order.
func rangesFrom(ranges []netipx.IPRange, a netip.Addr) []netipx.IPRange {
	i, _ := slices.BinarySearchFunc(ranges, a, func(r netipx.IPRange, a netip.Addr) int { return r.To().Compare(a) })
	return ranges[i:]
}

// intersectRanges returns the intersection of two ranges. They must overlap.
func intersectRanges(a, b netipx.IPRange) netipx.IPRange {
	from, to := a.From(), a.To()
	if from.Less(b.From()) {
		from = b.From()
	}
	if b.To().Less(to) {
		to = b.To()
	}
	return netipx.IPRangeFrom(from, to)
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

// SpecVersion identifies a version of the spec of a pool, as far as the spec determines the addresses of the pool.
// Generation is 0 for a carved pool: its status, not its spec, determines its addresses.
type SpecVersion struct {
	UID        types.UID
	Generation int64
}

// SpecVersionForPool returns the version of the spec that a pool has.
func SpecVersionForPool(pool v1alpha1.Pool) SpecVersion {
	if pool.PoolSpec().Carve != nil {
		return SpecVersion{UID: pool.GetUID()}
	}
	return SpecVersion{pool.GetUID(), pool.GetGeneration()}
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

// commonRanges returns the intersections of ranges with other ranges.
func commonRanges(ranges, with []netipx.IPRange) (out []netipx.IPRange) {
	for _, r := range ranges {
		for _, w := range with {
			if r.Overlaps(w) {
				out = append(out, intersectRanges(r, w))
			}
		}
	}
	return out
}

// SetExcluded replaces the excluded ranges, and the facts about them in the ledger, with the given ones.
func (e *ExcludedRanges) SetExcluded(excluded map[netipx.IPRange]pools.Key) {
	for r, key := range e.byRange {
		if excluded[r] != key {
			e.space.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())})
		}
	}
	for r, key := range excluded {
		e.space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
	}
	e.byRange = excluded
}

// ExcludeRange adds one range that another pool has to the excluded ranges at once. A comparison with all other pools
// that is in progress starts over, because Count changes.
func (e *ExcludedRanges) ExcludeRange(r netipx.IPRange, key pools.Key) {
	e.Count++
	if e.byRange == nil {
		e.byRange = map[netipx.IPRange]pools.Key{}
	}
	e.byRange[r] = key
	e.space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
}

// UnwatchedUsage is the result of the last read of an older pool that no watch of this manager shows: the ranges of
// this pool that the older pool uses. Generation is the generation of this pool at the time of the read.
// BlockedReason is why this pool may not grant anything yet.
type UnwatchedUsage struct {
	ReadAt        time.Time
	Generation    int64
	UsedRanges    []netipx.IPRange
	BlockedReason string
}

// RecordUnwatchedUsage records the result of a read of an older pool that no watch of this manager shows.
func (o *Overlap) RecordUnwatchedUsage(of v1alpha1.YieldedPool, usage UnwatchedUsage) {
	o.UnwatchedUsage[of] = usage
}

// OverlapUpdate is the state of a younger pool that the older pools of its network wait for.
type OverlapUpdate struct {
	YieldsVersion string
	UsedAddresses int64
}
