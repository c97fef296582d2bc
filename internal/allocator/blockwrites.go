package allocator

import (
	"fmt"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// serve brings an IPAllocation that has a grant, or addresses already, to its end: the record, then the status (R8).
// What it remembers stands; a status that says something else is set right.
func (blocks) serve(p *memory, c *claimant, t *attempt) step {
	var r netipx.IPRange
	switch {
	case adopts(p, c):
		r = c.shown
	case c.hasRecord():
		r = c.record
	}
	if g := p.grants[c.owner.UID]; g != nil && !g.confirmed {
		if t.grant == nil {
			return nothing() // this job has waited
		}
		r = g.rng
		if err := p.heldByAnother(c, g); err != nil {
			return fails(err)
		}
	}
	if !r.IsValid() {
		return nothing()
	}
	text, b, overlap, says := poolutil.FormatRange(r), blockFactsOf(c), p.overlapOf(c), c.saysAfter(c.found)
	switch {
	case c.hasRecord() && c.record != r && t.ours != c.rv: // somebody recorded another block
		return look(lookAtTerm)
	case !c.hasFinalizer || c.recordText != text:
		return recordOn(c, text)
	case c.statusDone && c.pauseTold == "" && c.shown == r && b.overlap == overlap && says == c.told:
		return nothing()
	}
	return allocatedBlock(c, r, overlap, says, t.now)
}

// release gives up what a deleted IPAllocation has: the status says when, then our finalizer goes, if no grant is left
// (R6). The addresses are free when the allocation is gone.
func (blocks) release(p *memory, c *claimant, t *attempt) step {
	switch {
	case p.grants[c.owner.UID] != nil:
		return look(endGrant)
	case c.hasFinalizer && blockFactsOf(c).phase != v1alpha1.AllocationReleased:
		return step{request: request{verb: patch, name: "release"}, status: map[string]any{"phase": v1alpha1.AllocationReleased, "releasedAt": metav1.NewTime(t.now)}}
	}
	return ended(c)
}

// allocatedBlock writes the status of an IPAllocation that has addresses.
func allocatedBlock(c *claimant, rng netipx.IPRange, overlap string, says sighting, now time.Time) step {
	n, text := poolutil.Size(rng), poolutil.FormatRange(rng)
	b, tmp := blockFactsOf(c), withConditions(c)
	message := fmt.Sprintf("allocated %d IPs: %s", n, text)
	if says == unseen {
		message += "; " + doesNotExistYet(c.cluster)
	}
	if cluster := clusterSeen(c.cluster, says); cluster != nil {
		conditions.Set(tmp, *cluster)
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
	if at.IsZero() || (c.shown.IsValid() && c.shown != rng) {
		at = now
	}
	out := step{request: request{verb: patch, name: "status"}, fulfils: !c.hadAddress, status: map[string]any{
		"phase": v1alpha1.AllocationAllocated, "observedGeneration": b.generation,
		"cidr": text, "startAddress": rng.From().String(), "endAddress": rng.To().String(),
		"addresses": poolutil.Enumerate(rng)[:listedOf(rng)], "allocatedCount": n,
		"allocatedAt": metav1.NewTime(at), "allocatedBy": v1alpha1.AllocatedBy, "releasedAt": nil,
		conditionsField: tmp.Status.Conditions,
	}}
	if !c.shown.IsValid() {
		out.event = normal("IPsAllocated", "Allocate", message)
	}
	return out
}

// refuse writes the status of an IPAllocation that gets nothing now. Where only its pool is not ready it waits; else it
// has failed, and is tried again all the same.
func (blocks) refuse(c *claimant, no refusal) step {
	phase := v1alpha1.AllocationFailed
	if no.reason == ipamv1.IPAddressClaimReadyPoolNotReadyReason {
		phase = v1alpha1.AllocationPending
	}
	tmp := withConditions(c)
	conditions.Set(tmp, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: no.reason, Message: no.message,
	})
	out := step{request: request{verb: patch, name: "refusal"}, status: map[string]any{
		"phase": phase, "observedGeneration": blockFactsOf(c).generation,
		"cidr": nil, "startAddress": nil, "endAddress": nil, "addresses": nil, "allocatedCount": 0,
		"allocatedAt": nil, "allocatedBy": nil, conditionsField: tmp.Status.Conditions,
	}}
	if phase == v1alpha1.AllocationFailed {
		out.event = warning("AllocationFailed", "Allocate", no.message)
	}
	return out
}

// withConditions returns an IPAllocation with the conditions of c, to set one on.
func withConditions(c *claimant) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{}
	out.Generation = blockFactsOf(c).generation
	if c.status != nil {
		out.Status.Conditions = withoutPause(c.status.conditions)
	}
	return out
}
