package leases

import (
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// write is one of those that serve an IPLease.
type write int

const (
	nothing write = iota
	record
	status
)

// lacks is the next write for a lease that is to have r: the record, then the status (R8).
func lacks(m *grants.Memory, c *grants.Claimant, r netipx.IPRange) write {
	switch {
	case !c.HasFinalizer || c.RecordText != r.From().String():
		return record
	case !c.StatusDone || c.PauseTold != "" || c.Shown != r || (m.Base != nil && factsOf(c).network != m.Base.PoolSpec().Network):
		return status
	}
	return nothing
}

// Serve brings a lease that has a grant, or its address already, to its end: the record, then the status (R8).
func (kind) Serve(m *grants.Memory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	r, instead := m.Entitled(c, t)
	if !r.IsValid() {
		return instead
	}
	switch lacks(m, c, r) {
	case record:
		return grants.RecordOn(c, r.From().String())
	case status:
		return allocated(m, c, r)
	case nothing:
	}
	return grants.Nothing()
}

// Release gives up what a deleted lease has: our finalizer goes when no grant is left (R6). The address is free when the
// lease is gone.
func (kind) Release(m *grants.Memory, c *grants.Claimant, _ *grants.Attempt) grants.Step {
	if m.Grants[c.Owner.UID] != nil {
		return grants.Look(grants.EndGrant)
	}
	return grants.Ended(c)
}

// allocated writes the status of a lease that has its address.
func allocated(m *grants.Memory, c *grants.Claimant, r netipx.IPRange) grants.Step {
	message := "allocated " + r.From().String()
	out := statusOf(c, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.AllocatedReason, Message: message,
	})
	out.Name, out.Fulfils = "status", !c.HadAddress
	out.Status["address"], out.Status["network"] = r.From().String(), nil
	if network := m.Base.PoolSpec().Network; network != "" {
		out.Status["network"] = network
	}
	if !c.HadAddress {
		out.Event = grants.Normal("LeaseAllocated", "Allocate", message)
	}
	return out
}

// Refuse writes the status of a lease that gets nothing now. It is tried again as soon as the pool changes.
func (kind) Refuse(c *grants.Claimant, no grants.Refusal) grants.Step {
	out := statusOf(c, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: no.Reason, Message: no.Message,
	})
	out.Name, out.Status["address"], out.Status["network"] = "refusal", nil, nil
	if no.Reason != ipamv1.IPAddressClaimReadyPoolNotReadyReason {
		out.Event = grants.Warning("AllocationFailed", "Allocate", no.Message)
	}
	return out
}

// statusOf is a patch of the status of a lease with a condition.
func statusOf(c *grants.Claimant, set metav1.Condition) grants.Step {
	tmp := &v1alpha1.IPLease{}
	tmp.Generation = factsOf(c).generation
	if c.Status != nil {
		tmp.Status.Conditions = grants.WithoutPause(c.Status.Conditions)
	}
	conditions.Set(tmp, set)
	return grants.Step{Request: grants.Request{Verb: grants.Patch}, Status: map[string]any{
		"observedGeneration": tmp.Generation, grants.ConditionsField: tmp.Status.Conditions,
	}}
}
