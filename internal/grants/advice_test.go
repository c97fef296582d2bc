package grants_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestMovedPoolAdviceHelps checks that a pool that was moved away opens after the step that its message names, also
// while clusterctl still has one of its claims (W29).
func TestMovedPoolAdviceHelps(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.MarkedAsMoved, grantstest.WithDeletionTimestamp)
	closed := func() (string, string) { return p.Status.ClosedReason(grantstest.Noon) }
	if _, message := closed(); !strings.Contains(message, "release those in status.held") || !strings.Contains(message, "first, end the move of ns/a, or remove its annotation "+v1alpha1.DeleteForMoveAnnotation) {
		t.Fatal(message)
	}
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp, grantstest.WithVersion("2"))
	if _, message := closed(); strings.Contains(message, "first, ") || !strings.Contains(message, "release those in status.held") {
		t.Fatal(message)
	}
	p.Base.Pool.SetAnnotations(map[string]string{v1alpha1.ReleaseHeldAnnotation: heldBy(p)[0]})
	p.Held.ReleaseHeldRanges()
	if reason, message := closed(); reason != "" {
		t.Errorf("it is closed by %s: %s", reason, message)
	}
}

// TestFullCarvedPoolAdviceHelps checks that a full carved pool that has all of its blocks serves claims after the step
// that its message names (W29).
func TestFullCarvedPoolAdviceHelps(t *testing.T) {
	for name, tc := range map[string]struct {
		wantMessage string
		do          func(*grants.PoolState)
		asks        int
	}{
		"it may have more blocks": {wantMessage: "raise that", do: grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Carve.Blocks.Max = 2 }), asks: 1},
		"claims go":               {wantMessage: "or delete claims", do: grantstest.DeleteNamed("x")},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Blocks = v1alpha1.CarvedBlocks{Min: 1, Max: 1} })
			grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.FirstBlock))
			p.Growth.PlanBlocks(grantstest.Noon, time.Minute)
			for i, name := range []string{"x", "y", "z", "w"} {
				grantstest.ObserveClaim(p, name, i)
			}
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			c := grantstest.ObserveClaim(p, "c", 9)
			p.Carved.ResetShortfall()
			if _, refused := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll); refused[c] == nil || !strings.Contains(refused[c].Message, tc.wantMessage) {
				t.Fatalf("its refusal is %+v", refused[c])
			}
			tc.do(p)
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			p.Growth.PlanBlocks(grantstest.Noon, time.Minute)
			if got := p.Carved.Decision.NewBlocks; got != tc.asks || (p.Grants.ByClaimant["uid-c"] != nil) == (tc.asks > 0) {
				t.Errorf("it asks for %d blocks, and grants %v", got, p.Grants.ByClaimant["uid-c"])
			}
		})
	}
	p := grantstest.NewChildPool(t)
	c := grantstest.ObserveAllocation(p, "b", 8)
	if _, refused := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll); refused[c] == nil || !strings.Contains(refused[c].Message, "request less, or name another pool") {
		t.Fatalf("its refusal is %+v", refused[c])
	}
	p.ForgetClaimant(c.Owner.UID)
	grantstest.ObserveAllocation(p, "b", 4)
	p.Carved.ResetShortfall()
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	if p.Growth.PlanBlocks(grantstest.Noon, time.Minute); p.Carved.Decision.NewBlocks != 1 {
		t.Errorf("it asks for %+v", p.Carved.Decision)
	}
}

// TestClaimIsServedWhenPausedClusterResumes checks that a claim that waits for the grants of paused Clusters is served
// when one of these is resumed (W29).
func TestClaimIsServedWhenPausedClusterResumes(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.15.200")
	admission := func(paused bool) func(*grants.Claimant) grants.AdmissionResult {
		return func(c *grants.Claimant) grants.AdmissionResult {
			return grants.AdmissionResult{Wait: c.Owner.Name != "waits" && (paused || c.Owner.Name != "c0")}
		}
	}
	for i := range grants.MaxInFlightGrants {
		c := grantstest.ObserveClaim(p, fmt.Sprint("c", i), 0, func(c *ipamv1.IPAddressClaim) { c.Namespace = fmt.Sprint("ns-", i) })
		if n, _ := p.Planner.PlanGrants(grantstest.Noon, 1, grantstest.AdmitAll); n != 1 {
			t.Fatalf("grant %d is not made", i)
		}
		p.Grants.ByClaimant[c.Owner.UID].Committed = true
	}
	for _, g := range p.Grants.ByClaimant {
		g.JobStarted = true // their writes may land yet, so they stay in flight
	}
	waits := grantstest.ObserveClaim(p, "waits", 1, func(c *ipamv1.IPAddressClaim) { c.Namespace = "other" })
	p.Grants.EndBlockedGrants(admission(true))
	if _, refused := p.Planner.PlanGrants(grantstest.Noon, 1, admission(true)); refused[waits] == nil || !strings.Contains(refused[waits].Message, "are paused; resume one of them") {
		t.Fatalf("its refusal is %+v", refused[waits])
	}
	p.Grants.ByClaimant["uid-c0"].Confirmed = true // as when the resumed claim is served
	if n, refused := p.Planner.PlanGrants(grantstest.Noon, 1, admission(false)); n != 1 || p.Grants.ByClaimant[waits.Owner.UID] == nil {
		t.Errorf("%d are granted; its refusal is %+v", n, refused[waits])
	}
}
