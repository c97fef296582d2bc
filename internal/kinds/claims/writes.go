package claims

import (
	"fmt"
	"slices"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	v1beta1conditions "sigs.k8s.io/cluster-api/util/conditions/deprecated/v1beta1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// Serve brings a claim that has a grant, or an IPAddress already, to its end: the record on the claim, the IPAddress,
// the claim's status, strictly in this order (R1).
func (kind) Serve(m *grants.Memory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	var r netipx.IPRange
	a := m.AttachedTo(c)
	switch {
	case a != nil && (a.ClaimantUID == c.Owner.UID || m.Adoptable(c, a)):
		if !a.IP.IsValid() {
			return grants.Fails(fmt.Errorf("IPAddress %s has no valid address", a.Key()))
		}
		r = m.Ledger.Unit(a.IP)
	case t.Grant != nil:
		r, a = t.Grant.Range, nil
		if err := m.HeldByAnother(c, t.Grant); err != nil {
			return grants.Fails(err)
		}
	default:
		return grants.Nothing()
	}
	switch {
	case a == nil && !t.Grant.Inherited && c.HasRecord() && c.Record.From() != r.From() && !c.MayGetAnother() && t.Ours != c.Version:
		// Somebody recorded another address: the manager that has taken the pool over, or a user, whose record is set
		// right.
		return grants.Look(grants.LookAtTerm)
	case a != nil && a.ClaimantUID != c.Owner.UID && !t.Read:
		return grants.Look(grants.LookAtClaimant)
	}
	repair := grants.Request{Verb: grants.Patch, Name: "address"}
	switch lacks(m, c, a, r, slices.Contains(t.Done, repair)) {
	case record:
		step := grants.RecordOn(c, m.RecordOf(r))
		if a != nil && m.IsStrangers(c, a) {
			step.Stranger = a
		}
		if FactsOf(c).alone {
			// Or the pool would give its address to somebody else where it is moved to.
			step.Meta["labels"] = map[string]string{v1alpha1.MoveLabel: ""}
		}
		return step
	case address:
		return grants.Step{Request: grants.Request{Verb: grants.Create, Name: "create"}, Object: newAddress(m, c, r)}
	case owners:
		return grants.Step{Request: repair, Attached: a, Meta: map[string]any{
			"finalizers":      append(slices.Clone(a.Others), v1alpha1.AddressFinalizer),
			"ownerReferences": append(ownersOf(c, m.Base), addressFactsOf(a).owners...),
		}}
	case status:
		return grants.Step{Request: grants.Request{Verb: grants.Patch, Name: "status"}, Status: boundStatus(c, m.RecordOf(r)), Fulfils: !c.HadAddress}
	case nothing:
		if a != nil && needsRepair(m, c, a) { // the claim has its address; what is to protect it is written later
			return grants.Fails(&grants.UndoneError{What: "IPAddress " + a.Key().String()})
		}
	}
	return grants.Nothing()
}

// Release gives up what a deleted claim has: the IPAddress first, then, when it is proven to be gone and no grant is
// left, our finalizer (R6).
func (kind) Release(m *grants.Memory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	a := m.AttachedTo(c)
	switch mine := a != nil && a.ClaimantUID == c.Owner.UID; {
	case mine && !t.Did(grants.Remove):
		return grants.Removal(a, t)
	case !t.Gone:
		return grants.Look(grants.LookAtAttached)
	case m.Grants[c.Owner.UID] != nil:
		return grants.Look(grants.EndGrant)
	}
	return grants.Ended(c)
}

// boundStatus names the IPAddress of a claim, and says Ready in both generations of conditions, with what the claim
// has.
func boundStatus(c *grants.Claimant, has string) map[string]any {
	tmp := withStatus(c)
	conditions.Set(tmp, metav1.Condition{
		Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue, Reason: "Allocated", Message: "allocated " + has,
	})
	v1beta1conditions.MarkTrue(tmp, clusterv1.ReadyV1Beta1Condition)
	return claimStatus(tmp, c.Owner.Name)
}

func (kind) Refuse(c *grants.Claimant, no grants.Refusal) grants.Step {
	tmp := withStatus(c)
	conditions.Set(tmp, metav1.Condition{
		Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionFalse, Reason: no.Reason, Message: no.Message,
	})
	v1beta1conditions.MarkFalse(tmp, clusterv1.ReadyV1Beta1Condition, no.Reason, clusterv1.ConditionSeverityWarning, "%s", no.Message)
	return grants.Step{Request: grants.Request{Verb: grants.Patch, Name: "refusal"}, Status: claimStatus(tmp, "")}
}

// withStatus returns an IPAddressClaim with the conditions of c, to set one on.
func withStatus(c *grants.Claimant) *ipamv1.IPAddressClaim {
	out := &ipamv1.IPAddressClaim{}
	if c.Status != nil {
		out.Status.Conditions = grants.WithoutPause(c.Status.Conditions)
		out.SetV1Beta1Conditions(slices.Clone(ptr.Deref(FactsOf(c).legacy, nil)))
	}
	return out
}

func claimStatus(tmp *ipamv1.IPAddressClaim, addressName string) map[string]any {
	status := map[string]any{
		grants.ConditionsField: tmp.Status.Conditions,
		"deprecated":           map[string]any{"v1beta1": map[string]any{grants.ConditionsField: tmp.GetV1Beta1Conditions()}},
	}
	if addressName != "" {
		status["addressRef"] = map[string]any{"name": addressName}
	}
	return status
}
