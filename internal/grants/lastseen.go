package grants

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
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
