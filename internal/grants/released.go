package grants

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

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
