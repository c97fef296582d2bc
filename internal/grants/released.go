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

// maxReleased bounds status.released, in bytes: some 300 single addresses of IPv4. It is written with every grant.
const maxReleased = 4 << 10

const releasedSeparator = ", "

// byRelease reports whether claims get what was released longest ago.
func (m *Memory) byRelease() bool {
	return m.Base != nil && m.Base.PoolSpec().AllocationOrder == v1alpha1.LeastRecentlyUsedOrder
}

// released is what status.released is to say: as many of the last releases as there is room for.
func (m *Memory) released() string {
	var texts []string
	size := 0
	for r := range m.runs() {
		text := poolutil.ShowRange(r)
		if size += len(releasedSeparator) + len(text); size > maxReleased {
			break
		}
		texts = append(texts, text)
	}
	slices.Reverse(texts)
	return strings.Join(texts, releasedSeparator)
}

// runs are the releases, the last one first. Those of addresses one after the other, in their order, are one range: of a
// range the lowest address counts as released first.
func (m *Memory) runs() iter.Seq[netipx.IPRange] {
	return func(yield func(netipx.IPRange) bool) {
		var run netipx.IPRange
		for r := range m.Ledger.Releases() {
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

// recallReleases takes the order of releases from a status, before anything of the pool is known to be in use. What rests
// was released after all that does not.
func (m *Memory) recallReleases(status *v1alpha1.NetworkPoolStatus) {
	for text := range strings.SplitSeq(status.Released, ",") {
		if r, err := poolutil.ParseRange(strings.TrimSpace(text)); err == nil { // what cannot be read, no manager has written
			m.Ledger.Recall(r)
		}
	}
	rests, _ := cooling.Parse(status.Cooling)
	slices.SortStableFunc(rests, func(a, b cooling.Rest) int {
		return cmp.Or(a.Until.Compare(b.Until), a.Range.From().Compare(b.Range.From()))
	})
	for _, rest := range rests {
		m.Ledger.Recall(rest.Range)
	}
}
