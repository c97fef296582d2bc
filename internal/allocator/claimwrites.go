package allocator

import (
	"fmt"
	"slices"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	v1beta1conditions "sigs.k8s.io/cluster-api/util/conditions/deprecated/v1beta1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// serve brings a claim that has a grant, or an IPAddress already, to its end: the record on the claim, the IPAddress,
// the claim's status, strictly in this order (R1).
func (claims) serve(p *memory, c *claimant, t *attempt) step {
	var r netipx.IPRange
	a := p.attachedTo(c)
	switch {
	case a != nil && (a.claimantUID == c.owner.UID || p.adoptable(c, a)):
		if !a.ip.IsValid() {
			return fails(fmt.Errorf("IPAddress %s has no valid address", a.key()))
		}
		r = p.ledger.Unit(a.ip)
	case t.grant != nil:
		r, a = t.grant.rng, nil
		if err := p.heldByAnother(c, t.grant); err != nil {
			return fails(err)
		}
	default:
		return nothing()
	}
	text := p.recordOf(r)
	recorded := c.recordText == text || (p.layout == nil && c.record.IsValid())
	switch {
	case a == nil && !t.grant.inherited && c.hasRecord() && c.record.From() != r.From() && !c.mayGetAnother() && t.ours != c.rv:
		// Somebody recorded another address: the manager that has taken the pool over, or a user, whose record is set
		// right.
		return look(lookAtTerm)
	case a != nil && a.claimantUID != c.owner.UID && !t.read:
		return look(lookAtClaimant)
	case !recorded || !c.hasFinalizer:
		return recordOn(c, text)
	case a == nil:
		return step{request: request{verb: create, name: "create"}, object: newAddress(p, c, r)}
	case needsRepair(p, c, a) && !slices.Contains(t.done, request{verb: patch, name: "address"}):
		owners := append(ownersOf(c, p.base), addressFactsOf(a).owners...)
		return step{request: request{verb: patch, name: "address"}, attached: a, meta: map[string]any{
			"finalizers": append(slices.Clone(a.others), v1alpha1.AddressFinalizer), "ownerReferences": owners,
		}}
	case !c.statusDone || c.pauseTold != "":
		return step{request: request{verb: patch, name: "status"}, status: boundStatus(c, text), fulfils: !c.hadAddress}
	}
	return nothing()
}

// release gives up what a deleted claim has: the IPAddress first, then, when it is proven to be gone and no grant is
// left, our finalizer (R6).
func (claims) release(p *memory, c *claimant, t *attempt) step {
	a := p.attachedTo(c)
	switch mine := a != nil && a.claimantUID == c.owner.UID; {
	case mine && !t.did(remove):
		return removal(a, t)
	case !t.gone:
		return look(lookAtAttached)
	case p.grants[c.owner.UID] != nil:
		return look(endGrant)
	}
	return ended(c)
}

// boundStatus names the IPAddress of a claim, and says Ready in both generations of conditions, with what the claim
// has.
func boundStatus(c *claimant, has string) map[string]any {
	tmp := withStatus(c)
	conditions.Set(tmp, metav1.Condition{
		Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue, Reason: "Allocated", Message: "allocated " + has,
	})
	v1beta1conditions.MarkTrue(tmp, clusterv1.ReadyV1Beta1Condition)
	return claimStatus(tmp, c.owner.Name)
}

func (claims) refuse(c *claimant, no refusal) step {
	tmp := withStatus(c)
	conditions.Set(tmp, metav1.Condition{
		Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionFalse, Reason: no.reason, Message: no.message,
	})
	v1beta1conditions.MarkFalse(tmp, clusterv1.ReadyV1Beta1Condition, no.reason, clusterv1.ConditionSeverityWarning, "%s", no.message)
	return step{request: request{verb: patch, name: "refusal"}, status: claimStatus(tmp, "")}
}

// withStatus returns an IPAddressClaim with the conditions of c, to set one on.
func withStatus(c *claimant) *ipamv1.IPAddressClaim {
	out := &ipamv1.IPAddressClaim{}
	if c.status != nil {
		out.Status.Conditions = withoutPause(c.status.conditions)
		out.SetV1Beta1Conditions(slices.Clone(ownOf(c).legacy))
	}
	return out
}

func claimStatus(tmp *ipamv1.IPAddressClaim, addressName string) map[string]any {
	status := map[string]any{
		conditionsField: tmp.Status.Conditions,
		"deprecated":    map[string]any{"v1beta1": map[string]any{conditionsField: tmp.GetV1Beta1Conditions()}},
	}
	if addressName != "" {
		status["addressRef"] = map[string]any{"name": addressName}
	}
	return status
}
