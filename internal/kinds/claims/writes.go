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

// NextServeStep returns the next step for a claim that has a grant, or an IPAddress already: the record on the claim,
// the IPAddress, and the status of the claim, strictly in this order (R1).
func (claimKind) NextServeStep(m *grants.Inventory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	var r netipx.IPRange
	a := m.Addresses.AddressFor(c)
	switch {
	case a != nil && (a.ClaimantUID == c.Owner.UID || m.IsAdoptable(c, a)):
		if !a.IP.IsValid() {
			return grants.ErrorStep(fmt.Errorf("IPAddress %s has no valid address", a.Key()))
		}
		r = m.Space.Ledger.UnitRange(a.IP)
	case t.Grant != nil:
		r, a = t.Grant.Range, nil
		if err := m.CheckGrantConflict(c, t.Grant); err != nil {
			return grants.ErrorStep(err)
		}
	default:
		return grants.StopStep()
	}
	switch {
	case a == nil && !t.Grant.Inherited && c.HasRecord() && c.RecordedRange.From() != r.From() && !c.MayChangeAddress() && t.TermVerifiedVersion != c.ResourceVersion:
		// Another address is on record: either another manager that has taken the pool over wrote it, or a user,
		// whose record is corrected.
		return grants.NewStep(grants.VerifyTerm)
	case a != nil && a.ClaimantUID != c.Owner.UID && !t.ClaimantRead:
		return grants.NewStep(grants.GetClaimant)
	}
	repair := grants.Call{Verb: grants.PatchObject, Purpose: "address"}
	switch nextWrite(m, c, a, r, slices.Contains(t.CompletedCalls, repair)) {
	case writeRecord:
		step := grants.WriteRecordStep(c, m.Space.FormatRecord(r))
		if a != nil && m.Quarantine.IsForeign(c, a) {
			step.ForeignAddress = a
		}
		if ClaimDataFor(c).hasNoOwner {
			// Without this label, clusterctl would not move the claim, and the pool would grant the address to
			// another claim in the target cluster.
			step.MetadataPatch["labels"] = map[string]string{v1alpha1.MoveLabel: ""}
		}
		return step
	case writeAddress:
		return grants.Step{Call: grants.Call{Verb: grants.CreateAddress, Purpose: "create"}, Object: newIPAddress(m, c, r)}
	case writeOwners:
		return grants.Step{Call: repair, Address: a, MetadataPatch: map[string]any{
			"finalizers":      append(slices.Clone(a.OtherFinalizers), v1alpha1.AddressFinalizer),
			"ownerReferences": append(ownersForAddress(c, m.Base.Pool), addressDataFor(a).otherOwners...),
		}}
	case writeStatus:
		return grants.Step{Call: grants.Call{Verb: grants.PatchObject, Purpose: "status"}, StatusPatch: allocatedStatus(c, m.Space.FormatRecord(r)), FirstPublication: !c.StatusHasAddress}
	case writeNothing:
		if a != nil && needsAddressRepair(m, c, a) { // the claim has its address; the protection of that is written later
			return grants.ErrorStep(&grants.WriteRevertedError{ObjectName: "IPAddress " + a.Key().String()})
		}
	}
	return grants.StopStep()
}

// NextReleaseStep returns the next step that releases a deleted claim: it removes the IPAddress first, and then our
// finalizer, once the IPAddress is proven to be gone and no grant is left (R6).
func (claimKind) NextReleaseStep(m *grants.Inventory, c *grants.Claimant, t *grants.Attempt) grants.Step {
	a := m.Addresses.AddressFor(c)
	switch owned := a != nil && a.ClaimantUID == c.Owner.UID; {
	case owned && !t.HasCompleted(grants.DeleteAddress):
		return grants.RemoveAddressStep(a, t)
	case !t.AddressGone:
		return grants.NewStep(grants.GetAddress)
	case m.Grants.ByClaimant[c.Owner.UID] != nil:
		return grants.NewStep(grants.EndGrant)
	}
	return grants.RemoveFinalizerStep(c)
}

// allocatedStatus returns the status patch that names the IPAddress of a claim, and sets Ready in the conditions of
// both API versions, with the address or prefix of the claim.
func allocatedStatus(c *grants.Claimant, address string) map[string]any {
	tmp := claimWithConditions(c)
	conditions.Set(tmp, metav1.Condition{
		Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue, Reason: "Allocated", Message: "allocated " + address,
	})
	v1beta1conditions.MarkTrue(tmp, clusterv1.ReadyV1Beta1Condition)
	return statusPatchForClaim(tmp, c.Owner.Name)
}

func (claimKind) RefusalStep(c *grants.Claimant, refusal grants.Refusal) grants.Step {
	tmp := claimWithConditions(c)
	conditions.Set(tmp, metav1.Condition{
		Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message,
	})
	v1beta1conditions.MarkFalse(tmp, clusterv1.ReadyV1Beta1Condition, refusal.Reason, clusterv1.ConditionSeverityWarning, "%s", refusal.Message)
	return grants.Step{Call: grants.Call{Verb: grants.PatchObject, Purpose: "refusal"}, StatusPatch: statusPatchForClaim(tmp, "")}
}

// claimWithConditions returns an IPAddressClaim with the conditions of c, on which further conditions can be set.
func claimWithConditions(c *grants.Claimant) *ipamv1.IPAddressClaim {
	out := &ipamv1.IPAddressClaim{}
	if c.Status != nil {
		out.Status.Conditions = grants.RemovePausedCondition(c.Status.Conditions)
		out.SetV1Beta1Conditions(slices.Clone(ptr.Deref(ClaimDataFor(c).legacyConditions, nil)))
	}
	return out
}

func statusPatchForClaim(tmp *ipamv1.IPAddressClaim, addressName string) map[string]any {
	status := map[string]any{
		grants.ConditionsField: tmp.Status.Conditions,
		"deprecated":           map[string]any{"v1beta1": map[string]any{grants.ConditionsField: tmp.GetV1Beta1Conditions()}},
	}
	if addressName != "" {
		status["addressRef"] = map[string]any{"name": addressName}
	}
	return status
}
