package page

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// Red is what is wrong: a pool all of which is in blocks of carved pools is as it should be, and a pool that is not ready is
// not full.
func TestGrades(t *testing.T) {
	for name, tc := range map[string]struct {
		used        int64
		waiting     int
		outOfRange  int64
		ready       metav1.ConditionStatus
		parent      bool
		grade, full grade
	}{
		"empty":                            {},
		"more than half":                   {used: 84},
		"almost full":                      {used: 85, grade: warn, full: warn},
		"full":                             {used: 100, grade: bad, full: bad},
		"not ready at 14 %":                {used: 14, ready: "False", grade: bad},
		"not ready and full":               {used: 96, ready: "False", grade: bad, full: bad},
		"some waits at 14 %":               {used: 14, waiting: 1, grade: bad},
		"in use outside the spec":          {used: 14, outOfRange: 1, grade: warn},
		"all of it in blocks":              {used: 100, parent: true},
		"all of it in blocks, more wanted": {used: 100, parent: true, waiting: 1, grade: bad, full: bad},
		"in blocks, not ready":             {used: 100, parent: true, ready: "False", grade: bad},
	} {
		t.Run(name, func(t *testing.T) {
			v := grants.View{Waiting: tc.waiting}
			v.Counts.Total, v.Counts.Allocated, v.Counts.OutOfRange = 100, tc.used, tc.outOfRange
			v.Ready.Status = tc.ready
			if got := gradeOf(v, tc.parent); got != tc.grade {
				t.Errorf("it is %q, not %q", got, tc.grade)
			}
			if got := fullness(v, tc.parent); got != tc.full {
				t.Errorf("its bar is %q, not %q", got, tc.full)
			}
		})
	}
}

// A parent is known by what is carved from it.
func TestParentsAreKnownByTheirPools(t *testing.T) {
	parent, child := &fleet.Pool{}, &fleet.Pool{}
	parent.Key, child.Key = pools.Key{Kind: "GlobalNetworkPool", Name: "site"}, pools.Key{Kind: "NetworkPool", Namespace: "ns", Name: "team"}
	child.Parent = parent.Key
	for _, p := range []*fleet.Pool{parent, child} {
		p.Counts.Total, p.Counts.Allocated = 100, 100
	}
	type answer struct{ Pools []pool }
	for _, p := range told[answer](t, serve(fleet.Pools{parent, child}), "pools", nil).Pools {
		is := p.ID == idOf(parent.Key)
		if p.IsParent != is || (p.Grade == well) != is {
			t.Errorf("%s: a parent: %v, %q", p.ID, p.IsParent, p.Grade)
		}
	}
}
