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

// B34, B45, B48, B49.
func TestBlocksOf(t *testing.T) {
	two := has("10.0.0.1", "10.0.0.2", 2)
	r := netipx.MustParseIPRange("10.0.0.1-10.0.0.2")
	tests := map[string]struct {
		reason string
		of     *v1alpha1.IPAllocation
		want   *elastic.Block
	}{
		"First":    {reason: "it was not added on demand", of: asked(0, 2, two), want: &elastic.Block{Count: 2, Range: r}},
		"Grown":    {reason: "its name says so", of: asked(1, 2, two), want: &elastic.Block{Count: 2, Range: r, Grown: true}},
		"Pending":  {reason: "it counts as what it asks for", of: asked(1, 5), want: &elastic.Block{Count: 5, Grown: true}},
		"Failed":   {reason: "no pool has room for it", of: asked(1, 5, failed)},
		"Less":     {reason: "what it was given counts", of: asked(1, 5, two), want: &elastic.Block{Count: 2, Range: r, Grown: true}},
		"Pinned":   {reason: "somebody chose it", of: asked(0, 2, two, pinned), want: &elastic.Block{Count: 2, Range: r, Pinned: true}},
		"Deleting": {reason: "it still has its range", of: asked(1, 2, two, deleted), want: &elastic.Block{Count: 2, Range: r, Grown: true, Deleting: true}},
		"Released": {
			reason: "what is deleted has its range whatever its phase", want: &elastic.Block{Count: 2, Range: r, Grown: true, Deleting: true},
			of: asked(1, 2, two, deleted, func(a *v1alpha1.IPAllocation) { a.Status.Phase = v1alpha1.AllocationReleased }),
		},
		"Draining": {
			reason: "it is taken away", of: asked(1, 2, two, says(v1alpha1.DrainingCondition, metav1.ConditionTrue, "x")),
			want: &elastic.Block{Count: 2, Range: r, Grown: true, Draining: true},
		},
		"Resumed": {
			reason: "it stays after all", of: asked(1, 2, two, says(v1alpha1.DrainingCondition, metav1.ConditionFalse, "x")),
			want: &elastic.Block{Count: 2, Range: r, Grown: true},
		},
		"Idle": {
			reason: "since the condition changed", of: asked(1, 2, two, says(v1alpha1.InUseCondition, metav1.ConditionFalse, "x")),
			want: &elastic.Block{Count: 2, Range: r, Grown: true, IdleSince: epoch},
		},
		"InUse": {reason: "it is not idle", of: asked(1, 2, two, says(v1alpha1.InUseCondition, metav1.ConditionTrue, "x")), want: &elastic.Block{Count: 2, Range: r, Grown: true}},
		"Emptied": {
			reason: "its own pool was seen to serve nobody", of: asked(1, 2, two, func(a *v1alpha1.IPAllocation) { a.UID = "emptied" }),
			want: &elastic.Block{Count: 2, Range: r, Grown: true, Emptied: true},
		},
		"IPv6": {
			reason: "the range tells the family", of: asked(1, 1, has("2001:db8::1", "2001:db8::1", 1)),
			want: &elastic.Block{Count: 1, Range: netipx.MustParseIPRange("2001:db8::1-2001:db8::1"), Family: elastic.IPv6, Grown: true},
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var want []elastic.Block
			if c.want != nil {
				c.want.Name = c.of.Name
				want = append(want, *c.want)
			}
			got := Cluster{Blocks: []*v1alpha1.IPAllocation{c.of}}.blocksOf(func(uid types.UID) bool { return uid == "emptied" })
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netipx.IPRange) bool { return a == b })); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
}

func TestSpeaker(t *testing.T) {
	one := has("10.0.0.1", "10.0.0.1", 1)
	met := says(v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, "met")
	tests := map[string]struct {
		reason     string
		of         []*v1alpha1.IPAllocation
		want, said string
	}{
		"None":        {reason: "there is no block to say it"},
		"Pending":     {reason: "what is not granted says nothing", of: []*v1alpha1.IPAllocation{asked(0, 1)}},
		"InVain":      {reason: "a Cluster that began with nothing has nothing else", of: []*v1alpha1.IPAllocation{asked(1, 1, failed, met)}, want: "team-prod-lb-1", said: "met"},
		"FirstFailed": {reason: "NetworkReady says it", of: []*v1alpha1.IPAllocation{asked(0, 1, failed)}},
		"First":       {reason: "the one it began with, however old", of: []*v1alpha1.IPAllocation{asked(1, 1, one), asked(0, 1, one, met), asked(2, 1, one)}, want: "team-prod-lb", said: "met"},
		"Oldest":      {reason: "there is no first", of: []*v1alpha1.IPAllocation{asked(2, 1, one), asked(1, 1, one, met)}, want: "team-prod-lb-2"},
		"Deleting":    {reason: "it is about to go", of: []*v1alpha1.IPAllocation{asked(0, 1, one, deleted, met), asked(1, 1, one)}, want: "team-prod-lb-1"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			got, said := "", ""
			if on := Speaker(c.of); on != nil {
				got = on.Name
			}
			if is := Said(c.of); is != nil {
				said = is.Reason
			}
			if got != c.want || said != c.said {
				t.Errorf("%s: %q says %q", c.reason, got, said)
			}
		})
	}
}
