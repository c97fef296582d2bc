package nodeipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
)

// TestSnapshotView checks that a view shows what a manager would do that takes the same cluster over.
func TestSnapshotView(t *testing.T) {
	node := func(name string, cidrs ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon)}}
		n.Spec.PodCIDRs = cidrs
		return n
	}
	since := func(ago time.Duration) *fence.State {
		at := noon.Add(-ago)
		return &fence.State{Holder: "x", Term: 1, AdoptingSince: &at}
	}
	two := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "two", UID: "two"}, Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/23"}}
	tests := map[string]struct {
		nodes []corev1.Node
		state *fence.State
		// want is what each Node gets or waits for, how much is free, and why nothing is granted.
		want string
	}{
		"Room":           {nodes: []corev1.Node{node("a", "10.0.0.0/24"), node("b")}, want: "b: 10.0.1.0/24; 1 free"},
		"TheLastIsFull":  {nodes: []corev1.Node{node("a"), node("b"), node("c")}, want: "a: 10.0.0.0/24; b: 10.0.1.0/24; c: all ClusterCIDRs that match are full: two (2 Nodes); add a ClusterCIDR, or delete Nodes; 2 free"},
		"InFlight":       {nodes: []corev1.Node{node("a"), node("b")}, state: &fence.State{Holder: "x", Term: 1, InFlight: []fence.Grant{{NodeName: "a", NodeUID: "a", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}}}, want: "b: 10.0.1.0/24; 1 free"},
		"Adopting":       {nodes: []corev1.Node{node("a")}, state: since(time.Minute), want: "a: 10.0.0.0/24; 2 free; Adopting"},
		"AdoptedForLong": {nodes: []corev1.Node{node("a")}, state: since(time.Hour), want: "a: 10.0.0.0/24; 2 free"},
		"Foreign":        {nodes: []corev1.Node{node("a", "10.9.0.0/24")}, want: "a: its pod CIDR 10.9.0.0/24 is in no ClusterCIDR; it stays; 2 free"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			v := NewSnapshotView(Snapshot{Nodes: tt.nodes, RangeObjects: []RangeObject{RangeObjectFromClusterCIDR(two)}, FenceState: tt.state}, noon)
			var got []string
			for _, n := range v.Nodes() {
				if g, ok := v.PlannedGrant(n.UID); ok {
					got = append(got, n.Name+": "+g.CIDRs[0].String())
				}
				for _, note := range v.EventsForNode(n.UID) {
					got = append(got, n.Name+": "+note.Message)
				}
			}
			got = append(got, fmt.Sprintf("%d free", v.Report.UsageByRange[RefForClusterCIDR(two)].Free))
			if v.Report.StoppedCondition != nil {
				got = append(got, v.Report.StoppedCondition.Reason)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, "; ")); diff != "" {
				t.Error(diff)
			}
		})
	}
	damaged := NewSnapshotView(Snapshot{FenceErr: fmt.Errorf("reading: %w", &fence.DamagedError{})}, noon).Report.StoppedCondition
	if damaged == nil || damaged.Reason != v1alpha1.FenceDamagedReason {
		t.Error("a ConfigMap that cannot be read stops nothing:", damaged)
	}
}
