package nodeipam

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// A move that was interrupted leaves a Cluster behind without its blocks: what is asked for again would be in the way of the move.
// It is asked for when an operator has released what is held of it.
func TestAMovedBlockIsNotAskedForAgain(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	held := func(reason, ns, name string) v1alpha1.HeldRange {
		return v1alpha1.HeldRange{First: "10.0.0.0", Last: "10.0.0.255", Reason: reason, Namespace: ns, Name: name}
	}
	pinned := netip.MustParsePrefix("10.0.0.0/24")
	const local, global = v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind
	for name, tc := range map[string]struct {
		held   v1alpha1.HeldRange
		pinned netip.Prefix
		kind   string
		pool   string
		anew   bool
		asks   bool
	}{
		"it was moved":                      {held(v1alpha1.MovedReason, "ns", "block"), pinned, global, "pods", false, false},
		"it was moved from a NetworkPool":   {held(v1alpha1.MovedReason, "ns", "block"), pinned, local, "pods", false, false},
		"another one was":                   {held(v1alpha1.MovedReason, "ns", "other"), pinned, global, "pods", false, true},
		"one of the name, there":            {held(v1alpha1.MovedReason, "there", "block"), pinned, global, "pods", false, true},
		"it is a new one":                   {held(v1alpha1.MovedReason, "ns", "block"), netip.Prefix{}, global, "pods", false, true},
		"an operator released":              {held("", "", ""), pinned, global, "pods", false, true},
		"its pool may have been moved too":  {held("", "", ""), pinned, local, "gone", false, false},
		"its pool is gone, and never moves": {held("", "", ""), pinned, global, "gone", false, true},
		"its mirror was made anew":          {held("", "", ""), pinned, local, "pods", true, false},
		"it is a new one, and no pool is":   {held("", "", ""), netip.Prefix{}, local, "gone", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var pool v1alpha1.Pool = &v1alpha1.GlobalNetworkPool{}
			if tc.kind == local {
				pool = &v1alpha1.NetworkPool{}
				pool.SetNamespace("ns")
			}
			pool.SetName("pods")
			pool.PoolStatus().Held = []v1alpha1.HeldRange{tc.held}
			if tc.anew {
				pool.SetAnnotations(map[string]string{incluster.MovedFromAnnotation: "here"})
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).Build()
			a := Allocations{
				Client: c, Live: c, Cluster: Key{Namespace: "ns", Name: "prod"},
				Label: func(*v1alpha1.IPAllocation) {}, Hold: func(context.Context) error { return nil },
			}
			from := Source{Pool: v1alpha1.PoolReference{Kind: tc.kind, Name: tc.pool}, Length: 24}
			_, ours, err := a.Ask(t.Context(), "block", podcidr.Ref{Name: "fleet"}, from, tc.pinned)
			all := &v1alpha1.IPAllocationList{}
			if err := c.List(t.Context(), all, client.InNamespace("ns")); err != nil {
				t.Fatal(err)
			}
			if tc.asks != (err == nil && ours && len(all.Items) == 1) {
				t.Errorf("asked for: %v, %v, %d IPAllocations", ours, err, len(all.Items))
			}
			if !tc.asks && (err == nil || !strings.Contains(err.Error(), "resume the move") || len(all.Items) > 0) {
				t.Errorf("%d IPAllocations, and it says %v", len(all.Items), err)
			}
		})
	}
}
