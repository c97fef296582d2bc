package tenancy

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestDescribeMovedBlock(t *testing.T) {
	cluster := v1alpha1.ClusterReference{Namespace: "team", Name: "prod"}
	for name, tc := range map[string]struct {
		held  v1alpha1.HeldRange
		there bool
		want  bool
	}{
		"the first block":           {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason, Namespace: "team", Name: "team-prod-lb"}, false, true},
		"one that was added":        {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason, Namespace: "team", Name: "team-prod-lb-12"}, false, true},
		"it is here":                {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason, Namespace: "team", Name: "team-prod-lb"}, true, false},
		"of another Cluster":        {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason, Namespace: "team", Name: "team-production-lb"}, false, false},
		"of another namespace":      {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason, Namespace: "other", Name: "team-prod-lb"}, false, false},
		"for Nodes":                 {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason, Namespace: "team", Name: "prod-pods-4-1"}, false, false},
		"a claim":                   {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason, Namespace: "team", Name: "team-prod-lb-x"}, false, false},
		"held for another reason":   {v1alpha1.HeldRange{Namespace: "team", Name: "team-prod-lb"}, false, false},
		"several, of which no name": {v1alpha1.HeldRange{Reason: v1alpha1.MovedReason}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.NetworkPool{Status: v1alpha1.NetworkPoolStatus{Held: []v1alpha1.HeldRange{tc.held}}}
			message := DescribeMovedBlock(cluster, "team", []v1alpha1.Pool{pool}, func(string) bool { return tc.there })
			if (message != "") != tc.want {
				t.Errorf("it says %q", message)
			}
		})
	}
}
