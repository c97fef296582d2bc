package blocks

import (
	"fmt"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Serve brings an IPAllocation that has a grant, or addresses already, to its end: the record, then the status (R8).
// What it remembers stands; a status that says something else is set right.
func (kind) Serve(m *grants.Memory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	r, instead := m.Entitled(c, t)
	if !r.IsValid() {
		return instead
	}
	switch lacks(m, c, r) {
	case record:
		return grants.RecordOn(c, poolutil.FormatRange(r))
	case status:
		return AllocatedBlock(c, r, m.OverlapOf(c), c.SaysAfter(c.Found), t.Now)
	case nothing:
	}
	return grants.Nothing()
}

// Release gives up what a deleted IPAllocation has: the status says when, then our finalizer goes, if no grant is left
// (R6). The addresses are free when the allocation is gone.
func (kind) Release(m *grants.Memory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	switch {
	case m.Grants[c.Owner.UID] != nil:
		return grants.Look(grants.EndGrant)
	case c.HasFinalizer && blockFactsOf(c).phase != v1alpha1.AllocationReleased:
		return grants.Step{Request: grants.Request{Verb: grants.Patch, Name: "release"}, Status: map[string]any{"phase": v1alpha1.AllocationReleased, "releasedAt": metav1.NewTime(t.Now)}}
	}
	return grants.Ended(c)
}

// AllocatedBlock writes the status of an IPAllocation that has addresses.
func AllocatedBlock(c *grants.Claimant, rng netipx.IPRange, overlap string, says grants.Sighting, now time.Time) grants.Step {
	n, shown := poolutil.Size(rng), poolutil.FormatRange(rng)
	b, tmp := blockFactsOf(c), withConditions(c)
	message := fmt.Sprintf("allocated %s: %s", text.Count(n, "IP", "IPs"), shown)
	if b.isPrefix() {
		message = fmt.Sprintf("allocated %s to %s", shown, isFor(c))
	}
	if says == grants.Unseen {
		message += "; " + doesNotExistYet(c)
	}
	if condition := seen(c, says); condition != nil {
		conditions.Set(tmp, *condition)
	}
	conditions.Set(tmp, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason, Message: message,
	})
	shared := metav1.Condition{
		Type: v1alpha1.OverlapCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NoOverlapReason, Message: "nobody else has any of these addresses",
	}
	if overlap != "" {
		shared.Status, shared.Reason, shared.Message = metav1.ConditionTrue, v1alpha1.OverlapReason, overlap
	}
	conditions.Set(tmp, shared)
	at := b.allocatedAt
	if at.IsZero() || (c.Shown.IsValid() && c.Shown != rng) {
		at = now
	}
	out := grants.Step{Request: grants.Request{Verb: grants.Patch, Name: "status"}, Fulfils: !c.HadAddress, Status: map[string]any{
		"phase": v1alpha1.AllocationAllocated, "observedGeneration": b.generation,
		"cidr": shown, "startAddress": rng.From().String(), "endAddress": rng.To().String(),
		"addresses": poolutil.Enumerate(rng)[:listedOf(c, rng)], "allocatedCount": n,
		"allocatedAt": metav1.NewTime(at), "allocatedBy": v1alpha1.AllocatedBy, "releasedAt": nil,
		grants.ConditionsField: tmp.Status.Conditions,
	}}
	if !c.Shown.IsValid() {
		out.Event = grants.Normal("IPsAllocated", "Allocate", message)
	}
	return out
}

// Refuse writes the status of an IPAllocation that gets nothing now. Where only its pool is not ready, or writes fail, it
// waits; else it has failed, and is tried again all the same.
func (kind) Refuse(c *grants.Claimant, no grants.Refusal) grants.Step {
	phase := v1alpha1.AllocationFailed
	if no.Reason == ipamv1.IPAddressClaimReadyPoolNotReadyReason || no.Reason == v1alpha1.WriteFailedReason {
		phase = v1alpha1.AllocationPending
	}
	tmp := withConditions(c)
	conditions.Set(tmp, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: no.Reason, Message: no.Message,
	})
	out := grants.Step{Request: grants.Request{Verb: grants.Patch, Name: "refusal"}, Status: map[string]any{
		"phase": phase, "observedGeneration": blockFactsOf(c).generation,
		"cidr": nil, "startAddress": nil, "endAddress": nil, "addresses": nil, "allocatedCount": 0,
		"allocatedAt": nil, "allocatedBy": nil, grants.ConditionsField: tmp.Status.Conditions,
	}}
	if phase == v1alpha1.AllocationFailed {
		out.Event = grants.Warning("AllocationFailed", "Allocate", no.Message)
	}
	return out
}

// withConditions returns an IPAllocation with the conditions of c, to set one on.
func withConditions(c *grants.Claimant) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{}
	out.Generation = blockFactsOf(c).generation
	if c.Status != nil {
		out.Status.Conditions = grants.WithoutPause(c.Status.Conditions)
	}
	return out
}
