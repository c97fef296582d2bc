package nodecidr

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// TestEmitEvents checks that events report what conditions would: once, and not more often than the numbers of our kind
// are written.
func TestEmitEvents(t *testing.T) {
	o := nodeipam.NewNetworkingXClusterCIDR()
	o.SetName("c")
	o.SetUID("uid")
	c := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(o).Build()
	now, recorder := time.Unix(1e9, 0), events.NewFakeRecorder(9)
	n := &NetworkingXReporter{Recorder: recorder, Now: func() time.Time { return now }, emitted: map[types.UID]map[string]bool{}, emittedAt: map[types.UID]map[string]time.Time{}}
	ready := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: message}
	}
	full := metav1.Condition{Type: v1alpha1.ExhaustedCondition, Status: metav1.ConditionTrue, Reason: "Exhausted", Message: "all 2 are taken"}
	room := metav1.Condition{Type: v1alpha1.ExhaustedCondition, Status: metav1.ConditionFalse, Reason: "RoomLeft"}
	for _, step := range []struct {
		does       string
		conditions []metav1.Condition
		after      time.Duration
		want       []string
		waits      bool
	}{
		{does: "all is well", conditions: []metav1.Condition{ready(metav1.ConditionTrue, "Ready", "2 of 2 are free"), room}},
		{does: "it is full", conditions: []metav1.Condition{ready(metav1.ConditionTrue, "Ready", "0 of 2 are free"), full}, want: []string{"Warning Exhausted all 2 are taken"}},
		{does: "it is full still", conditions: []metav1.Condition{full}},
		{does: "it has room, and is full again", conditions: []metav1.Condition{full}, after: time.Hour},
		{does: "it is deleted", conditions: []metav1.Condition{ready(metav1.ConditionFalse, "Deleting", "2 Nodes")}, want: []string{"Normal Deleting 2 Nodes"}},
		{does: "a Node goes at once", conditions: []metav1.Condition{ready(metav1.ConditionFalse, "Deleting", "1 Node")}, after: time.Second, waits: true},
		{does: "and later", conditions: []metav1.Condition{ready(metav1.ConditionFalse, "Deleting", "1 Node")}, after: numbersInterval, want: []string{"Normal Deleting 1 Node"}},
		{does: "adoption", conditions: []metav1.Condition{ready(metav1.ConditionUnknown, "Adopting", "waits")}, want: []string{"Warning Adopting waits"}},
	} {
		now = now.Add(step.after)
		if _, err := n.listRangeObjects(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		wait := n.emitEvents(nodeipam.Report{UsageByRange: map[podcidr.Ref]nodeipam.Usage{nodeipam.RefForNetworkingX(o): {Conditions: step.conditions}}})
		if (wait > 0) != step.waits {
			t.Errorf("%s: waits for %v", step.does, wait)
		}
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s: %s", step.does, diff)
		}
	}
	if err := c.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if found, err := n.listRangeObjects(t.Context(), c); err != nil || len(found) > 0 {
		t.Fatalf("%v: %v", found, err)
	}
	if n.emitEvents(nodeipam.Report{}); len(n.emitted)+len(n.emittedAt) > 0 {
		t.Errorf("of what is gone it remembers %v", n.emitted)
	}
	var none *NetworkingXReporter
	if found, err := none.listRangeObjects(context.Background(), c); found != nil || err != nil || none.emitEvents(nodeipam.Report{}) != 0 {
		t.Errorf("%v: %v", found, err)
	}
}

// TestProblemsAreReportedWithoutWaitingNodes checks that, where no Node waits, so that no manager without leader
// election holds the cluster, one takes it over to record what is wrong with an object, once.
func TestProblemsAreReportedWithoutWaitingNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := nodeipam.NewNetworkingXClusterCIDR()
		o.SetName("c")
		o.SetUID("uid")
		o.Object["spec"] = map[string]any{"ipv4": "nothing"}
		c := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(o).Build()
		recorder := events.NewFakeRecorder(9)
		r := newReconciler(c, "me", events.NewFakeRecorder(9))
		r.NetworkingX = &NetworkingXReporter{Recorder: recorder, Now: time.Now, emitted: map[types.UID]map[string]bool{}, emittedAt: map[types.UID]map[string]time.Time{}}
		for end := time.Now().Add(2 * outdatedTimeout); time.Now().Before(end); {
			result, err := r.Reconcile(t.Context(), nodeipam.ClusterKey{})
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(result.RequeueAfter)
		}
		found, _ := r.Allocator.BuildReport()
		statuses := map[string]nodeipam.StatusDifference{}
		if r.NetworkingX.addUnemitted(found, statuses); len(recorder.Events) == 0 || len(statuses) > 0 {
			t.Errorf("%d events, and %v is yet to be said", len(recorder.Events), statuses)
		}
	})
}
