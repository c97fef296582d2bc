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

// GrantedRange returns the range of an IPAllocation that is allocated or being deleted; false if it has none.
func GrantedRange(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	if a.Status.Phase != v1alpha1.AllocationAllocated && a.DeletionTimestamp.IsZero() {
		return netipx.IPRange{}, false
	}
	return blocks.RangeForAllocation(a)
}

// isGranted reports whether an IPAllocation has its block.
func isGranted(a *v1alpha1.IPAllocation) bool {
	_, ok := GrantedRange(a)
	return ok
}

// isStalled reports whether an IPAllocation is not granted and not about to be: its pool has refused it, grants
// nothing until a user changes something, or is no longer a pool of the ProviderConfig.
func (c Cluster) isStalled(a *v1alpha1.IPAllocation) bool {
	switch {
	case isGranted(a):
		return false
	case a.Status.Phase == v1alpha1.AllocationFailed:
		return true
	case c.ProviderConfig == nil:
		return false // its pools are not known
	}
	p := c.poolForAllocation(a)
	return p == nil || !p.MayGrant()
}

// poolForAllocation returns the pool that an IPAllocation requests from, nil if the ProviderConfig does not name it.
func (c Cluster) poolForAllocation(a *v1alpha1.IPAllocation) *tenancy.Pool {
	ref := tenancy.NewCurrentAllocation(a).Pool
	if at := slices.IndexFunc(c.Pools, func(p tenancy.Pool) bool { return p.Ref == ref }); at >= 0 {
		return &c.Pools[at]
	}
	return nil
}

// decidedBlocks returns the blocks to decide on: all IPAllocations except stalled ones. A block that is not granted
// yet has the family of the pool that it requests from.
func (c Cluster) decidedBlocks(emptied func(types.UID) bool) []elastic.Block {
	var out []elastic.Block
	for _, a := range c.Blocks {
		if c.isStalled(a) {
			continue
		}
		b := newBlock(a, emptied(a.UID))
		if p := c.poolForAllocation(a); p != nil && !b.Range.IsValid() {
			b.Family = poolFamily(*p)
		}
		out = append(out, b)
	}
	return out
}

func newBlock(a *v1alpha1.IPAllocation, emptied bool) elastic.Block {
	b := elastic.Block{
		Name: a.Name, Count: a.Status.AllocatedCount, Pinned: a.Spec.PinnedRange != nil,
		AddedOnDemand: tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole,
		Deleting:      !a.DeletionTimestamp.IsZero(),
		Draining:      tenancy.IsDraining(a),
		Emptied:       emptied,
	}
	if r, granted := GrantedRange(a); granted {
		b.Range, b.Family = r, elastic.AddressFamily(r.From())
	} else if a.Spec.Count != nil {
		b.Count = int64(*a.Spec.Count)
	}
	if in := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.InUseCondition); in != nil && in.Status == metav1.ConditionFalse {
		b.IdleSince = in.LastTransitionTime.Time
	}
	return b
}

// initialUsageChanges returns a change for each granted growth block without the condition InUse: a block that was
// just added counts as in use until it is seen to be idle.
func initialUsageChanges(all []*v1alpha1.IPAllocation) []elastic.UsageChange {
	var out []elastic.UsageChange
	for _, a := range all {
		hasCondition := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.InUseCondition) != nil
		if !hasCondition && isGranted(a) && a.DeletionTimestamp.IsZero() && tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole {
			out = append(out, elastic.UsageChange{Block: a.Name})
		}
	}
	return out
}

// ConditionHolder returns the IPAllocation whose condition shows whether the Services of a Cluster have the addresses
// that they ask for: the initial one, else the oldest; else, for a Cluster that began without a block, a growth
// request that failed. It returns nil if there is none.
func ConditionHolder(all []*v1alpha1.IPAllocation) *v1alpha1.IPAllocation {
	var out *v1alpha1.IPAllocation
	for _, a := range all {
		first := out == nil || (tenancy.RoleForAllocation(out) == v1alpha1.GrowthRole && tenancy.RoleForAllocation(a) != v1alpha1.GrowthRole)
		if first && isGranted(a) && a.DeletionTimestamp.IsZero() {
			out = a
		}
	}
	if out != nil {
		return out
	}
	for _, a := range all {
		if a.Status.Phase == v1alpha1.AllocationFailed && a.DeletionTimestamp.IsZero() && tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole {
			return a
		}
	}
	return nil
}

// CurrentCondition returns the condition DemandSatisfied that a Cluster has now, nil if it has none.
func CurrentCondition(all []*v1alpha1.IPAllocation) *metav1.Condition {
	if on := ConditionHolder(all); on != nil {
		return meta.FindStatusCondition(on.Status.Conditions, v1alpha1.DemandSatisfiedCondition)
	}
	return nil
}
