package page

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// TestPoolSeverity checks that red means a problem: a pool that is all in blocks of carved pools has none, and a pool
// that is not ready is not full.
func TestPoolSeverity(t *testing.T) {
	for name, tc := range map[string]struct {
		used        int64
		waiting     int
		outOfRange  int64
		ready       metav1.ConditionStatus
		parent      bool
		grade, full severity
	}{
		"empty":                            {},
		"more than half":                   {used: 84},
		"almost full":                      {used: 85, grade: severityWarning, full: severityWarning},
		"full":                             {used: 100, grade: severityCritical, full: severityCritical},
		"not ready at 14 %":                {used: 14, ready: "False", grade: severityCritical},
		"not ready and full":               {used: 96, ready: "False", grade: severityCritical, full: severityCritical},
		"some waits at 14 %":               {used: 14, waiting: 1, grade: severityCritical},
		"in use outside the spec":          {used: 14, outOfRange: 1, grade: severityWarning},
		"all of it in blocks":              {used: 100, parent: true},
		"all of it in blocks, more wanted": {used: 100, parent: true, waiting: 1, grade: severityCritical, full: severityCritical},
		"in blocks, not ready":             {used: 100, parent: true, ready: "False", grade: severityCritical},
	} {
		t.Run(name, func(t *testing.T) {
			v := grants.PoolView{WaitingCount: tc.waiting}
			v.Counts.Total, v.Counts.Allocated, v.Counts.OutOfRange = 100, tc.used, tc.outOfRange
			v.ReadyCondition.Status = tc.ready
			if got := poolSeverity(v, tc.parent); got != tc.grade {
				t.Errorf("it is %q, not %q", got, tc.grade)
			}
			if got := usageSeverity(v, tc.parent); got != tc.full {
				t.Errorf("its bar is %q, not %q", got, tc.full)
			}
		})
	}
}

// TestParentsAreKnownByTheirPools checks that a pool is a parent if another pool is carved from it.
func TestParentsAreKnownByTheirPools(t *testing.T) {
	parent, child := &fleet.Pool{}, &fleet.Pool{}
	parent.Key, child.Key = pools.Key{Kind: "GlobalNetworkPool", Name: "site"}, pools.Key{Kind: "NetworkPool", Namespace: "ns", Name: "team"}
	child.ParentKey = parent.Key
	for _, p := range []*fleet.Pool{parent, child} {
		p.Counts.Total, p.Counts.Allocated = 100, 100
	}
	type answer struct{ Pools []poolRow }
	for _, p := range getJSON[answer](t, serve(fleet.Pools{parent, child}), "pools", nil).Pools {
		isParent := p.ID == poolID(parent.Key)
		if p.IsParent != isParent || (p.Severity == severityNone) != isParent {
			t.Errorf("%s: a parent: %v, %q", p.ID, p.IsParent, p.Severity)
		}
	}
}
