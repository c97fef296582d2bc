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

// TestIdleBlocksAreWithdrawn checks, reconcile by reconcile, an hour without use. The block that was added on demand is
// withdrawn after the grace period, not before, and is not projected any more from the next reconcile on. The first
// block stays and is projected all the time.
func TestIdleBlocksAreWithdrawn(t *testing.T) { // B46 (ten idle minutes), B47 (pools follow), F17 (no orphan)
	const grace = 10 * time.Minute
	first, grown := newAllocation(0, 1, withRange("10.0.0.2", "10.0.0.2", 1)), newAllocation(1, 1, withRange("10.0.0.3", "10.0.0.3", 1))
	c := Cluster{Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: pools("a"), Blocks: []*v1alpha1.IPAllocation{first, grown}}
	w := Workload{
		AssessServices: func([]elastic.DesiredPool, string, [2]bool) elastic.Assessment { return elastic.Assessment{} },
		SharedPool:     "default-pool", IsEmptied: func(types.UID) bool { return false },
	}
	var idle, drained time.Duration = -1, -1
	for at := time.Duration(0); at <= time.Hour; at += 15 * time.Second {
		d := DecideBlocks(c, w, tenancy.LoadBalancerSettings{Elastic: true, Increment: 1, Quota: -1}, grace, epoch.Add(at))
		for _, m := range d.UsageChanges {
			switch {
			case m.Block == first.Name && !m.IdleSince.IsZero():
				t.Fatalf("after %v the first block is idle", at)
			case m.Block == grown.Name && !m.IdleSince.IsZero():
				idle = at
				withCondition(v1alpha1.InUseCondition, metav1.ConditionFalse, v1alpha1.IdleReason)(grown) // since now
			}
		}
		if slices.Contains(d.BlocksToDrain, first.Name) {
			t.Fatalf("after %v the first block is taken away", at)
		}
		shown := 0
		for _, p := range d.DesiredPools {
			shown += len(p.Ranges)
		}
		want := 2
		if drained >= 0 {
			want = 1
		}
		if shown != want || d.DesiredPools[0].Ranges[0].String() != "10.0.0.2-10.0.0.2" {
			t.Fatalf("after %v, drained after %v: %v is shown", at, drained, d.DesiredPools)
		}
		if slices.Contains(d.BlocksToDrain, grown.Name) {
			drained = at
			withCondition(v1alpha1.DrainingCondition, metav1.ConditionTrue, "x")(grown)
		}
	}
	if idle != 0 || drained != grace {
		t.Errorf("it is idle after %v, and taken away after %v", idle, drained)
	}
}
