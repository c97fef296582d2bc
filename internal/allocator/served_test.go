package allocator

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestReleaseWaitsForConsumers checks that a consumer's finalizer keeps a deleted claim, and with it the IPAddress that
// it uses, and that the finalizers of the garbage collector do not.
func TestReleaseWaitsForConsumers(t *testing.T) {
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	for finalizer, may := range map[string]bool{
		"vspherevm.infrastructure.cluster.x-k8s.io/ip-claim-protection": false,
		metav1.FinalizerDeleteDependents:                                true, metav1.FinalizerOrphanDependents: true,
	} {
		p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
		c := grantstest.ObserveClaim(p, "c", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp, func(c *ipamv1.IPAddressClaim) { c.Finalizers = append(c.Finalizers, finalizer) })
		if got := !a.admission.admitRelease(p, c, a.lookups.newClusterLookup(t.Context())).Wait; got != may {
			t.Errorf("%s: may be released %v", finalizer, got)
		}
	}
}

// TestRefusedCommit checks that a status that the API server refuses for good is not sent again as it is: the commit is
// dropped, and the waiting claims get a refusal.
func TestRefusedCommit(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Finalizers = []string{v1alpha1.PoolFinalizer} })
	clock := clocktesting.NewFakeClock(grantstest.Noon)
	api := &singleWriteAPI{err: apierrors.NewForbidden(schema.GroupResource{Resource: "networkpools"}, "pool", errors.New("a policy says no"))}
	a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "me", Clock: clock})
	api.live = func(*v1alpha1.NetworkPool) *v1alpha1.NetworkPool { return p.Base.Pool.(*v1alpha1.NetworkPool) }
	a.pools.byKey[grantstest.PoolKey] = grants.NewPool(p)
	p.Quotas.Shared = a.pools.quota
	grantstest.ObserveClaim(p, "a", 0)
	for range 5 {
		if _, err := a.Reconcile(t.Context(), grantstest.PoolKey, p.Base.Pool); err != nil {
			t.Fatal(err)
		}
	}
	if api.writes != 1 || p.Term.PendingCommit != nil || len(p.Grants.ByClaimant) > 0 {
		t.Errorf("it was sent %d times; attempt %v, %d grants", api.writes, p.Term.PendingCommit, len(p.Grants.ByClaimant))
	}
	if p.Term.WriteRefusal == nil || !strings.Contains(p.Term.WriteRefusal.Message, "a policy says no") {
		t.Errorf("the refusals of claims are %v", p.Term.WriteRefusal)
	}
	clock.Step(term.MaxRetryPause)
	api.err = nil
	if _, err := a.Reconcile(t.Context(), grantstest.PoolKey, p.Base.Pool); err != nil || api.writes != 2 || p.Term.WriteRefusal != nil {
		t.Errorf("it does not recover: %v, %d writes, %v", err, api.writes, p.Term.WriteRefusal)
	}
}

// TestUnservedPoolKeepsConditionsOfOthers checks that a manager that does not serve a pool does not overwrite the
// conditions of its claims.
func TestUnservedPoolKeepsConditionsOfOthers(t *testing.T) {
	a := New(Options{ManagerID: "me", Namespace: "ns", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pool"}
	p := stateOfPool(a.pools.getOrCreatePool(key))
	c := grantstest.ObserveClaim(p, "c", 0)
	obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", UID: "u", ResourceVersion: "1", Generation: 1}, Spec: v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"}}}
	jobs := func() int {
		c.Busy, p.Queues.ActiveJobs = false, 0
		a.unserved.observeUnservedPool(t.Context(), grants.NewPool(p), obj, a.scope.refusalIfUnserved(key, nil))
		return p.Queues.ActiveJobs
	}
	c.Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "PoolExhausted", Message: "by the manager that serves it"}}
	if jobs() != 0 {
		t.Error("it writes over what the other manager says")
	}
	if a.relations.overlaps.declarationFor(key).uid != "u" {
		t.Error("its spec does not count for overlaps")
	}
}
