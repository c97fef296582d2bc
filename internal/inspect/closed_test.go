package inspect

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestClosedReason checks that a paused pool is reported as closed, whether or not its condition shows the pause yet.
func TestClosedReason(t *testing.T) {
	for name, c := range map[string]struct {
		paused bool
		ready  *metav1.Condition
		want   string
	}{
		"not reconciled yet": {},
		"ready":              {ready: &metav1.Condition{Type: "Ready", Status: "True"}},
		"overlapping":        {ready: &metav1.Condition{Type: "Ready", Status: "False", Reason: "Overlap", Message: "m"}, want: "grants nothing now (Overlap): m"},
		"paused":             {paused: true, ready: &metav1.Condition{Type: "Ready", Status: "True"}, want: "is paused by its annotation cluster.x-k8s.io/paused: it neither grants nor releases addresses"},
		"paused, and said":   {paused: true, ready: &metav1.Condition{Type: "Ready", Status: "False", Reason: "Paused", Message: "m"}, want: "is paused by its annotation cluster.x-k8s.io/paused: it neither grants nor releases addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.NetworkPool{}
			if c.paused {
				pool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			if c.ready != nil {
				pool.Status.Conditions = []metav1.Condition{*c.ready}
			}
			if got := ClosedReason(pool); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
