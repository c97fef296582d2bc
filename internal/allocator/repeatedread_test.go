package allocator

import (
	"context"
	"errors"
	"testing"

	clocktesting "k8s.io/utils/clock/testing"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// readAPI answers reads of a pool and of a claim.
type readAPI struct {
	client.Client
	pool  *v1alpha1.NetworkPool
	claim *ipamv1.IPAddressClaim
}

func (a readAPI) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch o := obj.(type) {
	case *v1alpha1.NetworkPool:
		a.pool.DeepCopyInto(o)
	case *ipamv1.IPAddressClaim:
		a.claim.DeepCopyInto(o)
	}
	return nil
}

// TestRepeatedReadIsNoRevertedWrite checks that a job that has to read an object again, as that has changed since, ends
// to be tried again soon, and does not report that another writer reverts its writes.
func TestRepeatedReadIsNoRevertedWrite(t *testing.T) {
	for verb, name := range map[grants.Verb]string{grants.VerifyTerm: "the pool", grants.GetClaimant: "the claim", grants.GetAddress: "the IPAddress"} {
		t.Run(name, func(t *testing.T) { checkRepeatedRead(t, verb) })
	}
}

func checkRepeatedRead(t *testing.T, verb grants.Verb) {
	t.Helper()
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4")
	c := grantstest.ObserveClaim(p, "a", 0)
	live := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	live.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: p.Term.Number}
	a := New(Options{Live: readAPI{pool: live, claim: grantstest.NewClaim("a", 0)}, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	asks := 0
	err := a.jobs.runSteps(t.Context(), grants.NewPool(p), *c, func(*grants.PoolState, *grants.Claimant, *grants.Attempt) (grants.Step, bool) {
		asks++
		return grants.NewStep(verb), true
	})
	if !errors.Is(err, errStateChanged) || isRevertedWrite(err) || asks != 2 {
		t.Errorf("after %d decisions: %v", asks, err)
	}
}
