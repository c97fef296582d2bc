package tenancy

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// CurrentAllocation is the IPAllocation that exists under the block name of a Cluster.
type CurrentAllocation struct {
	// Pool is the pool that it requests addresses from.
	Pool v1alpha1.PoolReference
	// Count is the number of addresses that it requests.
	Count int32
	// Manual reports whether a user created it: it pins a range, has no count, or has no provider-config label. A
	// manual allocation is left as it is.
	Manual bool
	// Deleting reports whether it has a deletionTimestamp.
	Deleting bool
	// Phase is the phase of its status.
	Phase v1alpha1.AllocationPhase
	// Reason and Message are those of its Ready condition.
	Reason, Message string
}

// NewCurrentAllocation returns the CurrentAllocation for an IPAllocation.
func NewCurrentAllocation(a *v1alpha1.IPAllocation) *CurrentAllocation {
	s := &CurrentAllocation{
		Pool: withDefaultKind(a.Spec.PoolRef), Deleting: a.DeletionTimestamp != nil, Phase: a.Status.Phase,
		Manual: a.Spec.PinnedRange != nil || a.Spec.Count == nil || a.Labels[v1alpha1.ProviderConfigLabel] == "",
	}
	if a.Spec.Count != nil {
		s.Count = *a.Spec.Count
	}
	if ready := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition); ready != nil {
		s.Reason, s.Message = ready.Reason, ready.Message
	}
	return s
}

// KeepDecision returns the decision for a Cluster whose desired size cannot be parsed, with err as the reason. A
// block that was granted stays, and the Cluster is done. Without one, the Cluster waits until the size is corrected.
func (s *CurrentAllocation) KeepDecision(err error) Decision {
	if s != nil && s.Phase == v1alpha1.AllocationAllocated && !s.Deleting {
		return Decision{Action: ActionDone, Reason: v1alpha1.ReadyReason, Message: s.Message + "; " + err.Error()}
	}
	return Decision{Action: ActionExhausted, Reason: v1alpha1.ValidationFailedReason, Message: err.Error()}
}

// waitDecision returns the decision while the next step is the allocator's.
func (s CurrentAllocation) waitDecision(tried []PoolAttempt) Decision {
	d := Decision{Action: ActionWait, Attempts: tried, Reason: v1alpha1.ReconcilingReason, Message: s.Message}
	if s.Phase == v1alpha1.AllocationFailed {
		d.Reason = s.Reason
	}
	if d.Reason == "" {
		d.Reason = v1alpha1.AllocationFailedReason
	}
	if d.Message == "" {
		d.Message = "waiting for " + describePool(withDefaultKind(s.Pool))
	}
	return d
}
