package fleetcidr

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// TestConditionFromReport checks K32: the condition of a Cluster shows why its Nodes wait.
func TestConditionFromReport(t *testing.T) {
	stopped := &metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.AdoptingReason, Message: "no grants before 12:00:00"}
	for name, tc := range map[string]struct {
		found    nodeipam.Report
		selected bool
		status   metav1.ConditionStatus
		reason   string
		message  string
	}{
		"all have theirs":   {selected: true, status: metav1.ConditionTrue, reason: v1alpha1.ReadyReason},
		"no ClusterCIDR":    {status: metav1.ConditionFalse, reason: v1alpha1.NoMatchReason, message: "no ClusterCIDR selects this Cluster: add one, or change the labels of the Cluster"},
		"nothing is given":  {selected: true, found: nodeipam.Report{StoppedCondition: stopped, RefusedCount: 1}, status: metav1.ConditionUnknown, reason: v1alpha1.AdoptingReason, message: stopped.Message},
		"two have the same": {selected: true, found: nodeipam.Report{ConflictingNodes: 2, RefusedCount: 1}, status: metav1.ConditionFalse, reason: v1alpha1.ConflictReason, message: "the pod CIDRs of 2 Nodes overlap those of others: their events say which"},
		"a block is another's": {
			selected: true, found: nodeipam.Report{ConflictingNodes: 2, ConflictingBlocks: []string{"IPAllocation b: c has it"}}, status: metav1.ConditionFalse, reason: v1alpha1.ConflictReason,
			message: "Nodes use addresses of blocks that the pool does not grant again; find out who has them: IPAllocation b: c has it",
		},
		"no range selects": {selected: true, found: nodeipam.Report{NodeCount: 3, RefusedCount: 1, RefusedNames: []string{"a"}}, status: metav1.ConditionFalse, reason: v1alpha1.NoMatchReason, message: "1 of 3 Nodes wait for a pod CIDR: a: no ClusterCIDR selects them"},
		"all ranges are full": {
			selected: true, found: nodeipam.Report{NodeCount: 9, RefusedCount: 4, RefusedNames: []string{"a", "b", "c"}, FullRanges: []string{"big", "default"}},
			status: metav1.ConditionFalse, reason: v1alpha1.ExhaustedReason,
			message: "4 of 9 Nodes wait for a pod CIDR: a, b, c, …: all ClusterCIDRs that match are full: big, default",
		},
		"as many as are named": {
			selected: true, found: nodeipam.Report{NodeCount: 1, RefusedCount: 1, RefusedNames: []string{"a"}, FullRanges: strings.Split("abcde", "")},
			status: metav1.ConditionFalse, reason: v1alpha1.ExhaustedReason, message: "1 of 1 Nodes wait for a pod CIDR: a: all ClusterCIDRs that match are full: a, b, c, d, e",
		},
		"no user reads a hundred names": {
			selected: true, found: nodeipam.Report{NodeCount: 1, RefusedCount: 1, RefusedNames: []string{"a"}, FullRanges: strings.Split("abcdefg", "")},
			status: metav1.ConditionFalse, reason: v1alpha1.ExhaustedReason, message: "1 of 1 Nodes wait for a pod CIDR: a: all ClusterCIDRs that match are full: a, b, c, d, e and 2 more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := conditionFromReport(tc.found, tc.selected)
			if got.Status != tc.status || got.Reason != tc.reason || got.Message != tc.message {
				t.Errorf("%s, %s: %q", got.Status, got.Reason, got.Message)
			}
		})
	}
}
