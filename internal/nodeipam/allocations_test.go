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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// TestMovedBlockIsNotRequestedAgain checks an interrupted move, which leaves a Cluster behind without its blocks: a
// block that is created again would block the move. It is requested only after an operator has released its held
// addresses.
func TestMovedBlockIsNotRequestedAgain(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	held := func(reason, ns, name string) v1alpha1.HeldRange {
		return v1alpha1.HeldRange{First: "10.0.0.0", Last: "10.0.0.255", Reason: reason, Namespace: ns, Name: name}
	}
	lost := fence.OpenRange{Kind: v1alpha1.IPAllocationKind, Name: "block", ClusterCIDRName: "fleet", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	other := held(v1alpha1.MovedReason, "ns", "other")
	other.First, other.Last = "10.0.1.0", "10.0.1.255"
	const local, global = v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind
	for name, tc := range map[string]struct {
		held      v1alpha1.HeldRange
		lost      fence.OpenRange
		kind      string
		pool      string
		recreated bool
		asks      bool
	}{
		"it was moved":                      {held(v1alpha1.MovedReason, "ns", "block"), lost, global, "pods", false, false},
		"it was moved from a NetworkPool":   {held(v1alpha1.MovedReason, "ns", "block"), lost, local, "pods", false, false},
		"it was moved by another name":      {held(v1alpha1.MovedReason, "ns", "other"), lost, global, "pods", false, false},
		"another one was":                   {other, lost, global, "pods", false, true},
		"one of the name, there":            {held(v1alpha1.MovedReason, "there", "block"), lost, global, "pods", false, true},
		"it is a new one":                   {held(v1alpha1.MovedReason, "ns", "block"), fence.OpenRange{}, global, "pods", false, true},
		"an operator released":              {held("", "", ""), lost, global, "pods", false, true},
		"its pool may have been moved too":  {held("", "", ""), lost, local, "gone", false, false},
		"its pool is gone, and never moves": {held("", "", ""), lost, global, "gone", false, true},
		"its mirror was made anew":          {held("", "", ""), lost, local, "pods", true, false},
		"it is a new one, and no pool is":   {held("", "", ""), fence.OpenRange{}, local, "gone", false, true},
	} {
		for _, as := range []string{"block", "another name"} {
			t.Run(name+", as "+as, func(t *testing.T) {
				var pool v1alpha1.Pool = &v1alpha1.GlobalNetworkPool{}
				if tc.kind == local {
					pool = &v1alpha1.NetworkPool{}
					pool.SetNamespace("ns")
				}
				pool.SetName("pods")
				pool.PoolStatus().Held = []v1alpha1.HeldRange{tc.held}
				if tc.recreated {
					pool.SetAnnotations(map[string]string{incluster.MovedFromAnnotation: "here"})
				}
				c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).Build()
				a := IPAllocationClient{
					Client: c, Live: c, ClusterKey: ClusterKey{Namespace: "ns", Name: "prod"},
					SetLabels: func(*v1alpha1.IPAllocation) {}, AddClusterFinalizer: func(context.Context) error { return nil },
				}
				from := BlockSource{PoolRef: v1alpha1.PoolReference{Kind: tc.kind, Name: tc.pool}, PrefixLength: 24}
				_, ours, err := a.CreateBlock(t.Context(), as, podcidr.Ref{Name: "fleet"}, from, tc.lost)
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
}
