package grants

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// BasePool is the pool as an object: its key, and the version that the next commit is based on, which is nil if the
// pool does not exist. That version is replaced as a whole and never modified. BasePool answers what its spec and its
// status alone answer.
type BasePool struct {
	Key pools.Key
	// Pool is the pool as the last write of this manager, or a newer read, returned it.
	Pool       v1alpha1.Pool
	generation int64
}

// addAddressesAdvice returns the advice for a pool whose spec leaves no address. For a mirror the advice names the
// mirrored pool, because the spec comes from there.
func (b *BasePool) addAddressesAdvice() string {
	if source := b.mirroredPoolName(); source != "" {
		return fmt.Sprintf("add addresses to %s, or exclude fewer", source)
	}
	return poolspec.AdviceAddAddresses
}

// recordedBlockPrefix returns the prefix that status.blocks has for the IPAllocation of a name. It is not valid if
// there is none.
func (b *BasePool) recordedBlockPrefix(name string) netip.Prefix {
	for _, on := range b.Pool.PoolStatus().Blocks {
		if on.Allocation == name {
			p, _ := netip.ParsePrefix(on.Range)
			return p
		}
	}
	return netip.Prefix{}
}

// isBlockOpenWithUID reports whether the block of a name and a UID is open on record.
func (b *BasePool) isBlockOpenWithUID(name string, uid types.UID) bool {
	return b.Pool != nil && slices.ContainsFunc(b.Pool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Allocation == name && on.UID == string(uid)
	})
}

// isCarved reports whether the pool takes its addresses from another pool.
func (b *BasePool) isCarved() bool { return b.Pool != nil && b.Pool.PoolSpec().Carve != nil }

// parentKey returns the pool that this pool is carved from, or the zero key if it is not carved.
func (b *BasePool) parentKey() pools.Key {
	if b.Pool == nil {
		return pools.Key{}
	}
	parent, _ := pools.ParentPoolKey(b.Pool)
	return parent
}

// IsBlockOpen reports whether the block of a name is open on record.
func (b *BasePool) IsBlockOpen(name string) bool {
	return b.Pool != nil && slices.ContainsFunc(b.Pool.PoolStatus().Blocks, func(block v1alpha1.CarvedBlock) bool { return block.Allocation == name })
}

