package grants

import (
	"fmt"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// HeldRanges are the ranges that stay reserved until a user releases them (status.held). Each is a fact in the
// ledger. While one of them was moved, the pool grants nothing.
type HeldRanges struct {
	byRange map[netipx.IPRange]v1alpha1.HeldRange

	base      *BasePool
	space     *Space
	addresses *Addresses
	carved    *CarvedPool
	moves     *Moves
}

// holdMovedBlock holds the addresses of a block that is being moved to another cluster: the pool grants nothing from
// it here, and requests no block in its place.
func (hs *HeldRanges) holdMovedBlock(b *Block) {
	if !b.Moved || b.ParentKey != hs.base.parentKey() {
		return
	}
	for _, r := range b.RecordedRanges {
		hs.holdMovedRange(ledger.Owner{Kind: v1alpha1.IPAllocationKind, Namespace: b.Namespace, Name: b.Name, UID: b.UID}, r)
	}
}

// MaxHeldRanges bounds the entries of status.held.
const MaxHeldRanges = 128

// heldIDLength is the length of the id of an entry, which makes it one of 10^11. An id has to differ only from the
// ids of earlier entries with the same range.
const heldIDLength = 8

// AddHeldRange holds a range until an operator releases it. If there are too many entries it merges adjacent ones, so
// that the status stays small. A merged entry also holds the addresses between the two, which costs nothing: the pool
// grants nothing new while it has an entry.
func (hs *HeldRanges) AddHeldRange(r netipx.IPRange, h v1alpha1.HeldRange) {
	hs.setHeldRange(r, h)
	for len(hs.byRange) > MaxHeldRanges {
		hs.mergeHeldRanges()
	}
}

func (hs *HeldRanges) setHeldRange(r netipx.IPRange, h v1alpha1.HeldRange) {
	if h.ID == "" {
		h.ID = rand.String(heldIDLength)
	}
	hs.byRange[r] = h
	hs.space.Ledger.AddFact(ledger.Fact{Key: ledgerKeyForRange(ledger.SourceHeld, r), Owner: ledger.Owner{Namespace: h.Namespace, Name: h.Name}, Range: r})
}

func (hs *HeldRanges) removeHeldRange(r netipx.IPRange) {
	delete(hs.byRange, r)
	hs.space.Ledger.RemoveFact(ledgerKeyForRange(ledger.SourceHeld, r))
}

// mergeHeldRanges merges every second entry with the one before it.
func (hs *HeldRanges) mergeHeldRanges() {
	order := make([]netipx.IPRange, 0, len(hs.byRange))
	for r := range hs.byRange {
		order = append(order, r)
	}
	slices.SortFunc(order, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
	for pair := range slices.Chunk(order, 2) {
		if len(pair) < 2 || pair[0].From().Is4() != pair[1].From().Is4() {
			continue
		}
		reason := hs.byRange[pair[0]].Reason
		to := pair[1].To()
		if to.Less(pair[0].To()) {
			to = pair[0].To()
		}
		joined := netipx.IPRangeFrom(pair[0].From(), to)
		hs.removeHeldRange(pair[0])
		hs.removeHeldRange(pair[1])
		hs.setHeldRange(joined, v1alpha1.HeldRange{First: joined.From().String(), Last: to.String(), Reason: reason})
	}
}

// holdMovedClaimant holds the range of a claimant that is being moved to another cluster. A record without our
// finalizer was written by a user and does not count.
func (hs *HeldRanges) holdMovedClaimant(c *Claimant) {
	if c.Moved && c.HasRecord() {
		hs.holdMovedRange(c.Owner, c.RecordedRange)
	}
}

// holdAllMoved holds the ranges of all objects that are being moved to another cluster now.
func (hs *HeldRanges) holdAllMoved() {
	for _, c := range hs.moves.movingClaimants {
		hs.holdMovedClaimant(c)
	}
	for _, b := range hs.carved.Blocks {
		hs.holdMovedBlock(b)
	}
	for _, a := range hs.addresses.ByName {
		if a.moved && a.IP.IsValid() {
			hs.holdMovedRange(a.ledgerOwner(), hs.space.Ledger.UnitRange(a.IP))
		}
	}
}

// holdMovedRange holds a range that is being moved to another cluster, so that it is not granted here (R9).
func (hs *HeldRanges) holdMovedRange(o ledger.Owner, r netipx.IPRange) {
	if !r.IsValid() {
		return
	}
	if hs.space.isRangeHeld(r) {
		return
	}
	hs.AddHeldRange(r, v1alpha1.HeldRange{
		First: r.From().String(), Last: r.To().String(), Reason: v1alpha1.MovedReason, Namespace: o.Namespace, Name: o.Name,
	})
}

// ledgerKeyForRange returns the key of a fact that is keyed by its range, because no object states it.
func ledgerKeyForRange(s ledger.Source, r netipx.IPRange) ledger.Key {
	return ledger.Key{Source: s, UID: types.UID(r.String())}
}

// heldRelease is an item of the annotation release-held, which identifies an entry of status.held.
type heldRelease struct {
	ipRange netipx.IPRange
	id      string
}

// FormatHeldRelease returns the item of the annotation release-held for an entry: the range for the reader, and the
// id that identifies the entry. It is empty for an entry that has no id from a manager yet.
func FormatHeldRelease(h v1alpha1.HeldRange) string {
	r, err := poolutil.ParseRange(h.First + "-" + h.Last)
	if err != nil || h.ID == "" {
		return ""
	}
	return poolutil.ShowRange(r) + "@" + h.ID
}

// ParseHeldReleases parses the annotation release-held: items RANGE@ID, separated by commas.
func ParseHeldReleases(annotation string) ([]string, error) {
	var out []string
	for _, part := range splitHeldReleases(annotation) {
		e, err := parseHeldRelease(part)
		if err != nil {
			return nil, err
		}
		out = append(out, poolutil.ShowRange(e.ipRange)+"@"+e.id)
	}
	return out, nil
}

func splitHeldReleases(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

func parseHeldRelease(part string) (heldRelease, error) {
	addresses, id, found := strings.Cut(part, "@")
	r, err := poolutil.ParseRange(addresses)
	if !found || id == "" || err != nil {
		return heldRelease{}, fmt.Errorf("%q is not RANGE@ID, as in 10.40.0.10-10.40.0.19@x7k2p9qd, with the range and the id of an entry of status.held", text.ShortenText(part, 80))
	}
	return heldRelease{r, id}, nil
}

// ReleaseHeldRanges drops the entries of status.held that the annotation of the pool names. The next commit records
// that, together with the grants from their ranges. An item names an entry by range and id, so an annotation that
// stays, or that comes from another cluster, releases no other entry. A range that is still being moved is held again
// at once, under a new id.
func (hs *HeldRanges) ReleaseHeldRanges() {
	if len(hs.byRange) == 0 || annotations.HasPaused(hs.base.Pool) {
		return
	}
	dropped := false
	for _, part := range splitHeldReleases(hs.base.Pool.GetAnnotations()[v1alpha1.ReleaseHeldAnnotation]) {
		e, err := parseHeldRelease(part)
		if h, ok := hs.byRange[e.ipRange]; err == nil && ok && h.ID == e.id {
			hs.removeHeldRange(e.ipRange)
			dropped = true
		}
	}
	if dropped {
		hs.holdAllMoved()
	}
}

// invalidReleaseMessage returns a message about the first item of the annotation release-held that cannot be parsed,
// or "" if there is none.
func (hs *HeldRanges) invalidReleaseMessage() string {
	if _, err := ParseHeldReleases(hs.base.Pool.GetAnnotations()[v1alpha1.ReleaseHeldAnnotation]); err != nil {
		return fmt.Sprintf("the annotation %s has an entry that releases nothing: %v", v1alpha1.ReleaseHeldAnnotation, err)
	}
	return ""
}

func (hs *HeldRanges) hasMovedRanges() bool {
	for _, h := range hs.byRange {
		if h.Reason == v1alpha1.MovedReason {
			return true
		}
	}
	return false
}
