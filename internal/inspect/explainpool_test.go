package inspect

import (
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestExplainPool(t *testing.T) {
	newCondition := func(condition, status, reason, message string) metav1.Condition {
		return metav1.Condition{Type: condition, Status: metav1.ConditionStatus(status), Reason: reason, Message: message}
	}
	for name, c := range map[string]struct {
		unseen, paused, behind bool
		conditions             []metav1.Condition
		served                 bool
		want                   string // "summary: finding -> start of the advice"
		total                  int64
		carved                 bool
		waiting                []string
		details                int
	}{
		"ready": {conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "3/4 IPs available")}, served: true, want: "grants addresses: 3/4 IPs available"},
		"full": {conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "0/2 IPs available")}, total: 2, waiting: []string{"IPAddressClaim ns/c"}, details: 1,
			want: "is full: 0 of 2 free, 1 waits: 0/2 IPs available -> add addresses to the pool, or delete machines or claims that are not needed"},
		"full, and no claim waits": {conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "m")}, total: 2, want: "is full: 0 of 2 free, none waits: m -> add addresses"},
		"full, and carved":         {conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "m")}, total: 2, carved: true, served: true, want: "grants addresses: m"},
		"full, and paused":         {paused: true, conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "m")}, total: 2, want: "grants nothing: it is paused"},
		"deleted":                  {conditions: []metav1.Condition{newCondition("Ready", "False", "Deleting", "m")}, total: 2, want: "grants nothing: Deleting: m -> delete the Machines of those claims"},
		"left alone":               {unseen: true, conditions: []metav1.Condition{newCondition("Ready", "False", "NotServed", "m")}, want: "grants nothing: NotServed: m"},
		"not reconciled yet":       {unseen: true, want: "grants nothing yet: no manager has reconciled it -> is the manager running"},
		"paused":                   {paused: true, conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "m")}, want: "grants nothing: it is paused by its annotation cluster.x-k8s.io/paused: it neither grants nor releases addresses -> remove the annotation"},
		"a new spec":               {behind: true, conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "m")}, total: 2, want: "has a spec that no manager has acted on yet: the manager has not seen this spec yet: its status is of the spec before -> wait a moment"},
		"a broken spec":            {conditions: []metav1.Condition{newCondition("Ready", "False", "ValidationFailed", "spec.cidr: m")}, want: "grants nothing: ValidationFailed: spec.cidr: m -> correct the field"},
		"nothing left":             {conditions: []metav1.Condition{newCondition("Ready", "False", "PoolExhausted", "m")}, want: "grants nothing: PoolExhausted: m -> add addresses"},
		"an elder twin":            {conditions: []metav1.Condition{newCondition("Ready", "True", "Ready", "m"), newCondition("Overlap", "True", "Overlap", "the other")}, served: true, want: "grants addresses: m: the other -> give one of the two pools other addresses"},
		"a younger twin":           {conditions: []metav1.Condition{newCondition("Ready", "False", "Overlap", "m"), newCondition("Overlap", "True", "Overlap", "the other")}, want: "grants nothing: Overlap: m -> give the pool other addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			if !c.unseen {
				pool.Status.Allocator = &v1alpha1.AllocatorStatus{}
			}
			if c.behind {
				pool.Generation, pool.Status.ObservedGeneration = 3, 2
			}
			if c.paused {
				pool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			if c.carved {
				pool.Spec.Carve = &v1alpha1.Carve{}
			}
			pool.Status.Conditions, pool.Status.TotalIPs = c.conditions, c.total
			e := ExplainPool(pool, c.waiting)
			got := e.Summary
			for _, f := range e.Findings {
				got += ": " + f.Message + " -> " + f.Advice
			}
			if !strings.HasPrefix(got, c.want) || e.Served != c.served || len(e.Findings) > 1 || len(e.Details) != c.details || e.Subject != "NetworkPool ns/p" {
				t.Errorf("%s %s\nwant\n%s", e.Subject, got, c.want)
			}
		})
	}
}

func TestCoolingDetails(t *testing.T) {
	until := metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	groups := []v1alpha1.CoolingGroup{{Until: until, Addresses: "10.0.0.5 ns/a, 10.0.0.6"}}
	want := []Detail{{"rests", []string{"until 2026-01-02T03:04:05Z: 10.0.0.5 ns/a, 10.0.0.6"}}}
	if got := coolingDetails(groups); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	if got := coolingDetails(nil); got != nil {
		t.Errorf("%v, of nothing", got)
	}
}