// OpenBlockRanges returns the ranges of the blocks that are open on record.
func (b *BasePool) OpenBlockRanges() (out []netipx.IPRange) {
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

// DirectClaimRefusal returns the refusal for a new claim that names a mirror by its own name. It is nil if the pool
// is not a mirror, or if the mirrored pool was handed over for good. The in-cluster provider does not count the
// IPAddress of such a claim, so it would grant the address again as soon as it is started again.
func (b *BasePool) DirectClaimRefusal() *Refusal {
	ref, mirror := incluster.RefForMirror(b.Key.Kind, b.Key.Name)
	if !mirror || b.Pool == nil || incluster.HasHandedOverAnnotation(b.Pool) || incluster.IsEnded(b.Pool) {
		return nil
	}
	return PoolNotReady("%s mirrors %s %s, and the in-cluster provider, if started again, would not know of this address; "+
		"name %s %s in an IPAddressClaim instead, or hand that pool over for good: %s", b.Key, ref.Kind, ref.Name, ref.Kind, ref.Name, incluster.HandOverCommand(b.Key.Namespace, ref))
}

// MirroredClaimRefusal returns the refusal for a new claim that names the mirrored pool. It is nil unless the
// mirrored pool has ended or is about to end. Without this refusal, claims would name a pool that is gone for ever.
func (b *BasePool) MirroredClaimRefusal() *Refusal {
	ref, mirror := incluster.RefForMirror(b.Key.Kind, b.Key.Name)
	if !mirror || b.Pool == nil {
		return nil
	}
	state := "is being deleted"
	switch {
	case incluster.IsEnded(b.Pool):
		state = "has ended"
	case b.MirrorDeletionMessage() == "":
		return nil
	}
	return PoolNotReady("%s %s %s, and %s has its addresses; create this object again with a poolRef that names that, as its template has to",
		ref.Kind, ref.Name, state, b.Key)
}

// MirrorDeletionMessage returns the message that names the object that keeps the mirrored pool, if that was handed
// over and is being deleted. It is empty otherwise.
func (b *BasePool) MirrorDeletionMessage() string {
	if _, mirror := incluster.RefForMirror(b.Key.Kind, b.Key.Name); !mirror {
		return ""
	}
	return text.SanitizeMessage(b.Pool.GetAnnotations()[incluster.EndingAnnotation])
}

// MirrorGateway returns the gateway for the IPAddresses of a mirror that is in no network of the pool. It is empty if
// there is none.
func (b *BasePool) MirrorGateway(base v1alpha1.Pool) string {
	if _, mirror := incluster.RefForMirror(b.Key.Kind, b.Key.Name); !mirror {
		return ""
	}
	return base.GetAnnotations()[incluster.GatewayAnnotation]
}

// mirrorProblem returns why a mirror does not have the current spec of its mirrored pool, empty if it has. If another
// writer changes the spec of a mirror, its addresses are in no pool of the in-cluster provider, so nothing of it is
// granted.
func (b *BasePool) mirrorProblem() string {
	source := b.mirroredPoolName()
	if source == "" {
		return ""
	}
	if problem := b.Pool.GetAnnotations()[incluster.ProblemAnnotation]; problem != "" {
		return text.SanitizeMessage(problem)
	}
	if !incluster.IsSpecSealed(b.Pool) {
		return fmt.Sprintf("the spec of this pool is not that of %s, which it mirrors, and nothing of it is granted; change %s, the manager writes that spec here", source, source)
	}
	return ""
}

// mirroredPoolName returns the name of the in-cluster provider's pool that this pool mirrors, whose spec a user has
// to change. It is empty if the pool is not a mirror.
func (b *BasePool) mirroredPoolName() string {
	if b.Pool == nil {
		return ""
	}
	return MirroredPoolName(b.Pool)
}

// MirroredPoolName returns the name of the mirrored pool with its namespace, empty if the pool is not a mirror. A
// user has to change that pool: the manager reverts changes of a mirror.
func MirroredPoolName(pool v1alpha1.Pool) string {
	ref, ok := incluster.MirroredPool(pool)
	if !ok {
		return ""
	}
	return pools.Key{Kind: ref.Kind, Namespace: pool.GetNamespace(), Name: ref.Name}.String()
}

// EditablePoolName returns how messages name the pool whose spec a user has to change.
func (b *BasePool) EditablePoolName() string { return cmp.Or(b.mirroredPoolName(), "the pool") }

// pausingPoolName returns the name of the mirrored pool if the annotation that pauses this pool has to be removed
// there. It is empty if it has to be removed from this pool. A mirror is paused with its mirrored pool until that is
// handed over.
func pausingPoolName(pool v1alpha1.Pool) string {
	if incluster.HasHandedOverAnnotation(pool) {
		return ""
	}
	return MirroredPoolName(pool)
}

// mirrorRemovedMessage is the message of a mirror that was created again in the middle of a move.
const mirrorRemovedMessage = "the previous mirror was deleted by clusterctl move, or by force, and its addresses in use elsewhere are unknown here; " +
	"end the move, which deletes this one too; if no move is under way, and no other management cluster uses addresses of this pool, remove the annotation " +
	incluster.MovedFromAnnotation + " from it"

// usesReleaseOrder reports whether claims get the addresses that were released longest ago.
func (b *BasePool) usesReleaseOrder() bool {
	return b.Pool != nil && b.Pool.PoolSpec().AllocationOrder == v1alpha1.LeastRecentlyUsedOrder
}
