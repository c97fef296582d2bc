package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// nextBlocks is what the next commit says of the blocks.
func (m *Memory) nextBlocks(spec *v1alpha1.Carve, d carve.Decision, now time.Time) []v1alpha1.CarvedBlock {
	var out []v1alpha1.CarvedBlock
	for _, on := range m.Base.PoolStatus().Blocks {
		if slices.Contains(d.Close, on.Allocation) {
			continue
		}
		on.Draining = (on.Draining || slices.Contains(d.Drain, on.Allocation)) && !slices.Contains(d.Keep, on.Allocation)
		m.describeBlock(spec, &on, now)
		out = append(out, on)
	}
	for _, name := range d.Open {
		b := m.Carved.Blocks[name]
		on := v1alpha1.CarvedBlock{Range: b.Prefix.String(), Allocation: name, UID: string(b.UID)}
		m.describeBlock(spec, &on, now)
		out = slices.DeleteFunc(out, func(old v1alpha1.CarvedBlock) bool { return old.Range == on.Range }) // it replaces that
		out = append(out, on)
	}
	slices.SortFunc(out, func(a, b v1alpha1.CarvedBlock) int {
		x, _ := netip.ParsePrefix(a.Range)
		y, _ := netip.ParsePrefix(b.Range)
		return x.Addr().Compare(y.Addr())
	})
	return out
}

// describeBlock brings an entry up to date: the network of its addresses, and how many are in use.
func (m *Memory) describeBlock(spec *v1alpha1.Carve, on *v1alpha1.CarvedBlock, now time.Time) {
	p, err := netip.ParsePrefix(on.Range)
	if err != nil {
		return
	}
	if b := m.Carved.Blocks[on.Allocation]; b != nil && b.Prefix == p && !b.Deleting {
		on.UID = string(b.UID)
	}
	switch network := m.Carved.Parent.Network; {
	case spec.Network == v1alpha1.RoutedNetwork:
		on.Prefix, on.Gateway = poolutil.Routed(p, spec.Gateway == v1alpha1.LastGateway)
	case network != nil:
		on.Prefix, on.Gateway = network(p.Addr())
	case on.Prefix == 0:
		on.Prefix = int32(p.Bits())
	}
	on.InUse, _ = m.Ledger.InPart(netipx.RangeOfPrefix(p))
	switch {
	case on.InUse > 0:
		on.IdleSince = nil
	case on.IdleSince == nil:
		since := metav1.NewTime(now.Truncate(time.Second))
		on.IdleSince = &since
	}
}

// stateDrained keeps from being granted what drains or is to be closed: from now on, and until it is on record no more.
func (m *Memory) stateDrained(d carve.Decision) {
	is := map[netip.Prefix]struct{}{}
	for _, on := range m.Base.PoolStatus().Blocks {
		drains := on.Draining || slices.Contains(d.Drain, on.Allocation) || slices.Contains(d.Close, on.Allocation)
		if p, err := netip.ParsePrefix(on.Range); err == nil && drains && !slices.Contains(d.Keep, on.Allocation) {
			is[p] = struct{}{}
			m.Ledger.Add(ledger.Fact{Key: drainKey(p), Owner: ledger.Owner{Name: on.Allocation}, Range: netipx.RangeOfPrefix(p)})
		}
	}
	for p := range m.Carved.drained {
		if _, still := is[p]; !still {
			m.Ledger.Remove(drainKey(p))
		}
	}
	m.Carved.drained = is
}

func drainKey(p netip.Prefix) ledger.Key {
	return ledger.Key{Source: ledger.Draining, UID: types.UID(p.String())}
}

// sameAddresses reports whether two entries of status.blocks are the same for the layout.
func sameAddresses(a, b v1alpha1.CarvedBlock) bool {
	return a.Range == b.Range && a.Prefix == b.Prefix && a.Gateway == b.Gateway
}

// sameBlock reports whether two entries of status.blocks differ in numbers alone.
func sameBlock(a, b v1alpha1.CarvedBlock) bool {
	return sameAddresses(a, b) && a.Allocation == b.Allocation && a.UID == b.UID && a.Draining == b.Draining
}

// BlocksTurned reports whether the blocks of two states of a pool differ in more than numbers, so that there may be something
// to do: another block is open, or one is idle, which it may be for a while only.
func BlocksTurned(a, b v1alpha1.Pool) bool {
	return !slices.EqualFunc(a.PoolStatus().Blocks, b.PoolStatus().Blocks, func(a, b v1alpha1.CarvedBlock) bool {
		return sameBlock(a, b) && a.IdleSince.Equal(b.IdleSince)
	})
}
