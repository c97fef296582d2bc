package allocator

import (
	"testing"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// Tests of what the spec of a carved pool means for the blocks that it has, and for those that it requests.

// TestClosedBlockIsNotGrantedUnderInvalidSpec checks R13: where the spec cannot be served any more, addresses of a
// block that was closed since are not granted either, not even to a claim that has one on record.
func TestClosedBlockIsNotGrantedUnderInvalidSpec(t *testing.T) {
	p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"), grantstest.WithOpenBlock("pool-2", "10.0.0.8/30"), func(o *v1alpha1.NetworkPool) {
		o.Spec.PreAllocations = map[string]string{"x": "10.0.0.5"}
	})
	obj := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	obj.Generation, obj.ResourceVersion = 2, "11"
	obj.Spec.PreAllocations["y"] = "10.0.0.5" // no rule of the schema rejects that
	p.SetBasePool(obj)
	if p.Space.SpecErr == "" || p.Space.Ledger.Counts().Total != 8 {
		t.Fatalf("%q, %+v", p.Space.SpecErr, p.Space.Ledger.Counts())
	}
	obj = obj.DeepCopy()
	obj.ResourceVersion, obj.Status.Blocks = "12", obj.Status.Blocks[:1] // pool-2 is closed
	p.SetBasePool(obj)
	if n := p.Space.Ledger.Counts().Total; n != 4 {
		t.Errorf("it hands out %d addresses", n)
	}
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	c := grantstest.ObserveClaim(p, "c", 1, grantstest.WithRecordedAddress("10.0.0.9"))
	if granted, _ := p.Planner.PlanGrants(grantstest.Noon, 9, a.admission.admissionRules(t.Context(), p, grantstest.Noon)); granted > 0 {
		t.Errorf("%v is granted", p.Grants.ByClaimant[c.Owner.UID].Range)
	}
	if _, kept := p.Space.Layout.PinForClaim("x"); !kept {
		t.Error("a pre-allocated address in an open block is granted to another claim")
	}
}
