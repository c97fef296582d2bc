package leases

import (
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// writeKind is a write that serves an IPLease.
type writeKind int

const (
	writeNothing writeKind = iota
	writeRecord
	writeStatus
)

// nextWrite returns the next write for a lease that should have r: the record, then the status (R8).
func nextWrite(m *grants.Inventory, c *grants.Claimant, r netipx.IPRange) writeKind {
	switch {
	case !c.HasFinalizer || c.RecordAnnotation != r.From().String():
		return writeRecord
	case !c.StatusComplete || c.PublishedPauseMessage != "" || c.PublishedRange != r || (m.Base.Pool != nil && leaseDataFor(c).network != m.Base.Pool.PoolSpec().Network):
		return writeStatus
	}
	return writeNothing
}

// NextServeStep returns the next step for a lease that has a grant, or its address already: the record, then the
// status (R8).
func (leaseKind) NextServeStep(m *grants.Inventory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	r, instead := m.EntitledRange(c, t)
	if !r.IsValid() {
		return instead
	}
	switch nextWrite(m, c, r) {
	case writeRecord:
		return grants.WriteRecordStep(c, r.From().String())
	case writeStatus:
		return allocatedStep(m, c, r)
	case writeNothing:
	}
	return grants.StopStep()
}

// NextReleaseStep returns the next step that releases a deleted lease: it removes our finalizer once no grant is left
// (R6). The address is free when the lease is gone.
func (leaseKind) NextReleaseStep(m *grants.Inventory, c *grants.Claimant, _ *grants.Attempt) grants.Step {
	if m.Grants.ByClaimant[c.Owner.UID] != nil {
		return grants.NewStep(grants.EndGrant)
	}
	return grants.RemoveFinalizerStep(c)
}

// allocatedStep returns the step that writes the status of a lease that has its address.
func allocatedStep(m *grants.Inventory, c *grants.Claimant, r netipx.IPRange) grants.Step {
	message := "allocated " + r.From().String()
	out := conditionStep(c, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.AllocatedReason, Message: message,
	})
	out.Purpose, out.FirstPublication = "status", !c.StatusHasAddress
	out.StatusPatch["address"], out.StatusPatch["network"] = r.From().String(), nil
	if network := m.Base.Pool.PoolSpec().Network; network != "" {
		out.StatusPatch["network"] = network
	}
	if !c.StatusHasAddress {
		out.Event = grants.NewNormalEvent("LeaseAllocated", "Allocate", message)
	}
	return out
}

// RefusalStep returns the step that writes the status of a lease that gets nothing now. The lease is tried again as
// soon as the pool changes.
func (leaseKind) RefusalStep(c *grants.Claimant, refusal grants.Refusal) grants.Step {
	out := conditionStep(c, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message,
	})
	out.Purpose, out.StatusPatch["address"], out.StatusPatch["network"] = "refusal", nil, nil
	if refusal.Reason != ipamv1.IPAddressClaimReadyPoolNotReadyReason {
		out.Event = grants.NewWarningEvent("AllocationFailed", "Allocate", refusal.Message)
	}
	return out
}

// conditionStep returns the step that patches a condition into the status of a lease.
func conditionStep(c *grants.Claimant, set metav1.Condition) grants.Step {
	tmp := &v1alpha1.IPLease{}
	tmp.Generation = leaseDataFor(c).generation
	if c.Status != nil {
		tmp.Status.Conditions = grants.RemovePausedCondition(c.Status.Conditions)
	}
	conditions.Set(tmp, set)
	return grants.Step{Call: grants.Call{Verb: grants.PatchObject}, StatusPatch: map[string]any{
		"observedGeneration": tmp.Generation, grants.ConditionsField: tmp.Status.Conditions,
	}}
}
