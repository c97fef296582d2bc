package grants_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestBlocksByAge checks that allocations are served by age, whatever their names, and among the claims of the pool
// (B27).
func TestBlocksByAge(t *testing.T) {
	born := func(second int) func(*v1alpha1.IPAllocation) {
		return func(o *v1alpha1.IPAllocation) {
			o.CreationTimestamp = metav1.NewTime(grantstest.Noon.Add(time.Duration(second) * time.Second))
		}
	}
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.7")
	grantstest.ObserveAllocation(p, "a-third", 4, born(3))
	grantstest.ObserveAllocation(p, "c-first", 4, born(1))
	grantstest.ObserveClaim(p, "b-second", 2)
	grantstest.ObserveAllocation(p, "d-fourth", 2, born(4))
	granted, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, grantstest.AdmitAll)
	got := map[string]string{}
	for _, g := range p.Grants.ByClaimant {
		got[g.Owner.Name] = g.Range.String()
	}
	for c := range refused {
		got[c.Owner.Name] = "refused"
	}
	want := map[string]string{
		"c-first": "10.0.0.1-10.0.0.4", "b-second": "10.0.0.5-10.0.0.5", "a-third": "refused", "d-fourth": "10.0.0.6-10.0.0.7",
	}
	if granted != 3 || len(got) != len(want) {
		t.Errorf("%d are granted: %v", granted, got)
	}
	for name, wantName := range want {
		if got[name] != wantName {
			t.Errorf("%s: %s, want %s", name, got[name], wantName)
		}
	}
}
