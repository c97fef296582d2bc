package grants_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestZonesAreForMachines checks that blocks and leases, which belong to no Machine, get only what is in no zone (U53).
func TestZonesAreForMachines(t *testing.T) {
	p := grantstest.NewPool(t, "", grantstest.WithZones, func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{} })
	block, two, lease := grantstest.ObserveAllocation(p, "b", 2), grantstest.ObserveAllocation(p, "two", 2), grantstest.ObserveLease(p, "l")
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	if g := p.Grants.ByClaimant[block.Owner.UID]; g == nil || poolutil.FormatRange(g.Range) != "10.0.0.1-10.0.0.2" {
		t.Errorf("the block has %v", g)
	}
	if p.Grants.ByClaimant[two.Owner.UID] != nil || p.Grants.ByClaimant[lease.Owner.UID] != nil {
		t.Error("something is given out of a zone")
	}
}

// TestPendingLookupsDoNotSpin checks that claims that cannot be looked up now, as the maximum of lookups hangs, do not
// make the pool reconcile again and again: it is reconciled for the lookups in progress, ever more rarely, and when
// they end.
func TestPendingLookupsDoNotSpin(t *testing.T) {
	p := grantstest.NewPool(t, "", grantstest.WithZones)
	for i := range grants.MaxMachineLookups + 1 {
		grantstest.ObserveClaim(p, fmt.Sprintf("c%03d", i), i, grantstest.OfMachine("a"))
	}
	begun := p.Lookups.BeginMachineLookups(grantstest.Noon)
	if len(begun) != grants.MaxMachineLookups || len(p.Lookups.BeginMachineLookups(grantstest.Noon)) != 0 {
		t.Fatalf("%d lookups begin", len(begun))
	}
	for after, want := range map[time.Duration]time.Duration{0: time.Second, time.Second: time.Second, 4 * time.Second: 4 * time.Second} {
		if wait := p.Lookups.NextMachineLookupDelay(grantstest.Noon.Add(after)); wait != want {
			t.Errorf("after %v the pool is reconciled again in %v, not in %v", after, wait, want)
		}
	}
	for _, of := range begun {
		p.ForgetClaimant(of.UID)
	}
	if wait := p.Lookups.NextMachineLookupDelay(grantstest.Noon); wait != 0 {
		t.Errorf("all that are looked for are gone, and the pool does not wait for the end of their lookups, but for %v", wait)
	}
	p.Lookups.EndMachineLookups(begun)
	if left := p.Lookups.BeginMachineLookups(grantstest.Noon); len(left) != 1 {
		t.Errorf("%d lookups begin when the others have ended", len(left))
	}
}
