package allocator

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ofCluster names the Cluster of a claim.
func ofCluster(name string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Spec.ClusterName = name }
}

func version(v string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = v }
}

// A Cluster has addresses in two pools; together they keep its quota.
func TestQuota(t *testing.T) {
	var woken []pools.Key
	q := grants.NewQuota(func(key pools.Key) { woken = append(woken, key) })
	one, two := aPool(t, "10.0.0.1-10.0.0.9"), aPool(t, "10.0.1.1-10.0.1.9")
	two.Key.Name = "two"
	limit := int64(3)
	for _, p := range []*grants.Memory{one, two} {
		p.Quota = q
		p.Limits = func(c types.NamespacedName) (int64, bool) { return limit, c.Name == "bounded" }
	}
	see(one, "had", 0, ofCluster("bounded"), remembers("10.0.0.1")) // it counts, whatever the limit
	for i, name := range []string{"a", "b", "c"} {
		see(one, name, i+1, ofCluster("bounded"))
	}
	for i, name := range []string{"x", "y", "z", "w"} {
		see(one, name, i+1, ofCluster("free"))
	}
	see(one, "plain", 9)
	granted, refused := one.Plan(noon, 99, anyone)
	if granted != 1+2+4+1 || len(refused) != 1 || refused[one.Claimants["uid-c"]].Reason != v1alpha1.QuotaExceededReason {
		t.Fatalf("%d granted, refused %v", granted, refused)
	}
	// The other pool has no room for this Cluster either, and says so; nobody takes turns over that.
	d := see(two, "d", 1, ofCluster("bounded"))
	if granted, refused := two.Plan(noon, 99, anyone); granted != 0 || refused[d] == nil || two.WithinQuota(d) {
		t.Fatalf("%d granted, refused %v", granted, refused)
	}
	// A claim that could not be served anyway is told so, and takes nothing from the others.
	e := see(two, "e", 1, ofCluster("bounded"), asks("10.0.9.9"))
	if _, refused := two.Plan(noon, 99, anyone); refused[e].Reason == v1alpha1.QuotaExceededReason {
		t.Errorf("refused %v", refused[e])
	}
	// One goes: both pools are woken, once, and the first one has it.
	woken = nil
	one.Forget("uid-a")
	if len(woken) != 2 {
		t.Errorf("woken: %v", woken)
	}
	one.DropGrant("uid-a")
	if granted, _ := two.Plan(noon, 99, anyone); granted != 1 {
		t.Errorf("%d granted after one was given back", granted)
	}
	if granted, _ := one.Plan(noon, 99, anyone); granted != 0 {
		t.Errorf("%d granted beyond the quota", granted)
	}
	// A larger quota is room too.
	limit, woken = 4, nil
	q.Changed(types.NamespacedName{Namespace: "ns", Name: "bounded"})
	if granted, _ := one.Plan(noon, 99, anyone); granted != 1 || len(woken) == 0 {
		t.Errorf("%d granted after the quota was raised, woken: %v", granted, woken)
	}
	// A grant that is lost, a claim that is another Cluster's now, and all claims gone: nothing is left counted.
	one.LoseTerm(noon)
	two.LoseTerm(noon)
	see(one, "had", 0, ofCluster("other"), remembers("10.0.0.1"), version("2"))
	if q.Used[types.NamespacedName{Namespace: "ns", Name: "bounded"}] != 0 || q.Used[types.NamespacedName{Namespace: "ns", Name: "other"}] != 1 {
		t.Errorf("counted: %v", q.Used)
	}
	for _, p := range []*grants.Memory{one, two} {
		for uid := range p.Claimants {
			p.Forget(uid)
		}
	}
	if len(q.Used) != 0 {
		t.Errorf("counted without claims: %v", q.Used)
	}
}
