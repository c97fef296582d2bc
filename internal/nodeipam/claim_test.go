package nodeipam

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestStandbyStatusChecks checks that a manager that is not the holder, and does not know which blocks are open, treats
// no status as outdated for what depends on that, but does for what it knows as well as a holder.
func TestStandbyStatusChecks(t *testing.T) {
	ready := newCondition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "1 of 4 node CIDRs are free")
	refused := newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.NodesRefusedReason, "forbidden")
	short := newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.QuotaReachedReason, "as many blocks as allowed")
	room := newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionFalse, v1alpha1.RoomLeftReason, "")
	for name, tc := range map[string]struct {
		status   v1alpha1.ClusterCIDRStatus
		knows    Usage
		outdated bool
	}{
		"a block drains": {
			v1alpha1.ClusterCIDRStatus{Capacity: 4, Free: 1, Conditions: []metav1.Condition{ready, short}},
			Usage{Elastic: true, WaitingNodes: 1, Capacity: 8, Free: 5, Conditions: []metav1.Condition{newCondition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "5 of 8 node CIDRs are free"), room}}, false,
		},
		"no Node waits any more": {
			v1alpha1.ClusterCIDRStatus{Capacity: 4, Free: 1, Conditions: []metav1.Condition{ready, short}},
			Usage{Elastic: true, Capacity: 4, Free: 1, Conditions: []metav1.Condition{ready, room}}, true,
		},
		"Nodes may be read again": {
			v1alpha1.ClusterCIDRStatus{Capacity: 4, Free: 1, Conditions: []metav1.Condition{refused, room}},
			Usage{Elastic: true, Capacity: 4, Free: 1, Conditions: []metav1.Condition{ready, room}}, true,
		},
		"a Node is gone": {
			v1alpha1.ClusterCIDRStatus{Capacity: 4, Free: 1, Allocated: 3, Conditions: []metav1.Condition{ready, room}},
			Usage{Elastic: true, Capacity: 4, Free: 2, Allocated: 2, Conditions: []metav1.Condition{ready, room}}, true,
		},
		"a range without blocks has room": {
			v1alpha1.ClusterCIDRStatus{Capacity: 4, Free: 1, Conditions: []metav1.Condition{ready, room}},
			Usage{Capacity: 4, Free: 2, Conditions: []metav1.Condition{ready, room}}, true,
		},
		"it says the same": {
			v1alpha1.ClusterCIDRStatus{Capacity: 4, Free: 1, Conditions: []metav1.Condition{ready, room}},
			Usage{Capacity: 4, Free: 1, Conditions: []metav1.Condition{ready, room}}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &v1alpha1.ClusterCIDR{Status: tc.status}
			next := c.DeepCopy()
			tc.knows.WithPublishedStatus(c.Status.Capacity, c.Status.Free, c.Status.Conditions).ApplyStatus(next, noon)
			if d, outdated := CompareStatuses(&c.Status, &next.Status); outdated != tc.outdated {
				t.Errorf("it is outdated: %v, in %q", outdated, d.DifferingFields)
			}
		})
	}
}
