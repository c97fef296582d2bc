package grants

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// DirectClaimRefusal returns the refusal for a new claim that names a mirror by its own name. It is nil if the pool
// is not a mirror, or if the mirrored pool was handed over for good. The in-cluster provider does not count the
// IPAddress of such a claim, so it would grant the address again as soon as it is started again.
func (m *PoolState) DirectClaimRefusal() *Refusal {
	ref, mirror := incluster.RefForMirror(m.Key.Kind, m.Key.Name)
	if !mirror || m.BasePool == nil || incluster.HasHandedOverAnnotation(m.BasePool) || incluster.IsEnded(m.BasePool) {
		return nil
	}
	return PoolNotReady("%s mirrors %s %s, and the in-cluster provider, if started again, would not know of this address; "+
		"name %s %s in an IPAddressClaim instead, or hand that pool over for good: %s", m.Key, ref.Kind, ref.Name, ref.Kind, ref.Name, incluster.HandOverCommand(m.Key.Namespace, ref))
}

// MirroredClaimRefusal returns the refusal for a new claim that names the mirrored pool. It is nil unless the
// mirrored pool has ended or is about to end. Without this refusal, claims would name a pool that is gone for ever.
func (m *PoolState) MirroredClaimRefusal() *Refusal {
	ref, mirror := incluster.RefForMirror(m.Key.Kind, m.Key.Name)
	if !mirror || m.BasePool == nil {
		return nil
	}
	state := "is being deleted"
	switch {
	case incluster.IsEnded(m.BasePool):
		state = "has ended"
	case m.MirrorDeletionMessage() == "":
		return nil
	}
	return PoolNotReady("%s %s %s, and %s has its addresses; create this object again with a poolRef that names that, as its template has to",
		ref.Kind, ref.Name, state, m.Key)
}

// MirrorDeletionMessage returns the message that names the object that keeps the mirrored pool, if that was handed
// over and is being deleted. It is empty otherwise.
func (m *PoolState) MirrorDeletionMessage() string {
	if _, mirror := incluster.RefForMirror(m.Key.Kind, m.Key.Name); !mirror {
		return ""
	}
	return text.SanitizeMessage(m.BasePool.GetAnnotations()[incluster.EndingAnnotation])
}

// FirstMirroredPoolUser returns the name of the first claim that names the mirrored pool, or of the first IPAddress
// that names it if no claim does. It is empty if none is known.
func (m *PoolState) FirstMirroredPoolUser() string {
	var names []string
	for _, c := range m.Claimants {
		if c.UsesMirroredPool {
			names = append(names, c.Kind.Traits().Name+" "+c.Owner.Namespace+"/"+c.Owner.Name)
		}
	}
	if len(names) == 0 {
		for _, a := range m.Addresses {
			if a.UsesMirroredPool {
				names = append(names, a.DisplayName())
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// MirrorGateway returns the gateway for the IPAddresses of a mirror that is in no network of the pool. It is empty if
// there is none.
func (m *PoolState) MirrorGateway(base v1alpha1.Pool) string {
	if _, mirror := incluster.RefForMirror(m.Key.Kind, m.Key.Name); !mirror {
		return ""
	}
	return base.GetAnnotations()[incluster.GatewayAnnotation]
}

// mirrorProblem returns why a mirror does not have the current spec of its mirrored pool, empty if it has. If another
// writer changes the spec of a mirror, its addresses are in no pool of the in-cluster provider, so nothing of it is
// granted.
func (m *PoolState) mirrorProblem() string {
	source := m.mirroredPoolName()
	if source == "" {
		return ""
	}
	if problem := m.BasePool.GetAnnotations()[incluster.ProblemAnnotation]; problem != "" {
		return text.SanitizeMessage(problem)
	}
	if !incluster.IsSpecSealed(m.BasePool) {
		return fmt.Sprintf("the spec of this pool is not that of %s, which it mirrors, and nothing of it is granted; change %s, the manager writes that spec here", source, source)
	}
	return ""
}

// mirroredPoolName returns the name of the in-cluster provider's pool that this pool mirrors, whose spec a user has
// to change. It is empty if the pool is not a mirror.
func (m *PoolState) mirroredPoolName() string {
	if m.BasePool == nil {
		return ""
	}
	return MirroredPoolName(m.BasePool)
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
func (m *PoolState) EditablePoolName() string { return cmp.Or(m.mirroredPoolName(), "the pool") }

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
const mirrorRemovedMessage = "the mirror before this one was taken away by clusterctl move, or by force, and what was in use of it elsewhere is not known here; " +
	"end the move, which takes this one away, too; if no move is under way, and no other management cluster uses addresses of this pool, remove the annotation " +
	incluster.MovedFromAnnotation + " from it"

// wasMirrorRemoved reports whether an earlier mirror of the same pool was removed here by force. The ranges that it
// held because they were moved to another management cluster are not known.
func (m *PoolState) wasMirrorRemoved() bool {
	from := m.BasePool.GetAnnotations()[incluster.MovedFromAnnotation]
	return from != "" && from == m.ManagementCluster
}

// QuarantineAfterOtherProvider starts a quarantine if the in-cluster provider has served the pool since this manager
// last did: one of its last requests may still be in flight (R10). That provider adds its finalizer to a claim before
// it gives it an address; this manager adds its finalizer together with the record, in one write. The reason Adopting
// of the condition Ready carries the quarantine over a restart: the first commit writes it before any record.
func (m *PoolState) QuarantineAfterOtherProvider(now time.Time, length time.Duration) {
	since := now
	if c := m.AdoptingCondition(); c != nil {
		since = m.quarantineStart(c, now)
	}
	for _, c := range m.Claimants {
		if c.UsesMirroredPool && c.HasFinalizer && c.RecordAnnotation == "" {
			m.setQuarantineEnd(since.Add(length))
			return
		}
	}
}

// IsForeign reports whether another provider created the IPAddress of a claim while this manager served the pool.
// IPAddresses of this manager are created after a record. An IPAddress that a user created has no owners, and a
// restored one has its former owners. One that clusterctl moves arrives while the Cluster is paused, which the status
// of its claim shows.
func (m *PoolState) IsForeign(c *Claimant, a *Address) bool {
	return a.UsesMirroredPool && !a.CreatedManually && a.ClaimantUID == c.Owner.UID && c.PauseMessage == "" && c.PublishedPauseMessage == "" &&
		!m.SoleWriterSince.IsZero() && a.CreatedUnix > m.apiServerTime(m.SoleWriterSince).Unix()
}
