package demand

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// Nothing is used for an hour, look by look. The block that was added on demand is taken away after the grace, not before,
// and is shown no more from the look on that follows; the first one stays and is shown, for as long as that lasts.
func TestIdleBlocksGo(t *testing.T) { // B46, B47, F17
	const grace = 10 * time.Minute
	first, grown := asked(0, 1, has("10.0.0.2", "10.0.0.2", 1)), asked(1, 1, has("10.0.0.3", "10.0.0.3", 1))
	c := Cluster{Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: pools("a"), Blocks: []*v1alpha1.IPAllocation{first, grown}}
	w := Workload{
		Assess: func([]elastic.Desired, string, [2]bool) elastic.Assessment { return elastic.Assessment{} },
		Pool:   "default-pool", Emptied: func(types.UID) bool { return false },
	}
	var idle, drained time.Duration = -1, -1
	for at := time.Duration(0); at <= time.Hour; at += 15 * time.Second {
		d := Decide(c, w, tenancy.Settings{Elastic: true, Increment: 1, Quota: -1}, grace, epoch.Add(at))
		for _, m := range d.Marks {
			switch {
			case m.Block == first.Name && !m.IdleSince.IsZero():
				t.Fatalf("after %v the first block is idle", at)
			case m.Block == grown.Name && !m.IdleSince.IsZero():
				idle = at
				says(v1alpha1.InUseCondition, metav1.ConditionFalse, v1alpha1.IdleReason)(grown) // since now, as the first look is
			}
		}
		if slices.Contains(d.Drain, first.Name) {
			t.Fatalf("after %v the first block is taken away", at)
		}
		shown := 0
		for _, p := range d.Show {
			shown += len(p.Ranges)
		}
		want := 2
		if drained >= 0 {
			want = 1
		}
		if shown != want || d.Show[0].Ranges[0].String() != "10.0.0.2-10.0.0.2" {
			t.Fatalf("after %v, drained after %v: %v is shown", at, drained, d.Show)
		}
		if slices.Contains(d.Drain, grown.Name) {
			drained = at
			says(v1alpha1.DrainingCondition, metav1.ConditionTrue, "x")(grown)
		}
	}
	if idle != 0 || drained != grace {
		t.Errorf("it is idle after %v, and taken away after %v", idle, drained)
	}
}
