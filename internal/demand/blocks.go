package demand

import (
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// RangeOf is the block of an IPAllocation, as far as it was granted.
func RangeOf(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	if a.Status.Phase != v1alpha1.AllocationAllocated && a.DeletionTimestamp.IsZero() {
		return netipx.IPRange{}, false
	}
	return blocks.RangeOf(a)
}

// granted reports whether an IPAllocation has its block.
func granted(a *v1alpha1.IPAllocation) bool {
	_, is := RangeOf(a)
	return is
}

// stalled reports whether an IPAllocation that was asked for is not about to be granted: its pool has refused it; or grants
// nothing until a person does something about that, or is not a pool of the ProviderConfig any more.
func (c Cluster) stalled(a *v1alpha1.IPAllocation) bool {
	switch {
	case granted(a):
		return false
	case a.Status.Phase == v1alpha1.AllocationFailed:
		return true
	case c.Config == nil:
		return false // its pools are not known
	}
	p := c.poolOf(a)
	return p == nil || !p.Grants()
}

// poolOf is the pool that an IPAllocation asks, nil if it is not one of the ProviderConfig.
func (c Cluster) poolOf(a *v1alpha1.IPAllocation) *tenancy.Pool {
	ref := tenancy.StandingOf(a).Pool
	if at := slices.IndexFunc(c.Pools, func(p tenancy.Pool) bool { return p.Ref == ref }); at >= 0 {
		return &c.Pools[at]
	}
	return nil
}

// blocksOf are what is decided upon: all IPAllocations but those that are not about to be granted. A block that is not
// granted yet is of the family of the pool that it asks.
func (c Cluster) blocksOf(emptied func(types.UID) bool) []elastic.Block {
	var out []elastic.Block
	for _, a := range c.Blocks {
		if c.stalled(a) {
			continue
		}
		b := blockOf(a, emptied(a.UID))
		if p := c.poolOf(a); p != nil && !b.Range.IsValid() {
			b.Family = family(*p)
		}
		out = append(out, b)
	}
	return out
}

func blockOf(a *v1alpha1.IPAllocation, emptied bool) elastic.Block {
	b := elastic.Block{
		Name: a.Name, Count: a.Status.AllocatedCount, Pinned: a.Spec.PinnedRange != nil,
		Grown:    tenancy.Role(a) == v1alpha1.GrowthRole,
		Deleting: !a.DeletionTimestamp.IsZero(),
		Draining: tenancy.Draining(a),
		Emptied:  emptied,
	}
	if r, granted := RangeOf(a); granted {
		b.Range, b.Family = r, elastic.FamilyOf(r.From())
	} else if a.Spec.Count != nil {
		b.Count = int64(*a.Spec.Count)
	}
	if in := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.InUseCondition); in != nil && in.Status == metav1.ConditionFalse {
		b.IdleSince = in.LastTransitionTime.Time
	}
	return b
}

// unmarked are the blocks of which nothing was said yet: one that was just added is in use until it is seen not to be.
func unmarked(all []*v1alpha1.IPAllocation) []elastic.Mark {
	var out []elastic.Mark
	for _, a := range all {
		said := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.InUseCondition) != nil
		if !said && granted(a) && a.DeletionTimestamp.IsZero() && tenancy.Role(a) == v1alpha1.GrowthRole {
			out = append(out, elastic.Mark{Block: a.Name})
		}
	}
	return out
}

// Speaker is the IPAllocation that says whether the Services of a Cluster have what they ask for: the one that the
// Cluster began with, else its oldest; else, for a Cluster that began with nothing, what it asked for in vain. Nil: there is
// none.
func Speaker(all []*v1alpha1.IPAllocation) *v1alpha1.IPAllocation {
	var out *v1alpha1.IPAllocation
	for _, a := range all {
		first := out == nil || (tenancy.Role(out) == v1alpha1.GrowthRole && tenancy.Role(a) != v1alpha1.GrowthRole)
		if first && granted(a) && a.DeletionTimestamp.IsZero() {
			out = a
		}
	}
	if out != nil {
		return out
	}
	for _, a := range all {
		if a.Status.Phase == v1alpha1.AllocationFailed && a.DeletionTimestamp.IsZero() && tenancy.Role(a) == v1alpha1.GrowthRole {
			return a
		}
	}
	return nil
}

// Said is what a Cluster's demand is said to be now; nil: nothing.
func Said(all []*v1alpha1.IPAllocation) *metav1.Condition {
	if on := Speaker(all); on != nil {
		return meta.FindStatusCondition(on.Status.Conditions, v1alpha1.DemandSatisfiedCondition)
	}
	return nil
}
