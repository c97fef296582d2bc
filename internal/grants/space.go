package grants

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Space is what the pool may allocate, and the facts about it: the last valid layout, compiled from the spec or from
// the open blocks, and the ledger. RebuildLedger replaces the ledger, so other parts keep a pointer to Space and none
// to the ledger.
type Space struct {
	Ledger *ledger.Ledger
	Layout *poolspec.Layout
	// layoutVersion is the version of the spec that Layout was compiled from.
	layoutVersion SpecVersion
	SpecErr       string
	// layoutBlocks are the blocks that Layout was compiled from.
	layoutBlocks []v1alpha1.CarvedBlock

	base *BasePool
}

// AllocatesPrefixes reports whether the pool allocates prefixes instead of single addresses.
func (sp *Space) AllocatesPrefixes() bool {
	if sp.Layout.Is6() {
		return sp.Layout.UnitBits() < 128
	}
	return sp.Layout.UnitBits() < 32
}

// FormatRecord returns the text of a record: an address, or a prefix if the pool allocates prefixes.
func (sp *Space) FormatRecord(r netipx.IPRange) string {
	if sp.Layout != nil && sp.Layout.UnitBits() < r.From().BitLen() {
		return poolutil.FormatRange(r)
	}
	return r.From().String()
}

// UnitForAddress returns the unit of the pool that an IPAddress has. It is not valid if the IPAddress has no valid
// address.
func (sp *Space) UnitForAddress(addr *Address) netipx.IPRange {
	if !addr.IP.IsValid() {
		return netipx.IPRange{}
	}
	return sp.Ledger.UnitRange(addr.IP)
}

// isRangeHeld reports whether all of a range is held by one entry.
func (sp *Space) isRangeHeld(r netipx.IPRange) bool {
	return sp.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
		return h.Source == ledger.SourceHeld && h.Range.Contains(r.From()) && h.Range.Contains(r.To())
	}) != nil
}

// HasZones reports whether the addresses of a claim depend on the failure domain of its Machine.
func (sp *Space) HasZones() bool { return sp.Layout != nil && sp.Layout.HasZones() }

// zonesForClaimant returns the zones of the pool from which a claimant may get addresses.
func (sp *Space) zonesForClaimant(c *Claimant) []int {
	if !sp.HasZones() {
		return []int{0}
	}
	zones, _ := sp.Layout.ZonesForFailureDomain(c.failureDomain())
	return zones
}

// allocationOrder returns the order in which the ledger allocates free addresses.
func (sp *Space) allocationOrder() ledger.AllocationOrder {
	out := ledger.AllocationOrder{LeastRecentlyUsed: sp.base.usesReleaseOrder()}
	if sp.HasZones() {
		out.Zones = sp.Layout.ZoneRanges()
	}
	return out
}

func (sp *Space) setClaimantFact(source ledger.Source, c *Claimant, r netipx.IPRange) {
	key := ledger.Key{Source: source, UID: c.Owner.UID}
	if r.IsValid() {
		sp.Ledger.AddFact(ledger.Fact{Key: key, Owner: c.Owner, Range: r})
	} else {
		sp.Ledger.RemoveFact(key)
	}
}

// restoreRecord restores the record of a claim from its IPAddress that was removed by force. A manager that has just
// taken the pool over may observe the writes of its predecessor in any order, and the record last.
func (sp *Space) restoreRecord(c *Claimant) {
	if c.LostAddress == nil || c.HasRecord() || !c.LostAddress.IP.IsValid() {
		return
	}
	if r := sp.Ledger.UnitRange(c.LostAddress.IP); c.StatusHasAddress || sp.Ledger.IsInSpace(r) {
		c.RecordedRange = r
	}
}

// UsedInBlock returns how many addresses are in use or granted in the range that has the most of them, of all ranges
// that a block may have.
func (sp *Space) UsedInBlock(b *Block) int64 { return sp.maxUsedIn(b.RecordedRanges) }

func (sp *Space) maxUsedIn(ranges []netipx.IPRange) (most int64) {
	for _, r := range ranges {
		n, _ := sp.Ledger.UsageInRange(r)
		most = max(most, n)
	}
	return most
}

// maxReleasedBytes bounds status.released, in bytes: some 300 single IPv4 addresses. The field is written with every
// grant.
const maxReleasedBytes = 4 << 10

