package grants_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestOutcomeOfCommit checks what becomes of a grant by the outcome of the commit that puts it on record (R4): only
// what is stored may be served, and what cannot be stored any more is free again.
func TestOutcomeOfCommit(t *testing.T) {
	for name, tc := range map[string]struct {
		finish              func(p *grants.PoolState, sent v1alpha1.Pool)
		committed, inMemory bool
		refused             bool
	}{
		"stored":   {finish: func(p *grants.PoolState, sent v1alpha1.Pool) { p.CompleteCommit(sent, grantstest.Noon) }, committed: true, inMemory: true},
		"not kept": {finish: func(p *grants.PoolState, _ v1alpha1.Pool) { p.RollbackCommit(p.Base.Pool) }},
		"refused": {
			finish:  func(p *grants.PoolState, _ v1alpha1.Pool) { p.RejectCommit(errors.New("refused"), grantstest.Noon) },
			refused: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			c := grantstest.ObserveClaim(p, "c", 0)
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			p.Term.BeginCommit(p.PrepareCommit(grantstest.Noon))
			sent := p.Term.PendingCommit.Pool
			if onRecord := grants.InFlightFromStatus(sent.PoolStatus()); len(onRecord) != 1 || onRecord[0].First != "10.0.0.1" {
				t.Fatalf("the commit has %+v", onRecord)
			}
			tc.finish(p, sent)
			g := p.Grants.ByClaimant[c.Owner.UID]
			if (g != nil) != tc.inMemory || (g != nil && g.Committed != tc.committed) {
				t.Errorf("the grant is %+v", g)
			}
			if p.Term.PendingCommit != nil {
				t.Error("the commit is still pending")
			}
			if (p.Term.WriteRefusal != nil) != tc.refused {
				t.Errorf("refused: %v", p.Term.WriteRefusal)
			}
			if free := p.Inventory.FindBlockingFact(p.Space.Ledger.UnitRange(netip.MustParseAddr("10.0.0.1")), ledger.Owner{Namespace: "ns", Name: "other", UID: "other"}) == nil; free == tc.inMemory {
				t.Errorf("its address is free: %v", free)
			}
			if p.Queues.Waiting.Len() == 0 != tc.inMemory {
				t.Errorf("%d claims wait", p.Queues.Waiting.Len())
			}
		})
	}
}
