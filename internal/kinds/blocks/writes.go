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

// NextServeStep returns the next step for an IPAllocation that has a grant, or addresses already: the record, then
// the status (R8). The range on record stays valid; a status that differs is corrected.
func (allocationKind) NextServeStep(m *grants.Inventory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	r, instead := m.EntitledRange(c, t)
	if !r.IsValid() {
		return instead
	}
	switch nextWrite(m, c, r) {
	case writeRecord:
		return grants.WriteRecordStep(c, poolutil.FormatRange(r))
	case writeStatus:
		return AllocatedStep(c, r, m.OverlapMessageFor(c), c.NextOwnerSeen(c.ObservedOwnerSeen), t.Now)
	case writeNothing:
	}
	return grants.StopStep()
}

// NextReleaseStep returns the next step that releases a deleted IPAllocation. If no grant is left (R6), it first
// records the time of the release in the status, and then removes our finalizer. The addresses are free when the
// IPAllocation is gone.
func (allocationKind) NextReleaseStep(m *grants.Inventory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	switch {
	case m.Grants.ByClaimant[c.Owner.UID] != nil:
		return grants.NewStep(grants.EndGrant)
	case c.HasFinalizer && allocationDataFor(c).phase != v1alpha1.AllocationReleased:
		return grants.Step{Call: grants.Call{Verb: grants.PatchObject, Purpose: "release"}, StatusPatch: map[string]any{"phase": v1alpha1.AllocationReleased, "releasedAt": metav1.NewTime(t.Now)}}
	}
	return grants.RemoveFinalizerStep(c)
}

// AllocatedStep returns the step that writes the status of an IPAllocation that has addresses.
func AllocatedStep(c *grants.Claimant, rng netipx.IPRange, overlap string, seen grants.OwnerSeen, now time.Time) grants.Step {
	n, shown := poolutil.Size(rng), poolutil.FormatRange(rng)
	b, tmp := allocationDataFor(c), allocationWithConditions(c)
	message := fmt.Sprintf("allocated %s: %s", text.FormatCount(n, "IP", "IPs"), shown)
	if b.isPrefix() {
		message = fmt.Sprintf("allocated %s to %s", shown, ownerDescription(c))
	}
	if seen == grants.OwnerNeverSeen {
		message += "; " + ownerNotFoundMessage(c)
	}
	if condition := ownerSeenCondition(c, seen); condition != nil {
		conditions.Set(tmp, *condition)
	}
	conditions.Set(tmp, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason, Message: message,
	})
	shared := metav1.Condition{
		Type: v1alpha1.OverlapCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NoOverlapReason, Message: "no other claimant has any of these addresses",
	}
	if overlap != "" {
		shared.Status, shared.Reason, shared.Message = metav1.ConditionTrue, v1alpha1.OverlapReason, overlap
	}
	conditions.Set(tmp, shared)
	at := b.allocatedAt
	if at.IsZero() || (c.PublishedRange.IsValid() && c.PublishedRange != rng) {
		at = now
	}
	out := grants.Step{Call: grants.Call{Verb: grants.PatchObject, Purpose: "status"}, FirstPublication: !c.StatusHasAddress, StatusPatch: map[string]any{
		"phase": v1alpha1.AllocationAllocated, "observedGeneration": b.generation,
		"cidr": shown, "startAddress": rng.From().String(), "endAddress": rng.To().String(),
		"addresses": poolutil.Enumerate(rng)[:listedCountFor(c, rng)], "allocatedCount": n,
		"allocatedAt": metav1.NewTime(at), "allocatedBy": v1alpha1.AllocatedBy, "releasedAt": nil,
		grants.ConditionsField: tmp.Status.Conditions,
	}}
	if !c.PublishedRange.IsValid() {
		out.Event = grants.NewNormalEvent("IPsAllocated", "Allocate", message)
	}
	return out
}

// RefusalStep returns the step that writes the status of an IPAllocation that gets nothing now. Its phase is Pending
// if only the pool is not ready or a write fails, and Failed otherwise; it is retried in both phases.
func (allocationKind) RefusalStep(c *grants.Claimant, refusal grants.Refusal) grants.Step {
	phase := v1alpha1.AllocationFailed
	if refusal.Reason == ipamv1.IPAddressClaimReadyPoolNotReadyReason || refusal.Reason == v1alpha1.WriteFailedReason {
		phase = v1alpha1.AllocationPending
	}
	tmp := allocationWithConditions(c)
	conditions.Set(tmp, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message,
	})
	out := grants.Step{Call: grants.Call{Verb: grants.PatchObject, Purpose: "refusal"}, StatusPatch: map[string]any{
		"phase": phase, "observedGeneration": allocationDataFor(c).generation,
		"cidr": nil, "startAddress": nil, "endAddress": nil, "addresses": nil, "allocatedCount": 0,
		"allocatedAt": nil, "allocatedBy": nil, grants.ConditionsField: tmp.Status.Conditions,
	}}
	if phase == v1alpha1.AllocationFailed {
		out.Event = grants.NewWarningEvent("AllocationFailed", "Allocate", refusal.Message)
	}
	return out
}

// allocationWithConditions returns an IPAllocation with the conditions of c, on which further conditions can be set.
func allocationWithConditions(c *grants.Claimant) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{}
	out.Generation = allocationDataFor(c).generation
	if c.Status != nil {
		out.Status.Conditions = grants.RemovePausedCondition(c.Status.Conditions)
	}
	return out
}