const releasedSeparator = ", "

// releasedText returns the text of status.released: as many of the last releases as fit.
func (sp *Space) releasedText() string {
	var texts []string
	size := 0
	for r := range sp.releasedRuns() {
		text := poolutil.ShowRange(r)
		if size += len(releasedSeparator) + len(text); size > maxReleasedBytes {
			break
		}
		texts = append(texts, text)
	}
	slices.Reverse(texts)
	return strings.Join(texts, releasedSeparator)
}

// releasedRuns yields the releases, last one first. Releases of adjacent addresses in ascending order form one range:
// the lowest address of a range counts as released first.
func (sp *Space) releasedRuns() iter.Seq[netipx.IPRange] {
	return func(yield func(netipx.IPRange) bool) {
		var run netipx.IPRange
		for r := range sp.Ledger.ReleasedRanges() {
			switch {
			case run.IsValid() && r.To().Next() == run.From():
				r = netipx.IPRangeFrom(r.From(), run.To())
			case run.IsValid() && !yield(run):
				return
			}
			run = r
		}
		if run.IsValid() {
			yield(run)
		}
	}
}

// loadReleaseOrder restores the order of releases from a status. It must be called before any address of the pool is
// known to be in use. Addresses that cool down were released after all others.
func (sp *Space) loadReleaseOrder(status *v1alpha1.NetworkPoolStatus) {
	for text := range strings.SplitSeq(status.Released, ",") {
		if r, err := poolutil.ParseRange(strings.TrimSpace(text)); err == nil { // unreadable text was not written by a manager
			sp.Ledger.RestoreRelease(r)
		}
	}
	rests, _ := cooling.ParseGroups(status.Cooling)
	slices.SortStableFunc(rests, func(a, b cooling.Entry) int {
		return cmp.Or(a.Until.Compare(b.Until), a.Range.From().Compare(b.Range.From()))
	})
	for _, rest := range rests {
		sp.Ledger.RestoreRelease(rest.Range)
	}
}

// CompileLayout compiles the layout of the base pool's spec. If the spec is not valid, addresses that are allocated
// stay as they are, and the last valid layout stays in force for what is already promised.
func (sp *Space) CompileLayout() {
	layout, errs := poolspec.CompilePool(sp.base.Pool)
	sp.SpecErr = ""
	if len(errs) > 0 {
		sp.SpecErr = text.SanitizeMessage(errs.ToAggregate().Error())
		switch {
		case sp.Layout == nil:
		case sp.base.isCarved():
			layout = sp.Layout.RestrictTo(sp.base.OpenBlockRanges()) // closed blocks are not allocated from any more
		default:
			return
		}
	}
	if layout != nil {
		sp.removePreAllocations()
		sp.Layout, sp.layoutVersion = layout, SpecVersionForPool(sp.base.Pool)
	}
	sp.updateLedgerLayout()
	sp.Ledger.SetCountedRanges(sp.base.OpenBlockRanges())
	sp.addPreAllocations()
}

// updateLedgerLayout gives the ledger the addresses of the layout and the order of allocation.
func (sp *Space) updateLedgerLayout() {
	space, unit := sp.grantableSpace()
	sp.Ledger.ApplyLayout(space, unit, sp.allocationOrder())
}

// grantableSpace returns the addresses that the pool may grant, and the prefix length of a unit.
func (sp *Space) grantableSpace() (*netipx.IPSet, int) {
	if sp.Layout == nil {
		return nil, 128
	}
	return sp.Layout.Grantable(), sp.Layout.UnitBits()
}

// addPreAllocations adds the facts about spec.preAllocations, which keep these addresses from claims of other names.
func (sp *Space) addPreAllocations() {
	if sp.Layout == nil {
		return
	}
	for name, ip := range sp.Layout.Pins() {
		sp.Ledger.AddFact(ledger.Fact{
			Key:   ledger.Key{Source: ledger.SourcePin, UID: types.UID(name)},
			Owner: ledger.Owner{Name: name},
			Range: sp.Ledger.UnitRange(ip),
		})
	}
}

func (sp *Space) removePreAllocations() {
	if sp.Layout == nil {
		return
	}
	for name := range sp.Layout.Pins() {
		sp.Ledger.RemoveFact(ledger.Key{Source: ledger.SourcePin, UID: types.UID(name)})
	}
}
