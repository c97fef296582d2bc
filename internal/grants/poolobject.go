package grants

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Base is the pool as an object: its key, and the version that the next commit is based on, which is nil if the pool
// does not exist. That version is replaced as a whole and never modified. Base answers what its spec and its status
// alone answer.
type Base struct {
	Key pools.Key
	// Pool is the pool as the last write of this manager, or a newer read, returned it.
	Pool       v1alpha1.Pool
	generation int64
}

// addAddressesAdvice returns the advice for a pool whose spec leaves no address. For a mirror the advice names the
// mirrored pool, because the spec comes from there.
func (b *Base) addAddressesAdvice() string {
	if source := b.mirroredPoolName(); source != "" {
		return fmt.Sprintf("add addresses to %s, or exclude fewer", source)
	}
	return poolspec.AdviceAddAddresses
}

// reuseGraceNote returns a note that released addresses are not free at once. It is empty if the pool has no reuse
// grace period.
func (b *Base) reuseGraceNote() string {
	if b.reuseGracePeriod() == 0 {
		return ""
	}
	return fmt.Sprintf(": what is released becomes free by itself after addressReuseGracePeriodSeconds (%d)", int(b.reuseGracePeriod().Seconds()))
}

// recordedBlockPrefix returns the prefix that status.blocks has for the IPAllocation of a name. It is not valid if
// there is none.
func (b *Base) recordedBlockPrefix(name string) netip.Prefix {
	for _, on := range b.Pool.PoolStatus().Blocks {
		if on.Allocation == name {
			p, _ := netip.ParsePrefix(on.Range)
			return p
		}
	}
	return netip.Prefix{}
}

// isBlockOpenWithUID reports whether the block of a name and a UID is open on record.
func (b *Base) isBlockOpenWithUID(name string, uid types.UID) bool {
	return b.Pool != nil && slices.ContainsFunc(b.Pool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Allocation == name && on.UID == string(uid)
	})
}

// isCarved reports whether the pool takes its addresses from another pool.
func (b *Base) isCarved() bool { return b.Pool != nil && b.Pool.PoolSpec().Carve != nil }

// parentKey returns the pool that this pool is carved from, or the zero key if it is not carved.
func (b *Base) parentKey() pools.Key {
	if b.Pool == nil {
		return pools.Key{}
	}
	parent, _ := pools.ParentPoolKey(b.Pool)
	return parent
}

// IsBlockOpen reports whether the block of a name is open on record.
func (b *Base) IsBlockOpen(name string) bool {
	return b.Pool != nil && slices.ContainsFunc(b.Pool.PoolStatus().Blocks, func(block v1alpha1.CarvedBlock) bool { return block.Allocation == name })
}

// OpenBlockRanges returns the ranges of the blocks that are open on record.
func (b *Base) OpenBlockRanges() (out []netipx.IPRange) {
	if b.Pool == nil {
		return nil
	}
	for _, on := range b.Pool.PoolStatus().Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil {
			out = append(out, netipx.RangeOfPrefix(p))
		}
	}
	return out
}

// coolingPeriodFor returns how long the released range of a claimant cools down, 0 if it does not.
func (b *Base) coolingPeriodFor(c *Claimant) time.Duration {
	if c.UsedByOthers && b.Pool != nil {
		return max(b.reuseGracePeriod(), InUseCoolingPeriod)
	}
	return b.reuseGracePeriod()
}

// maxCoolingPeriod returns how long an entry may cool down at most. An entry without a name may be that of an address
// in use by a foreign machine (P7); its text does not show that, so the longer period applies.
func (b *Base) maxCoolingPeriod(rest cooling.Entry) time.Duration {
	grace := b.reuseGracePeriod()
	if grace == 0 || rest.Claim.Name == "" {
		return max(grace, InUseCoolingPeriod)
	}
	return grace
}

// reuseGracePeriod returns how long an address cools down before another claimant gets it, 0 if it does not.
func (b *Base) reuseGracePeriod() time.Duration {
	if b.Pool == nil {
		return 0
	}
	return time.Duration(max(0, ptr.Deref(b.Pool.PoolSpec().AddressReuseGracePeriodSeconds, 0))) * time.Second
}

// CanFinishMove reports whether our finalizers may be removed from a claimant that clusterctl has moved.
func (b *Base) CanFinishMove(c *Claimant) bool {
	return c.Moved && c.canFinishMove(b.recordedHeldRanges())
}

// recordedHeldRanges returns the ranges that the status of the pool records as held. If the pool does not exist,
// everything is held, because nothing is granted.
func (b *Base) recordedHeldRanges() heldRangeSet {
	if b.Pool == nil {
		return nil
	}
	var held netipx.IPSetBuilder
	for _, h := range b.Pool.PoolStatus().Held {
		if r, err := poolutil.ParseRange(h.First + "-" + h.Last); err == nil {
			held.AddRange(r)
		}
	}
	set, err := held.IPSet()
	if err != nil {
		return heldRangeSet{} // no range is known to be held
	}
	return append(heldRangeSet{}, set.Ranges()...)
}

// PauseMessageFor returns a message about what pauses a claimant, or "" if nothing does. g is the state of its
// Cluster.
func (b *Base) PauseMessageFor(c *Claimant, g ClusterState) string {
	switch {
	case c.Paused:
		return fmt.Sprintf("%s has the annotation %s; remove it to resume", c.Owner.Kind, clusterv1.PausedAnnotation)
	case g == ClusterPaused:
		return fmt.Sprintf("Cluster %s is paused; resume it to go on", c.Cluster)
	case b.Pool != nil && annotations.HasPaused(b.Pool):
		if source := pausingPoolName(b.Pool); source != "" {
			return fmt.Sprintf("%s is paused with %s; remove the annotation %s of the latter to resume", b.Key, source, clusterv1.PausedAnnotation)
		}
		return fmt.Sprintf("%s is paused; remove its annotation %s to resume", b.Key, clusterv1.PausedAnnotation)
	}
	return ""
}

// usesReleaseOrder reports whether claims get the addresses that were released longest ago.
func (b *Base) usesReleaseOrder() bool {
	return b.Pool != nil && b.Pool.PoolSpec().AllocationOrder == v1alpha1.LeastRecentlyUsedOrder
}

// invalidReleaseMessage returns a message about the first item of the annotation release-held that cannot be parsed,
// or "" if there is none.
func (b *Base) invalidReleaseMessage() string {
	if _, err := ParseHeldReleases(b.Pool.GetAnnotations()[v1alpha1.ReleaseHeldAnnotation]); err != nil {
		return fmt.Sprintf("the annotation %s has an entry that releases nothing: %v", v1alpha1.ReleaseHeldAnnotation, err)
	}
	return ""
}

// AdoptingCondition returns the condition Ready if it shows a quarantine that is not over, nil otherwise.
func (b *Base) AdoptingCondition() *metav1.Condition {
	c := meta.FindStatusCondition(b.Pool.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil || c.Reason != v1alpha1.AdoptingReason {
		return nil
	}
	return c
}
