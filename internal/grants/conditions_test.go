package grants_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestRecordAdmission checks which decisions on a claimant have its pool wait for its Cluster, and which are written
// to its status.
func TestRecordAdmission(t *testing.T) {
	prod := types.NamespacedName{Namespace: "ns", Name: "prod"}
	for name, tc := range map[string]struct {
		result  grants.AdmissionResult
		pool    func(*v1alpha1.NetworkPool)
		standby bool
		waits   bool
		message string // of the condition, empty if none is written
	}{
		"admitted":           {},
		"Cluster is paused":  {result: grants.AdmissionResult{Wait: true, ClusterState: grants.ClusterPaused}, waits: true, message: "Cluster ns/prod is paused"},
		"Cluster is missing": {result: grants.AdmissionResult{ClusterState: grants.ClusterNotFound}, waits: true},
		"Cluster is unknown": {result: grants.AdmissionResult{Wait: true, ClusterState: grants.ClusterUnknown}, waits: true},
		"written elsewhere":  {result: grants.AdmissionResult{Wait: true, Quiet: true, ClusterState: grants.ClusterPaused}, waits: true},
		"standby":            {result: grants.AdmissionResult{Wait: true, ClusterState: grants.ClusterPaused}, standby: true, waits: true},
		"pool is paused": {
			result: grants.AdmissionResult{Wait: true}, pool: func(o *v1alpha1.NetworkPool) { grantstest.SetPausedAnnotation(o) },
			message: "NetworkPool ns/pool is paused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*v1alpha1.NetworkPool)
			if tc.pool != nil {
				change = append(change, tc.pool)
			}
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", change...)
			p.Term.Holder = !tc.standby
			c := grantstest.ObserveClaim(p, "c", 0, func(c *ipamv1.IPAddressClaim) { c.Spec.ClusterName = prod.Name })
			admit := p.Conditions.RecordingAdmission(func(*grants.Claimant) grants.AdmissionResult { return tc.result })
			if got := admit(c); got != tc.result {
				t.Errorf("the decision became %+v", got)
			}
			if _, waits := p.Conditions.BlockingClusters[prod]; waits != tc.waits {
				t.Errorf("it waits for its Cluster: %v", waits)
			}
			conditions := p.Conditions.TakeUnpublished()
			condition, written := conditions[c]
			if written != (tc.message != "") || !strings.HasPrefix(condition.Message, tc.message) || (written && condition.Type != clusterv1.PausedCondition) {
				t.Errorf("written: %+v", condition)
			}
			if again := p.Conditions.TakeUnpublished(); len(again) != 0 {
				t.Errorf("it is written again: %+v", again)
			}
		})
	}
}
