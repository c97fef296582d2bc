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

// planStatusBlocks returns the blocks that the next commit writes to status.blocks.
func (gr *Growth) planStatusBlocks(spec *v1alpha1.Carve, d carve.Decision, now time.Time) []v1alpha1.CarvedBlock {
	var out []v1alpha1.CarvedBlock
	for _, on := range gr.base.Pool.PoolStatus().Blocks {
		if slices.Contains(d.Close, on.Allocation) {
			continue
		}
		on.Draining = (on.Draining || slices.Contains(d.Drain, on.Allocation)) && !slices.Contains(d.EndDraining, on.Allocation)
		gr.updateBlockEntry(spec, &on, now)
		out = append(out, on)
	}
	for _, name := range d.Open {
		b := gr.carved.Blocks[name]
		on := v1alpha1.CarvedBlock{Range: b.Prefix.String(), Allocation: name, UID: string(b.UID)}
		gr.updateBlockEntry(spec, &on, now)
		out = slices.DeleteFunc(out, func(old v1alpha1.CarvedBlock) bool { return old.Range == on.Range }) // on replaces it
		out = append(out, on)
	}
	slices.SortFunc(out, func(a, b v1alpha1.CarvedBlock) int {
		x, _ := netip.ParsePrefix(a.Range)
		y, _ := netip.ParsePrefix(b.Range)
		return x.Addr().Compare(y.Addr())
	})
	return out
}

// updateBlockEntry updates an entry of status.blocks: the UID of its IPAllocation, the network of its addresses, and
// how many of them are in use since when.
func (gr *Growth) updateBlockEntry(spec *v1alpha1.Carve, on *v1alpha1.CarvedBlock, now time.Time) {
	p, err := netip.ParsePrefix(on.Range)
	if err != nil {
		return
	}
	if b := gr.carved.Blocks[on.Allocation]; b != nil && b.Prefix == p && !b.Deleting {
		on.UID = string(b.UID)
	}
	switch network := gr.carved.Parent.NetworkFor; {
	case spec.Network == v1alpha1.RoutedNetwork:
		on.Prefix, on.Gateway = poolutil.RoutedNetwork(p, spec.Gateway == v1alpha1.LastGateway)
	case network != nil:
		on.Prefix, on.Gateway = network(p.Addr())
	case on.Prefix == 0:
		on.Prefix = int32(p.Bits())
	}
	on.InUse, _ = gr.space.Ledger.UsageInRange(netipx.RangeOfPrefix(p))
	switch {
	case on.InUse > 0:
		on.IdleSince = nil
	case on.IdleSince == nil:
		since := metav1.NewTime(now.Truncate(time.Second))
		on.IdleSince = &since
	}
}

// setDrainedRanges blocks new grants from the blocks that drain or that a decision drains or closes. A range stays
// blocked until the status records that it does not drain any more.
func (gr *Growth) setDrainedRanges(d carve.Decision) {
	drained := map[netip.Prefix]struct{}{}
	for _, on := range gr.base.Pool.PoolStatus().Blocks {
		drains := on.Draining || slices.Contains(d.Drain, on.Allocation) || slices.Contains(d.Close, on.Allocation)
		if p, err := netip.ParsePrefix(on.Range); err == nil && drains && !slices.Contains(d.EndDraining, on.Allocation) {
			drained[p] = struct{}{}
			gr.space.Ledger.AddFact(ledger.Fact{Key: ledgerKeyForDrain(p), Owner: ledger.Owner{Name: on.Allocation}, Range: netipx.RangeOfPrefix(p)})
		}
	}
	for p := range gr.carved.drainedPrefixes {
		if _, still := drained[p]; !still {
			gr.space.Ledger.RemoveFact(ledgerKeyForDrain(p))
		}
	}
	gr.carved.drainedPrefixes = drained
}

func ledgerKeyForDrain(p netip.Prefix) ledger.Key {
	return ledger.Key{Source: ledger.SourceDraining, UID: types.UID(p.String())}
}

// equalBlockAddresses reports whether two entries of status.blocks are equal for the layout.
func equalBlockAddresses(a, b v1alpha1.CarvedBlock) bool {
	return a.Range == b.Range && a.Prefix == b.Prefix && a.Gateway == b.Gateway
}

// equalBlockEntries reports whether two entries of status.blocks are equal apart from their numbers.
func equalBlockEntries(a, b v1alpha1.CarvedBlock) bool {
	return equalBlockAddresses(a, b) && a.Allocation == b.Allocation && a.UID == b.UID && a.Draining == b.Draining
}

// BlocksChanged reports whether the blocks of two versions of a pool differ in more than numbers, so that there may
// be something to do: another block is open, or a block has become idle, which the pool keeps for a limited time
// only.
func BlocksChanged(a, b v1alpha1.Pool) bool {
	return !slices.EqualFunc(a.PoolStatus().Blocks, b.PoolStatus().Blocks, func(a, b v1alpha1.CarvedBlock) bool {
		return equalBlockEntries(a, b) && a.IdleSince.Equal(b.IdleSince)
	})
}
