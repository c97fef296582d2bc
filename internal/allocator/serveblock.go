package allocator

import (
	"context"
	"fmt"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// serveBlock brings an IPAllocation that has a grant, or a block already, to its end: the record, then
// the status (R8). What it remembers stands; a status that says something else is set right.
func (a *Allocator) serveBlock(ctx context.Context, p *pool, c claim) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	found := a.look(ctx, &c)
	p.mu.Lock()
	if !p.holder || p.base == nil {
		p.mu.Unlock()
		return nil
	}
	p.noteSighting(&c, found)
	rng, granted := c.record, p.grants[c.owner.UID]
	switch {
	case p.adopts(&c):
		rng = c.block.statusRange
	case !c.hasRecord():
		rng = netipx.IPRange{}
	}
	if granted != nil && !granted.confirmed {
		if !granted.writable(a.now()) {
			p.mu.Unlock()
			return nil // this job has waited
		}
		rng = granted.rng
		granted.begun = true
		if h := p.blocker(rng, c.owner); h != nil && h.Source == ledger.Object {
			p.mu.Unlock()
			return fmt.Errorf("%s was granted to this allocation, but %s has it; delete one of the two",
				poolutil.FormatRange(rng), describeHold(h))
		}
	}
	overlap := p.overlapOf(&c)
	p.mu.Unlock()
	if !rng.IsValid() {
		return nil
	}
	if c.hasRecord() && c.record != rng { // somebody recorded another block
		if err := a.suspectTerm(ctx, p, c); err != nil {
			return err
		}
	}
	if text := poolutil.FormatRange(rng); !c.hasFinalizer || c.recordText != text {
		next, err := a.record(ctx, p, c, text)
		if err != nil {
			return err
		}
		if next.deleting {
			return nil
		}
		c = next
	}
	says := c.block.saysAfter(found)
	if c.statusDone && c.pauseTold == "" && c.block.statusRange == rng && c.block.overlap == overlap && says == c.block.told {
		return nil
	}
	next, err := a.patchClaim(ctx, c, nil, a.allocatedBlock(c, rng, overlap, says))
	if err != nil {
		return a.writeFailed(ctx, p, c, "status", err)
	}
	if !c.block.statusRange.IsValid() {
		metrics.BlockFulfilment.Observe(a.now().Sub(c.created).Seconds())
		a.Recorder.Eventf(allocationOf(&c), nil, corev1.EventTypeNormal, "IPsAllocated", "Allocate", "%s", next.readyMessage())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observeClaim(next)
	return nil
}

// releaseBlock gives up the block of a deleted IPAllocation: the status says when, then our finalizer
// goes, if no grant is left (R6). The block is free when the allocation is gone.
func (a *Allocator) releaseBlock(ctx context.Context, p *pool, c claim) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	p.mu.Lock()
	if !p.holder && p.base != nil {
		p.mu.Unlock()
		return nil
	}
	granted := p.endGrant(c.owner.UID)
	p.mu.Unlock()
	if granted {
		return nil
	}
	if c.hasFinalizer && c.block.phase != v1alpha1.AllocationReleased {
		next, err := a.patchClaim(ctx, c, nil, map[string]any{"phase": v1alpha1.AllocationReleased, "releasedAt": metav1.NewTime(a.now())})
		if err != nil {
			return a.writeFailed(ctx, p, c, "release", err)
		}
		c = *next
		p.mu.Lock()
		p.observeClaim(next)
		p.mu.Unlock()
	}
	return a.removeFinalizer(ctx, p, c)
}

// allocatedBlock is the status of an IPAllocation that has a block.
func (a *Allocator) allocatedBlock(c claim, rng netipx.IPRange, overlap string, says sighting) map[string]any {
	n, text := poolutil.Size(rng), poolutil.FormatRange(rng)
	tmp := c.withConditions()
	message := fmt.Sprintf("allocated %d IPs: %s", n, text)
	if says == unseen {
		message += "; " + doesNotExistYet(c.clusterKey())
	}
	if cluster := clusterSeen(c.clusterKey(), says); cluster != nil {
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
	at := c.block.allocatedAt
	if at.IsZero() || (c.block.statusRange.IsValid() && c.block.statusRange != rng) {
		at = a.now()
	}
	return map[string]any{
		"phase": v1alpha1.AllocationAllocated, "observedGeneration": c.block.generation,
		"cidr": text, "startAddress": rng.From().String(), "endAddress": rng.To().String(),
		"addresses": poolutil.Enumerate(rng)[:listedOf(rng)], "allocatedCount": n,
		"allocatedAt": metav1.NewTime(at), "allocatedBy": v1alpha1.AllocatedBy, "releasedAt": nil,
		conditionsField: tmp.Status.Conditions,
	}
}

// refusedBlock is the status of an IPAllocation that gets nothing now. Where only its pool is not ready it
// waits; else it has failed, and is tried again all the same.
func refusedBlock(c claim, no refusal) map[string]any {
	phase := v1alpha1.AllocationFailed
	if no.reason == ipamv1.IPAddressClaimReadyPoolNotReadyReason {
		phase = v1alpha1.AllocationPending
	}
	tmp := c.withConditions()
	conditions.Set(tmp, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: no.reason, Message: no.message,
	})
	return map[string]any{
		"phase": phase, "observedGeneration": c.block.generation,
		"cidr": nil, "startAddress": nil, "endAddress": nil, "addresses": nil, "allocatedCount": 0,
		"allocatedAt": nil, "allocatedBy": nil, conditionsField: tmp.Status.Conditions,
	}
}

// withConditions returns an IPAllocation with the conditions of c, to set one on.
func (c *claim) withConditions() *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{}
	out.Generation = c.block.generation
	if c.status != nil {
		out.Status.Conditions = withoutPause(c.status.conditions)
	}
	return out
}

// readyMessage is what the Ready condition says.
func (c *claim) readyMessage() string {
	if c.status != nil {
		if ready := conditions.Get(c.withConditions(), v1alpha1.ReadyCondition); ready != nil {
			return ready.Message
		}
	}
	return ""
}

// allocationOf names an IPAllocation, for events.
func allocationOf(c *claim) *v1alpha1.IPAllocation {
	return &v1alpha1.IPAllocation{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.IPAllocationKind},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.owner.Namespace, Name: c.owner.Name, UID: c.owner.UID, ResourceVersion: c.rv},
	}
}

// tellRefusal records the event of a refusal that was just written: one for each, not one for each try.
func (a *Allocator) tellRefusal(c *claim, no refusal) {
	if c.block.phase == v1alpha1.AllocationFailed {
		a.Recorder.Eventf(allocationOf(c), nil, corev1.EventTypeWarning, "AllocationFailed", "Allocate", "%s", no.message)
	}
}
