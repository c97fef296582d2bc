package inspect

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// lines joins the summary, the findings with their advice, and the details of an explanation.
func lines(e Explanation) string {
	served := "waits"
	if e.Served {
		served = "ok"
	}
	out := []string{served + ": " + e.Summary}
	for _, f := range e.Findings {
		out = append(out, strings.TrimSuffix("why: "+f.Message+" -> "+f.Advice, " -> "))
	}
	for _, d := range e.Details {
		out = append(out, d.Label+": "+strings.Join(d.Lines, " | "))
	}
	return strings.Join(out, "\n")
}

// TestExplainNode checks why a Node has its pod CIDRs, or has none.
func TestExplainNode(t *testing.T) {
	const (
		full   = "docs/node-cidrs.md#a-cluster-that-is-full; `kubectl get clustercidrs -o wide` shows how full they are"
		runs   = "if it stays so, see that a manager runs here, with --node-cidrs=on, own or only"
		byName = "from: its annotation butler.butlerlabs.dev/cluster-cidr names ClusterCIDR "
	)
	one := newTestRange("one", "10.1.0.0/24")
	two := newTestRange("two", "10.2.0.0/23")
	held := stateWithGrant("me//", "", "")
	at := func(ago time.Duration) *fence.State {
		since := noon.Add(-ago)
		return &fence.State{Holder: "me//", Term: 1, AdoptingSince: &since}
	}
	deleting := newTestNode("w", "")
	deleting.DeletionTimestamp = &metav1.Time{Time: noon}
	leaving := newTestNode("w", "one", "10.1.0.0/24")
	leaving.DeletionTimestamp = &metav1.Time{Time: noon}
	named := newTestNode("w", "")
	named.Annotations = map[string]string{clusterv1.ClusterNameAnnotation: "prod", clusterv1.ClusterNamespaceAnnotation: "team-a"}
	early := newTestNode("w", "")
	early.CreationTimestamp = metav1.NewTime(noon.Add(-time.Minute))
	early.Spec.Taints = []corev1.Taint{{Key: clusterv1.NodeUninitializedTaint.Key, Effect: corev1.TaintEffectNoSchedule}}
	late := early
	late.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
	big := newTestRange("big", "10.8.0.0/24", selecting("size", "big"))
	tests := map[string]struct {
		of   PodCIDRs
		want string
	}{
		"It waits for labels": {
			PodCIDRs{Nodes: []corev1.Node{early}, ClusterCIDRs: ranges(one, big), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: its taint shows that it may still get labels, which decide which ClusterCIDR serves it: it waits until the taint is removed, or about 2026-11-24T12:01:00Z" +
				" -> docs/node-cidrs.md#which-range-a-node-gets: what sets the labels removes the taint\ntried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free | -  big, 10.8.0.0/24: does not select it; it is for Nodes with size in (big)",
		},
		"No labels decide": {
			PodCIDRs{Nodes: []corev1.Node{early}, ClusterCIDRs: ranges(one), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: nothing is in its way: it is about to be given 10.1.0.0/24 of ClusterCIDR one -> " + runs + "\ntried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free",
		},
		"The labels never came": {
			PodCIDRs{Nodes: []corev1.Node{late}, ClusterCIDRs: ranges(one, big), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: nothing is in its way: it is about to be given 10.1.0.0/24 of ClusterCIDR one -> " + runs + "\ntried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free | -  big, 10.8.0.0/24: does not select it; it is for Nodes with size in (big)",
		},
		"It has them": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "one", "10.1.0.0/24")}, ClusterCIDRs: ranges(one), FenceState: held},
			"ok: has 10.1.0.0/24 of ClusterCIDR one\n" + byName + "one: 10.1.0.0/24",
		},
		"It is going, and has them": {
			PodCIDRs{Nodes: []corev1.Node{leaving}, ClusterCIDRs: ranges(one), FenceState: held},
			"ok: has 10.1.0.0/24 of ClusterCIDR one\n" + byName + "one: 10.1.0.0/24\nuntil: it is being deleted, and keeps them until it is gone",
		},
		"Adopted": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "", "10.1.0.0/25")}, ClusterCIDRs: ranges(one), FenceState: held},
			"ok: has 10.1.0.0/25 of ClusterCIDR one\nfrom: ClusterCIDR one has these addresses: 10.1.0.0/24; it has no annotation butler.butlerlabs.dev/cluster-cidr, as where another allocator has given them",
		},
		"Foreign": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "", "10.9.0.0/24")}, ClusterCIDRs: ranges(one), FenceState: held},
			"ok: has 10.9.0.0/24\nwhy: its pod CIDR 10.9.0.0/24 is in no ClusterCIDR; it stays\nfrom: it has no annotation butler.butlerlabs.dev/cluster-cidr: another allocator has given them",
		},
		"Of a range that is gone": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "old", "10.9.0.0/24")}, ClusterCIDRs: ranges(one), FenceState: held},
			"ok: has 10.9.0.0/24\nwhy: its pod CIDR 10.9.0.0/24 is in no ClusterCIDR; it stays\n" + byName + "old, which does not have these addresses, or is gone",
		},
		"Set by another allocator": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "", "10.1.0.0/24")}, ClusterCIDRs: ranges(one), FenceState: stateWithGrant("me//", "w", "two", "10.2.0.0/24")},
			"ok: has 10.1.0.0/24 of ClusterCIDR one\nwhy: 10.2.0.0/24 was granted to it, and another allocator has set its pod CIDRs -> run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only\n" +
				"from: ClusterCIDR one has these addresses: 10.1.0.0/24; it has no annotation butler.butlerlabs.dev/cluster-cidr, as where another allocator has given them",
		},
		"Two have it": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("v", "one", "10.1.0.0/24"), newTestNode("w", "one", "10.1.0.0/24")}, ClusterCIDRs: ranges(one), FenceState: held},
			"waits: has 10.1.0.0/24 of ClusterCIDR one\nwhy: its pod CIDRs [10.1.0.0/24] overlap those of Node v: drain and delete one of the two, so that it registers again, and make sure that no other allocator sets pod CIDRs (kube-controller-manager: --allocate-node-cidrs=false)\n" + byName + "one: 10.1.0.0/24",
		},
		"In flight": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(one), FenceState: stateWithGrant("me//", "w", "one", "10.1.0.0/24")},
			"waits: is being given 10.1.0.0/24 of ClusterCIDR one\nwhy: the grant is in ConfigMap kube-system/butler-node-cidrs, and the Node does not have it yet -> it is a matter of a moment; " + runs,
		},
		"In flight, and refused": {
			PodCIDRs{
				Nodes: []corev1.Node{newTestNode("w", "")}, FenceState: stateWithGrant("me//", "w", "one", "10.1.0.0/24"),
				ClusterCIDRs: ranges(newTestRange("one", "10.1.0.0/24", withCondition("Ready", metav1.ConditionFalse, "NodesRefused", "a policy refuses it"))),
			},
			"waits: is being given 10.1.0.0/24 of ClusterCIDR one\nwhy: the grant is in ConfigMap kube-system/butler-node-cidrs, and the Node does not have it yet -> it is a matter of a moment; " + runs +
				"\nwhy: a policy refuses it -> correct the policy, the webhook or the role that the message names",
		},
		"Going, without": {
			PodCIDRs{Nodes: []corev1.Node{deleting}, ClusterCIDRs: ranges(one), FenceState: held},
			"waits: has no pod CIDR\nwhy: it is being deleted: a Node that is being deleted gets none",
		},
		"All are full": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("a", "one", "10.1.0.0/24"), labelled(newTestNode("w", ""), "size", "big")}, ClusterCIDRs: ranges(one, newTestRange("big", "10.1.0.0/24", selecting("size", "big")), newTestRange("gpu", "10.3.0.0/16", selecting("gpu", "yes")), newTestRange("edge", "10.4.0.0/16", forClusters())), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: all ClusterCIDRs that match are full: big (1 Node), one (1 Node); add a ClusterCIDR, or delete Nodes -> " + full + "\n" +
				"tried: 1. big, 10.1.0.0/24: full (0/1); other ClusterCIDRs, Services, grants in flight or other allocators have the rest | 2. one, 10.1.0.0/24: full (1/1) | " +
				"-  gpu, 10.3.0.0/16: does not select it; it is for Nodes with gpu in (yes) | -  edge: is for workload clusters",
		},
		"Older Nodes get the last": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("a", ""), newTestNode("w", "")}, ClusterCIDRs: ranges(one), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: all ClusterCIDRs that match are full: one (1 Node); add a ClusterCIDR, or delete Nodes -> " + full + "\ntried: 1. one, 10.1.0.0/24: what is free (1 of 1) goes to Nodes that are older",
		},
		"None selects it": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(newTestRange("big", "10.1.0.0/24", selecting("size", "big"))), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: no ClusterCIDR selects it; there are big: add one that does, or change its labels -> " + full + "\ntried: -  big, 10.1.0.0/24: does not select it; it is for Nodes with size in (big)",
		},
		"There is none": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, FenceState: held},
			"waits: waits for its pod CIDR\nwhy: there is no ClusterCIDR; add one -> " + full + "\ntried: there is no ClusterCIDR",
		},
		"It is being deleted, or is not valid": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(newTestRange("old", "10.1.0.0/24", beingDeleted), newTestRange("odd", "x")), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: there is no ClusterCIDR; add one -> " + full + "\n" +
				`tried: 1. old, 10.1.0.0/24: is being deleted, and gives nothing more | -  odd: is not valid: spec.ipv4: Invalid value: "x": is no CIDR`,
		},
		"About to be served": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("a", "two", "10.2.0.0/24"), newTestNode("w", ""), newTestNode("x", "")}, ClusterCIDRs: ranges(one, two), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: nothing is in its way: it is about to be given 10.1.0.0/24 of ClusterCIDR one; 2 Nodes wait, the oldest is served first -> " + runs + "\n" +
				"tried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free | 2. two, 10.2.0.0/23: has room: 1 of 2 node CIDRs are free",
		},
		"No manager": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(one)},
			"waits: waits for its pod CIDR\nwhy: no manager has given CIDRs to Nodes of this cluster yet: there is no ConfigMap kube-system/butler-node-cidrs -> docs/node-cidrs.md#the-first-node: does a manager run, with --node-cidrs=on, own or only, and are its roles bound?\n" +
				"why: it is to be given 10.1.0.0/24 of ClusterCIDR one -> " + runs + "\ntried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free",
		},
		"Adopting": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(one), FenceState: at(15 * time.Second)},
			"waits: waits for its pod CIDR\nwhy: no grants before 12:01:00: another allocator set the CIDRs of Nodes, and its last writes may still be in flight -> wait until then\n" +
				"why: it is to be given 10.1.0.0/24 of ClusterCIDR one -> " + runs + "\ntried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free",
		},
		"Damaged": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(one), FenceDamage: errors.Join(&fence.DamagedError{})},
			"waits: waits for its pod CIDR\nwhy: " + fmt.Sprint(&fence.DamagedError{}) + " -> docs/node-cidrs.md#events-and-conditions\ntried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free",
		},
		"The writes of Nodes are refused": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(newTestRange("one", "10.1.0.0/24", withCondition("Ready", metav1.ConditionFalse, "NodesRefused", "a policy refuses it"))), FenceState: held},
			"waits: waits for its pod CIDR\nwhy: a policy refuses it -> correct the policy, the webhook or the role that the message names\ntried: 1. one, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free",
		},
		"Other Nodes are hidden": {
			PodCIDRs{NodesHidden: true, Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(newTestRange("one", "10.1.0.0/24", func(c *v1alpha1.ClusterCIDR) { c.Status.Capacity, c.Status.Allocated = 1, 1 })), FenceState: held},
			"waits: waits for its pod CIDR\ntried: 1. one, 10.1.0.0/24: full (1/1)",
		},
		"A cluster that manages itself": {
			PodCIDRs{
				Nodes: []corev1.Node{newTestNode("w", "")}, FenceState: held,
				ClusterCIDRs: ranges(newTestRange("edge", "10.1.0.0/24", forClusters()), newTestRange("far", "10.2.0.0/24", forClusters(), func(c *v1alpha1.ClusterCIDR) {
					c.Spec.ClusterSelector.MatchLabels = map[string]string{"net": "far"}
				})),
				SelfCluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}},
			},
			"waits: waits for its pod CIDR\nwhy: nothing is in its way: it is about to be given 10.1.0.0/24 of ClusterCIDR edge -> " + runs + "\n" +
				"tried: 1. edge, 10.1.0.0/24: has room: 1 of 1 node CIDRs are free | -  far: is for workload clusters",
		},
		"It manages itself, with blocks of a pool": {
			PodCIDRs{
				Nodes: []corev1.Node{newTestNode("w", "")}, ClusterCIDRs: ranges(newTestRange("edge", "", fromPool)),
				FenceState:  &fence.State{Holder: "me/team-a/prod", Term: 1, OpenRanges: []fence.OpenRange{{Kind: "IPAllocation", Name: "b", UID: "b", ClusterCIDRName: "edge", CIDRs: prefixes("10.1.0.0/22")}}},
				SelfCluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}},
				SelfBlocks: []nodeipam.Block{{
					Allocation: carve.Allocation{
						Name: "b", UID: "b", PrefixLength: 22, Prefix: netip.MustParsePrefix("10.1.0.0/22"), PoolRef: v1alpha1.PoolReference{Kind: "GlobalNetworkPool", Name: "pods"},
					},
					ClusterCIDRName: "edge",
				}},
			},
			"waits: waits for its pod CIDR\nwhy: nothing is in its way: it is about to be given 10.1.0.0/24 of ClusterCIDR edge -> " + runs + "\n" +
				"tried: 1. edge, blocks of GlobalNetworkPool pods, for 4 Nodes each (10.1.0.0/22): has room: 4 of 4 node CIDRs are free",
		},
		"It manages itself, and wants a block": {
			PodCIDRs{
				Nodes: []corev1.Node{newTestNode("w", "")}, FenceState: stateWithGrant("me/team-a/prod", "", ""), ClusterCIDRs: ranges(newTestRange("edge", "", fromPool)),
				SelfCluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}},
			},
			"waits: waits for its pod CIDR\nwhy: a ClusterCIDR that is for it is to get another block of its pool -> kubectl get ipallocations -A shows whether the pool gives one; " + runs + "\n" +
				"tried: 1. edge, blocks of GlobalNetworkPool pods, for 4 Nodes each: it is to get another block, which the Node waits for",
		},
		"A workload cluster": {
			PodCIDRs{ManagedElsewhere: true, Nodes: []corev1.Node{newTestNode("w", "edge", "10.1.0.0/24")}, FenceState: stateWithGrant("me/team-a/prod", "", "")},
			"ok: has 10.1.0.0/24 of ClusterCIDR edge\n" + byName + "edge",
		},
		"Waiting in a workload cluster": {
			PodCIDRs{ManagedElsewhere: true, Nodes: []corev1.Node{newTestNode("w", "")}, FenceState: stateWithGrant("me/team-a/prod", "", ""), LastEvent: "all are full"},
			"waits: waits for its pod CIDR\nwhy: event of the manager: all are full\nwhy: the ClusterCIDRs for it are in the management cluster, where this cluster is Cluster team-a/prod -> there: kubectl get clustercidrs -o wide; " +
				`kubectl get cluster -n team-a prod -o jsonpath='{.status.conditions[?(@.type=="PodCIDRsReady")].message}'`,
		},
		"A workload cluster that is not served": {
			PodCIDRs{ManagedElsewhere: true, Nodes: []corev1.Node{named}},
			"waits: waits for its pod CIDR\nwhy: no manager has given CIDRs to Nodes of this cluster yet: there is no ConfigMap kube-system/butler-node-cidrs -> docs/node-cidrs.md#nodes-of-workload-clusters: is this the cluster of a Cluster with the label butler.butlerlabs.dev/node-cidrs?\n" +
				"why: the ClusterCIDRs for it are in the management cluster, where this cluster is Cluster team-a/prod -> there: kubectl get clustercidrs -o wide; " +
				`kubectl get cluster -n team-a prod -o jsonpath='{.status.conditions[?(@.type=="PodCIDRsReady")].message}'`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e, found := ExplainNode(tt.of, "w", noon)
			if diff := cmp.Diff(tt.want, lines(e)); diff != "" || !found || e.Subject != "Node w" {
				t.Error(e.Subject, diff)
			}
		})
	}
	if _, found := ExplainNode(PodCIDRs{}, "w", noon); found {
		t.Error("a Node that is not there is explained")
	}
}

func ranges(all ...v1alpha1.ClusterCIDR) []v1alpha1.ClusterCIDR { return all }
