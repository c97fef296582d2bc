package allocator

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestPauseIsReportedOnce checks that a pause is reported once, by the manager that serves the pool, on claims that it
// serves.
func TestPauseIsReportedOnce(t *testing.T) {
	const message = "IPAddressClaim has the annotation cluster.x-k8s.io/paused; remove it to resume"
	withPausedCondition := func(c *ipamv1.IPAddressClaim) {
		c.Status.Conditions = []metav1.Condition{{Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Message: message}}
	}
	for name, c := range map[string]struct {
		published, follows bool
		clusterState       grants.ClusterState
		filter             string
		want               bool
	}{
		"not yet reported":             {want: true},
		"reported before":              {published: true},
		"another manager's pool":       {follows: true},
		"another manager's claim":      {filter: "theirs"},
		"whose Cluster is not visible": {clusterState: grants.ClusterUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{WatchFilter: c.filter})
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			p.Term.Holder = !c.follows
			changes := []func(*ipamv1.IPAddressClaim){func(c *ipamv1.IPAddressClaim) { grantstest.SetPausedAnnotation(c) }}
			if c.published {
				changes = append(changes, withPausedCondition)
			}
			claim := grantstest.ObserveClaim(p, "c", 0, changes...)
			p.Conditions.RecordAdmission(claim, grants.AdmissionResult{Wait: true, Quiet: a.scope.isForOtherManager(claim), ClusterState: c.clusterState})
			if got := len(p.Conditions.Unpublished) > 0; got != c.want {
				t.Errorf("reported: %v", got)
			}
		})
	}
}
