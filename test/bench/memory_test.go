package main

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// budget is the limit of the manager's peak resident memory, in bytes, with budgetClaims claims that have their
// addresses.
const (
	budget       = 120e6
	budgetClaims = 10_000
)

// A manager with the environment of the Deployment keeps within the budget: while the claims are created, and when it
// starts with them.
func TestMemoryBudget(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	if testing.Short() {
		t.Skip("10,000 claims take a while: make test-all")
	}
	binary, err := framework.BuildManager(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	err = withControlPlane(func(c *clients) error {
		f := &claimFleet{clients: c, binary: binary, pools: 1}
		defer f.kill() // the last manager that was started
		if err := f.start(t.Context()); err != nil {
			return err
		}
		if _, err := f.runManagedTurn(t.Context(), turnSize); err != nil {
			return err
		}
		if err := f.fillStorage(t.Context(), turnSize, budgetClaims); err != nil {
			return err
		}
		checkMemoryBudget(t, "as the claims come", f.manager)
		if err := f.restartManager(t.Context()); err != nil {
			return err
		}
		if err := f.pausePools(t.Context(), false); err != nil {
			return err
		}
		claim := framework.MakeClaim(namespace, "after-the-start").Pool(f.pool(0)).Obj()
		if err := watchUntil(t.Context(), c, &ipamv1.IPAddressClaimList{}, claim, func() error { return f.Create(t.Context(), claim) }, isReady); err != nil {
			return err
		}
		checkMemoryBudget(t, "after a start", f.manager)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkMemoryBudget(t *testing.T, when string, m *framework.Manager) {
	t.Helper()
	peak, err := m.PeakRSS()
	if err != nil {
		t.Fatal(err)
	}
	summary := fmt.Sprintf("%s the manager took %.0f MB with %d claims", when, float64(peak)/1e6, budgetClaims)
	if t.Log(summary); peak > budget {
		t.Errorf("%s: the budget is %.0f MB", summary, budget/1e6)
	}
}
