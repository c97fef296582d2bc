package demand

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// TestDecidedBlocks checks how IPAllocations become blocks: B34 (only load-balancer blocks count), B45 (grown blocks
// may be withdrawn), B48 (the first block stays), B49 (a pinned block stays).
func TestDecidedBlocks(t *testing.T) {
	two := withRange("10.0.0.1", "10.0.0.2", 2)
	r := netipx.MustParseIPRange("10.0.0.1-10.0.0.2")
	tests := map[string]struct {
		reason string
		of     *v1alpha1.IPAllocation
		want   *elastic.Block
	}{
		"First":    {reason: "it was not added on demand", of: newAllocation(0, 2, two), want: &elastic.Block{Count: 2, Range: r}},
		"Grown":    {reason: "its name says so", of: newAllocation(1, 2, two), want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true}},
		"Pending":  {reason: "it counts as what it asks for", of: newAllocation(1, 5), want: &elastic.Block{Count: 5, AddedOnDemand: true}},
		"Failed":   {reason: "no pool has room for it", of: newAllocation(1, 5, failed)},
		"Less":     {reason: "what it was given counts", of: newAllocation(1, 5, two), want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true}},
		"Pinned":   {reason: "a user chose it", of: newAllocation(0, 2, two, pinned), want: &elastic.Block{Count: 2, Range: r, Pinned: true}},
		"Deleting": {reason: "it still has its range", of: newAllocation(1, 2, two, deleted), want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true, Deleting: true}},
		"Released": {
			reason: "what is deleted has its range whatever its phase", want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true, Deleting: true},
			of: newAllocation(1, 2, two, deleted, func(a *v1alpha1.IPAllocation) { a.Status.Phase = v1alpha1.AllocationReleased }),
		},
		"Draining": {
			reason: "it is taken away", of: newAllocation(1, 2, two, withCondition(v1alpha1.DrainingCondition, metav1.ConditionTrue, "x")),
			want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true, Draining: true},
		},
		"Resumed": {
			reason: "it stays after all", of: newAllocation(1, 2, two, withCondition(v1alpha1.DrainingCondition, metav1.ConditionFalse, "x")),
			want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true},
		},
		"Idle": {
			reason: "since the condition changed", of: newAllocation(1, 2, two, withCondition(v1alpha1.InUseCondition, metav1.ConditionFalse, "x")),
			want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true, IdleSince: epoch},
		},
		"InUse": {reason: "it is not idle", of: newAllocation(1, 2, two, withCondition(v1alpha1.InUseCondition, metav1.ConditionTrue, "x")), want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true}},
		"Emptied": {
			reason: "its own pool was seen to serve no Service", of: newAllocation(1, 2, two, func(a *v1alpha1.IPAllocation) { a.UID = "emptied" }),
			want: &elastic.Block{Count: 2, Range: r, AddedOnDemand: true, Emptied: true},
		},
		"IPv6": {
			reason: "the range shows the family", of: newAllocation(1, 1, withRange("2001:db8::1", "2001:db8::1", 1)),
			want: &elastic.Block{Count: 1, Range: netipx.MustParseIPRange("2001:db8::1-2001:db8::1"), Family: elastic.IPv6, AddedOnDemand: true},
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var want []elastic.Block
			if c.want != nil {
				c.want.Name = c.of.Name
				want = append(want, *c.want)
			}
			got := Cluster{Blocks: []*v1alpha1.IPAllocation{c.of}}.decidedBlocks(func(uid types.UID) bool { return uid == "emptied" })
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netipx.IPRange) bool { return a == b })); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
}

func TestConditionHolder(t *testing.T) {
	one := withRange("10.0.0.1", "10.0.0.1", 1)
	met := withCondition(v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, "met")
	tests := map[string]struct {
		reason           string
		of               []*v1alpha1.IPAllocation
		want, wantReason string
	}{
		"None":        {reason: "there is no block to say it"},
		"Pending":     {reason: "what is not granted says nothing", of: []*v1alpha1.IPAllocation{newAllocation(0, 1)}},
		"InVain":      {reason: "a Cluster that began with nothing has nothing else", of: []*v1alpha1.IPAllocation{newAllocation(1, 1, failed, met)}, want: "team-prod-lb-1", wantReason: "met"},
		"FirstFailed": {reason: "NetworkReady says it", of: []*v1alpha1.IPAllocation{newAllocation(0, 1, failed)}},
		"First":       {reason: "the one it began with, however old", of: []*v1alpha1.IPAllocation{newAllocation(1, 1, one), newAllocation(0, 1, one, met), newAllocation(2, 1, one)}, want: "team-prod-lb", wantReason: "met"},
		"Oldest":      {reason: "there is no first", of: []*v1alpha1.IPAllocation{newAllocation(2, 1, one), newAllocation(1, 1, one, met)}, want: "team-prod-lb-2"},
		"Deleting":    {reason: "it is about to go", of: []*v1alpha1.IPAllocation{newAllocation(0, 1, one, deleted, met), newAllocation(1, 1, one)}, want: "team-prod-lb-1"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			got, reason := "", ""
			if on := ConditionHolder(c.of); on != nil {
				got = on.Name
			}
			if condition := CurrentCondition(c.of); condition != nil {
				reason = condition.Reason
			}
			if got != c.want || reason != c.wantReason {
				t.Errorf("%s: %q says %q", c.reason, got, reason)
			}
		})
	}
}
