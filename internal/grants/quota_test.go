package grants_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestClusterQuotaSpansPools checks that the quota of a Cluster covers its addresses in two pools together.
func TestClusterQuotaSpansPools(t *testing.T) {
	var woken []pools.Key
	q := grants.NewQuota(func(key pools.Key) { woken = append(woken, key) })
	one, two := grantstest.NewPool(t, "10.0.0.1-10.0.0.9"), grantstest.NewPool(t, "10.0.1.1-10.0.1.9")
	two.Base.Key.Name = "two"
	limit := int64(3)
	for _, p := range []*grants.PoolState{one, two} {
		p.Quotas.Shared = q
		p.Quotas.Limit = func(c types.NamespacedName) (int64, bool) { return limit, c.Name == "bounded" }
	}
	grantstest.ObserveClaim(one, "had", 0, grantstest.OfCluster("bounded"), grantstest.WithRecordedAddress("10.0.0.1")) // it counts, whatever the limit
	for i, name := range []string{"a", "b", "c"} {
		grantstest.ObserveClaim(one, name, i+1, grantstest.OfCluster("bounded"))
	}
	for i, name := range []string{"x", "y", "z", "w"} {
		grantstest.ObserveClaim(one, name, i+1, grantstest.OfCluster("free"))
	}
	grantstest.ObserveClaim(one, "plain", 9)
	granted, refused := one.Planner.PlanGrants(grantstest.Noon, 99, grantstest.AdmitAll)
	if granted != 1+2+4+1 || len(refused) != 1 || refused[one.Claimants.ByUID["uid-c"]].Reason != v1alpha1.QuotaExceededReason {
		t.Fatalf("%d granted, refused %v", granted, refused)
	}
	// The other pool has no room for this Cluster either, and reports that; the claim is no work for either pool.
	d := grantstest.ObserveClaim(two, "d", 1, grantstest.OfCluster("bounded"))
	if granted, refused := two.Planner.PlanGrants(grantstest.Noon, 99, grantstest.AdmitAll); granted != 0 || refused[d] == nil || two.Quotas.IsWithinQuota(d) {
		t.Fatalf("%d granted, refused %v", granted, refused)
	}
	// A claim that cannot be served for another reason gets that reason, and uses none of the quota.
	e := grantstest.ObserveClaim(two, "e", 1, grantstest.OfCluster("bounded"), grantstest.WithRequestedAddress("10.0.9.9"))
	if _, refused := two.Planner.PlanGrants(grantstest.Noon, 99, grantstest.AdmitAll); refused[e].Reason == v1alpha1.QuotaExceededReason {
		t.Errorf("refused %v", refused[e])
	}
	// One is deleted: both pools are enqueued, once, and the first one to plan gets the room.
	woken = nil
	one.ForgetClaimant("uid-a")
	if len(woken) != 2 {
		t.Errorf("woken: %v", woken)
	}
	one.Queues.DropGrant("uid-a")
	if granted, _ := two.Planner.PlanGrants(grantstest.Noon, 99, grantstest.AdmitAll); granted != 1 {
		t.Errorf("%d granted after one was released", granted)
	}
	if granted, _ := one.Planner.PlanGrants(grantstest.Noon, 99, grantstest.AdmitAll); granted != 0 {
		t.Errorf("%d granted beyond the quota", granted)
	}
	// A larger quota is room, too.
	limit, woken = 4, nil
	q.EnqueueWaitingPools(types.NamespacedName{Namespace: "ns", Name: "bounded"})
	if granted, _ := one.Planner.PlanGrants(grantstest.Noon, 99, grantstest.AdmitAll); granted != 1 || len(woken) == 0 {
		t.Errorf("%d granted after the quota was raised, woken: %v", granted, woken)
	}
	// After a lost grant, a claim that moves to another Cluster, and the end of all claims nothing is left counted.
	one.LoseTerm(grantstest.Noon)
	two.LoseTerm(grantstest.Noon)
	grantstest.ObserveClaim(one, "had", 0, grantstest.OfCluster("other"), grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithVersion("2"))
	if q.UsedByCluster[types.NamespacedName{Namespace: "ns", Name: "bounded"}] != 0 || q.UsedByCluster[types.NamespacedName{Namespace: "ns", Name: "other"}] != 1 {
		t.Errorf("counted: %v", q.UsedByCluster)
	}
	for _, p := range []*grants.PoolState{one, two} {
		for uid := range p.Claimants.ByUID {
			p.ForgetClaimant(uid)
		}
	}
	if len(q.UsedByCluster) != 0 {
		t.Errorf("counted without claims: %v", q.UsedByCluster)
	}
}
