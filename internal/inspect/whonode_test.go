package inspect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
)

// TestDescribePodCIDR checks the state of an address or a prefix for the Nodes of a cluster.
func TestDescribePodCIDR(t *testing.T) {
	small := newTestRange("small", "10.1.0.0/22")
	own := func(nodes ...corev1.Node) PodCIDRs {
		return PodCIDRs{Nodes: nodes, ClusterCIDRs: []v1alpha1.ClusterCIDR{small}, ServiceCIDRs: prefixes("10.1.3.0/24"), FenceState: stateWithGrant("me//", "", "")}
	}
	machine := newTestNode("w1", "small", "10.1.0.0/24")
	machine.Annotations[clusterv1.MachineAnnotation] = "m1"
	machine.Annotations[clusterv1.ClusterNameAnnotation], machine.Annotations[clusterv1.ClusterNamespaceAnnotation] = "prod", "team-a"
	tests := map[string]struct {
		of     PodCIDRs
		prefix string
		want   []string
	}{
		"A Node has it":            {own(newTestNode("w1", "small", "10.1.0.0/24")), "10.1.0.9/32", []string{"used in ClusterCIDR small; w1 10.1.0.0/24"}},
		"A Node of both families":  {own(newTestNode("w1", "small", "10.1.0.0/24", "fd00::/64")), "fd00::5/128", []string{"used in ClusterCIDR small; w1 10.1.0.0/24, fd00::/64"}},
		"Its Machine and Cluster":  {own(machine), "10.1.0.9/32", []string{"used in ClusterCIDR small; w1 10.1.0.0/24 Machine team-a/m1 Cluster team-a/prod"}},
		"Some of a prefix":         {own(newTestNode("w1", "small", "10.1.0.0/24"), newTestNode("w2", "small", "10.1.1.0/24")), "10.1.0.0/23", []string{"used in ClusterCIDR small; w1 10.1.0.0/24; w2 10.1.1.0/24"}},
		"It is free":               {own(newTestNode("w1", "small", "10.1.0.0/24")), "10.1.1.0/32", []string{"free in ClusterCIDR small"}},
		"A prefix is free":         {own(), "10.1.2.0/24", []string{"free in ClusterCIDR small"}},
		"It is for Services":       {own(), "10.1.3.1/32", []string{"reserved in ClusterCIDR small: 10.1.3.0/24 is for Services"}},
		"Services alone have it":   {PodCIDRs{ServiceCIDRs: prefixes("10.96.0.0/12")}, "10.96.0.1/32", []string{"reserved: 10.96.0.0/12 is for Services"}},
		"It is in nothing":         {own(), "192.0.2.1/32", nil},
		"Another allocator's":      {own(newTestNode("w1", "", "10.9.0.0/24")), "10.9.0.1/32", []string{"used: no ClusterCIDR has it, so another allocator gave it; w1 10.9.0.0/24"}},
		"By its addresses alone":   {own(newTestNode("w1", "", "10.1.0.0/24")), "10.1.0.9/32", []string{"used in ClusterCIDR small; w1 10.1.0.0/24"}},
		"Twice":                    {own(newTestNode("w1", "small", "10.1.0.0/24"), newTestNode("w2", "", "10.1.0.0/25")), "10.1.0.9/32", []string{"used in ClusterCIDR small: more than one Node has it: drain and delete all but one of them, so that they register again; w1 10.1.0.0/24; w2 10.1.0.0/25"}},
		"The range is being given": {PodCIDRs{Nodes: []corev1.Node{newTestNode("w1", "")}, ClusterCIDRs: []v1alpha1.ClusterCIDR{small}, FenceState: stateWithGrant("me//", "w1", "small", "10.1.2.0/24")}, "10.1.2.7/32", []string{"granted in ClusterCIDR small: its Node is about to be written; the grant is in ConfigMap kube-system/butler-node-cidrs; w1 10.1.2.0/24"}},
		"Its grant is settled":     {PodCIDRs{Nodes: []corev1.Node{newTestNode("w1", "small", "10.1.2.0/24")}, ClusterCIDRs: []v1alpha1.ClusterCIDR{small}, FenceState: stateWithGrant("me//", "w1", "small", "10.1.2.0/24")}, "10.1.2.7/32", []string{"used in ClusterCIDR small; w1 10.1.2.0/24"}},
		"Its Node is gone":         {PodCIDRs{FenceState: stateWithGrant("me//", "w1", "small", "10.1.2.0/24")}, "10.1.2.7/32", []string{"granted in ClusterCIDR small: its Node is gone; the manager takes the grant out of ConfigMap kube-system/butler-node-cidrs with its next write; w1 10.1.2.0/24"}},
		"Nodes may not be listed":  {PodCIDRs{NodesHidden: true, ClusterCIDRs: []v1alpha1.ClusterCIDR{small}}, "10.1.2.7/32", []string{"unknown in ClusterCIDR small: you may not list Nodes, so its holder is unknown"}},
		"Being deleted":            {PodCIDRs{ClusterCIDRs: []v1alpha1.ClusterCIDR{newTestRange("old", "10.1.0.0/22", beingDeleted)}}, "10.1.2.7/32", []string{"free in ClusterCIDR old: but the ClusterCIDR is being deleted, and gives nothing more"}},
		"Two have the range": {
			PodCIDRs{ClusterCIDRs: []v1alpha1.ClusterCIDR{small, newTestRange("big", "10.0.0.0/8")}}, "10.1.2.7/32",
			[]string{"free in ClusterCIDR small", "free in ClusterCIDR big"},
		},
		"A workload cluster": {
			PodCIDRs{ManagedElsewhere: true, Nodes: []corev1.Node{newTestNode("w1", "edge", "10.1.0.0/24")}}, "10.1.0.1/32",
			[]string{"used in ClusterCIDR edge; w1 10.1.0.0/24"},
		},
		"A workload cluster of another allocator": {
			PodCIDRs{ManagedElsewhere: true, Nodes: []corev1.Node{newTestNode("w1", "", "10.1.0.0/24")}}, "10.1.0.1/32",
			[]string{"used: the Node does not say which ClusterCIDR it is of, so another allocator may have given it; w1 10.1.0.0/24"},
		},
		"Free in a workload cluster": {
			PodCIDRs{ManagedElsewhere: true, FenceState: &fence.State{Holder: "me/team-a/prod", OpenRanges: []fence.OpenRange{{Kind: "ClusterCIDR", Name: "edge", CIDRs: prefixes("10.1.0.0/16")}}}}, "10.1.0.1/32",
			[]string{"free in ClusterCIDR edge"},
		},
		"Free in a block of a workload cluster": {
			PodCIDRs{ManagedElsewhere: true, FenceState: &fence.State{Holder: "me/team-a/prod", OpenRanges: []fence.OpenRange{
				{Kind: "IPAllocation", Name: "b", ClusterCIDRName: "edge", CIDRs: prefixes("10.1.0.0/22")}, {Kind: "IPAllocation", Name: "c", ClusterCIDRName: "edge", Draining: true, CIDRs: prefixes("10.1.4.0/22")},
			}}}, "10.1.0.0/21",
			[]string{"free in ClusterCIDR edge", "free in ClusterCIDR edge: but its block is being released, and nothing more is granted from it"},
		},
		"A fleet": {
			PodCIDRs{ClusterCIDRs: []v1alpha1.ClusterCIDR{newTestRange("edge", "10.1.0.0/16", forClusters(v1alpha1.ClusterUse{Namespace: "team-a", Name: "prod", Nodes: 5, Free: 251}))}}, "10.1.2.7/32",
			[]string{"per cluster in ClusterCIDR edge: each Cluster has the whole range for itself, and only there it can be seen which Node has it; team-a/prod 5 251" +
				"; clusterctl get kubeconfig prod -n team-a > prod.kubeconfig && kubectl butler-ipam who 10.1.2.7 --kubeconfig=prod.kubeconfig"},
		},
		"A fleet that does not use it": {
			PodCIDRs{ClusterCIDRs: []v1alpha1.ClusterCIDR{newTestRange("edge", "10.1.0.0/16", forClusters())}}, "10.1.2.0/24",
			[]string{"per cluster in ClusterCIDR edge: each Cluster has the whole range for itself; none uses it yet"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range DescribePodCIDR(tt.of, netip.MustParsePrefix(tt.prefix), noon) {
				got = append(got, formatLine(s))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// formatLine formats an AddressStatus as one line.
func formatLine(s AddressStatus) string {
	text := s.State
	if s.Pool != "" {
		text += " in " + s.Pool
	}
	if s.Detail != "" {
		text += ": " + s.Detail
	}
	parts := []string{text}
	for _, h := range s.Holders {
		part := strings.TrimSpace(h.Name + " " + h.Range)
		for _, o := range h.Owners {
			part += " " + o.Kind + " " + o.Name
		}
		if h.Cluster != "" {
			part += " Cluster " + h.Cluster
		}
		parts = append(parts, part)
	}
	for _, u := range s.Clusters {
		parts = append(parts, fmt.Sprint(u.Cluster, " ", u.Nodes, " ", u.Free))
	}
	if s.Advice != "" {
		parts = append(parts, s.Advice)
	}
	return strings.Join(parts, "; ")
}

// TestDescribeAddressOfPrefix checks that the status of a prefix names the holders of any part of it, and no detail of
// a single address.
func TestDescribeAddressOfPrefix(t *testing.T) {
	o := poolOfTwo()
	for prefix, want := range map[string]string{
		"10.0.0.0/29":  "used in NetworkPool ns/p; a 10.0.0.5; b 10.0.0.6",
		"10.0.0.0/8":   "used in NetworkPool ns/p; a 10.0.0.5; b 10.0.0.6",
		"10.0.0.64/26": "free in NetworkPool ns/p: no object has any of it; `kubectl butler-ipam free` shows what of it can be granted",
		"10.1.0.0/16":  "",
	} {
		var got []string
		for _, s := range DescribeAddress(o, netip.MustParsePrefix(prefix)) {
			got = append(got, formatLine(s))
		}
		if diff := cmp.Diff(want, strings.Join(got, " / ")); diff != "" {
			t.Error(prefix, diff)
		}
	}
}

// TestDescribeAddressOfNodeBlock checks that the status of a block of pod CIDRs names its Cluster, which the management
// cluster knows.
func TestDescribeAddressOfNodeBlock(t *testing.T) {
	o := poolOfTwo()
	block := v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "prod-pods-4-1", UID: "block", Finalizers: []string{v1alpha1.IPAllocationFinalizer},
			Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.64/26", v1alpha1.ClusterCIDRAnnotation: "edge"},
		},
		Spec: v1alpha1.IPAllocationSpec{
			PoolRef: v1alpha1.PoolReference{Name: "p"}, Type: v1alpha1.PodsAllocation, PrefixLength: ptr.To[int32](26),
			TenantClusterRef: v1alpha1.ClusterReference{Namespace: "ns", Name: "prod"},
		},
	}
	o.Allocations = []v1alpha1.IPAllocation{block}
	var got []string
	for _, s := range DescribeAddress(o, netip.MustParsePrefix("10.0.0.70/32")) {
		got = append(got, formatLine(s))
	}
	want := []string{"used in NetworkPool ns/p: the Nodes of its Cluster have pod CIDRs of the block, by ClusterCIDR edge; prod-pods-4-1 10.0.0.64/26 Cluster ns/prod; " +
		"clusterctl get kubeconfig prod -n ns > prod.kubeconfig && kubectl butler-ipam who 10.0.0.70 --kubeconfig=prod.kubeconfig"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
