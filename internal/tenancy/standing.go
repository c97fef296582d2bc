package tenancy

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Standing is the IPAllocation that a Cluster has under its Name now.
type Standing struct {
	// Pool that it asks.
	Pool v1alpha1.PoolReference
	// Count of addresses it asks for.
	Count int32
	// Manual is whether somebody else made it: it pins a range, names no count, or has no provider-config
	// label. It is left as it is.
	Manual bool
	// Deleting is whether it has a deletionTimestamp.
	Deleting bool
	// Phase of its status.
	Phase v1alpha1.AllocationPhase
	// Reason and Message of its Ready condition.
	Reason, Message string
}

// StandingOf describes an allocation.
func StandingOf(a *v1alpha1.IPAllocation) *Standing {
	s := &Standing{
		Pool: withKind(a.Spec.PoolRef), Deleting: a.DeletionTimestamp != nil, Phase: a.Status.Phase,
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

// Keep is what is said where the size that a Cluster is to have cannot be read: what it was given stays, and is all it
// needs. Without a block it has to wait until that is put right.
func (s *Standing) Keep(err error) Decision {
	if s != nil && s.Phase == v1alpha1.AllocationAllocated && !s.Deleting {
		return Decision{Action: Done, Reason: v1alpha1.ReadyReason, Message: s.Message + "; " + err.Error()}
	}
	return Decision{Action: Exhausted, Reason: v1alpha1.ValidationFailedReason, Message: err.Error()}
}

// wait is what is said while the allocator has the word.
func (s Standing) wait(tried []Attempt) Decision {
	d := Decision{Action: Wait, Tried: tried, Reason: v1alpha1.ReconcilingReason, Message: s.Message}
	if s.Phase == v1alpha1.AllocationFailed {
		d.Reason = s.Reason
	}
	if d.Reason == "" {
		d.Reason = v1alpha1.AllocationFailedReason
	}
	if d.Message == "" {
		d.Message = "waiting for " + describe(withKind(s.Pool))
	}
	return d
}
