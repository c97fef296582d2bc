package inspect

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestExplainPool(t *testing.T) {
	says := func(condition, status, reason, message string) metav1.Condition {
		return metav1.Condition{Type: condition, Status: metav1.ConditionStatus(status), Reason: reason, Message: message}
	}
	for name, c := range map[string]struct {
		unseen, paused bool
		conditions     []metav1.Condition
		served         bool
		want           string // verdict: finding -> advice begins
	}{
		"ready":          {conditions: []metav1.Condition{says("Ready", "True", "Ready", "3/4 IPs available")}, served: true, want: "grants addresses: 3/4 IPs available"},
		"nobody looked":  {unseen: true, want: "grants nothing yet: no manager has looked at it -> is the manager running"},
		"paused":         {paused: true, conditions: []metav1.Condition{says("Ready", "True", "Ready", "m")}, want: "grants nothing: it is paused by its annotation cluster.x-k8s.io/paused: it neither grants nor releases addresses -> remove the annotation"},
		"a broken spec":  {conditions: []metav1.Condition{says("Ready", "False", "ValidationFailed", "spec.cidr: m")}, want: "grants nothing: ValidationFailed: spec.cidr: m -> correct the field"},
		"nothing left":   {conditions: []metav1.Condition{says("Ready", "False", "PoolExhausted", "m")}, want: "grants nothing: PoolExhausted: m -> add addresses"},
		"an elder twin":  {conditions: []metav1.Condition{says("Ready", "True", "Ready", "m"), says("Overlap", "True", "Overlap", "the other")}, served: true, want: "grants addresses: m: the other -> give one of the two pools other addresses"},
		"a younger twin": {conditions: []metav1.Condition{says("Ready", "False", "Overlap", "m"), says("Overlap", "True", "Overlap", "the other")}, want: "grants nothing: Overlap: m -> give the pool other addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			if !c.unseen {
				pool.Status.Allocator = &v1alpha1.AllocatorStatus{}
			}
			if c.paused {
				pool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			pool.Status.Conditions = c.conditions
			e := ExplainPool(pool)
			got := e.Verdict
			for _, f := range e.Findings {
				got += ": " + f.What + " -> " + f.Do
			}
			if !strings.HasPrefix(got, c.want) || e.Served != c.served || len(e.Findings) > 1 || e.Subject != "NetworkPool ns/p" {
				t.Errorf("%s %s\nwant\n%s", e.Subject, got, c.want)
			}
		})
	}
}
