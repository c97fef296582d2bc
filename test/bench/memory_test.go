package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
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
	err = withControlPlane(t.Context(), func(c *clients) error {
		s := &scale{clients: c, pools: 1}
		pool := framework.MakePool(s.pool(0)).Namespace(namespace).CIDR("10.0.0.0/16").Annotate(clusterv1.PausedAnnotation, "").Obj()
		if err := s.Create(t.Context(), pool); err != nil {
			return err
		}
		if s.manager, err = s.startManager(t.Context(), binary); err != nil {
			return err
		}
		defer func() { _ = s.manager.Kill() }()
		if _, _, err := s.runManagedSlice(t.Context(), turnSize); err != nil {
			return err
		}
		if err := s.fillStorage(t.Context(), turnSize, budgetClaims); err != nil {
			return err
		}
		checkMemoryBudget(t, "as the claims come", s.manager)
		if err := s.manager.Kill(); err != nil {
			return err
		}
		if s.manager, err = s.startManager(t.Context(), binary); err != nil {
			return err
		}
		if err := s.pausePools(t.Context(), nil); err != nil {
			return err
		}
		if err := s.serveOneClaim(t.Context(), "after-the-start"); err != nil {
			return err
		}
		checkMemoryBudget(t, "after a start", s.manager)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// serveOneClaim creates one more claim and waits until the manager has served it.
func (s *scale) serveOneClaim(ctx context.Context, name string) error {
	if err := s.Create(ctx, framework.MakeClaim(namespace, name).Pool(s.pool(0)).Obj()); err != nil {
		return err
	}
	return s.watchUntilBound(ctx, name)
}

func checkMemoryBudget(t *testing.T, when string, m *framework.Manager) {
	t.Helper()
	peak, err := m.PeakRSS()
	if err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprintf("%s the manager took %.0f MB with %d claims", when, float64(peak)/1e6, budgetClaims)
	if t.Log(said); peak > budget {
		t.Errorf("%s: the budget is %.0f MB", said, budget/1e6)
	}
}
