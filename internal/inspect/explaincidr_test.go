package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestExplainClusterCIDR checks whether a ClusterCIDR assigns CIDRs, and its users and waiting Nodes.
func TestExplainClusterCIDR(t *testing.T) {
	const (
		drain = "drain and delete these Nodes, so that they register again, and get CIDRs of another ClusterCIDR"
		full  = "add a ClusterCIDR for more: docs/node-cidrs.md#a-cluster-that-is-full"
	)
	ready := withCondition("Ready", metav1.ConditionTrue, "Ready", "1 of 2 node CIDRs are free")
	uses := v1alpha1.ClusterUse{Namespace: "team-a", Name: "prod", Nodes: 5, Free: 251}
	cluster := func(name string, labels map[string]string, conditions ...metav1.Condition) clusterv1.Cluster {
		return clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: labels}, Status: clusterv1.ClusterStatus{Conditions: conditions}}
	}
	wants := map[string]string{v1alpha1.NodeCIDRsLabel: ""}
	held := stateWithGrant("me//", "", "")
	tests := map[string]struct {
		of   PodCIDRs
		want string
	}{
		"It has room": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("a", "r", "10.1.0.0/24")}, ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", ready)), FenceState: held},
			"ok: gives CIDRs: 1 of 2 node CIDRs are free\nrange: 10.1.0.0/23, for all Nodes\nusers: a 10.1.0.0/24",
		},
		"It is full, and a Node waits": {
			PodCIDRs{
				Nodes:        []corev1.Node{newTestNode("a", "r", "10.1.0.0/24"), newTestNode("b", ""), newTestNode("c", "")},
				ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", ready)), FenceState: stateWithGrant("me//", "b", "r", "10.1.1.0/24"),
			},
			"waits: is full\nwhy: all 2 node CIDRs are taken and 1 Node waits: add a ClusterCIDR for more -> " + full + "\n" +
				"range: 10.1.0.0/23, for all Nodes\nusers: a 10.1.0.0/24 | b (its grant is in flight)\nwaits: c",
		},
		"Others have the range": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", ready, selecting("a", "b"), withCondition("Overlap", metav1.ConditionTrue, "SharedRange", "s have it too"))), FenceState: held},
			"ok: gives CIDRs: 2 of 2 node CIDRs are free\nwhy: s have it too -> nothing has to be done\nrange: 10.1.0.0/23, for Nodes with a in (b)",
		},
		"Not reconciled yet": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23"))},
			"waits: gives nothing yet\nwhy: no manager has reconciled it -> is a manager running, with the component own-node-cidrs or node-cidrs (--node-cidrs=own, on or only)?\nrange: 10.1.0.0/23, for all Nodes",
		},
		"It is not valid": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "x", withCondition("Ready", metav1.ConditionFalse, "ValidationFailed", "m"))), FenceState: held},
			`waits: gives nothing` + "\n" + `why: ValidationFailed: spec.ipv4: Invalid value: "x": is no CIDR -> create another ClusterCIDR, and delete this one: a spec cannot be changed`,
		},
		"The manager is refused": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", withCondition("Ready", metav1.ConditionFalse, "NodesRefused", "m"))), FenceState: held},
			"waits: gives nothing\nwhy: NodesRefused: m -> correct the policy, the webhook or the role that the message names\nrange: 10.1.0.0/23, for all Nodes",
		},
		"It goes, and is used": {
			PodCIDRs{Nodes: []corev1.Node{newTestNode("a", "r", "10.1.0.0/24")}, ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", beingDeleted, ready)), FenceState: held},
			"waits: is being deleted\nwhy: it stays until no Node uses it: 1 of them, listed below -> " + drain + "\nrange: 10.1.0.0/23, for all Nodes\nusers: a 10.1.0.0/24",
		},
		"It goes, and another Cluster holds it": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", beingDeleted, func(c *v1alpha1.ClusterCIDR) { c.Finalizers = []string{"x/y"} })), FenceState: held},
			"waits: is being deleted\nwhy: the finalizer x/y holds it -> the controller that set it has to remove it\nrange: 10.1.0.0/23, for all Nodes",
		},
		"It goes": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", beingDeleted)), FenceState: held},
			"waits: is being deleted\nwhy: no Node uses it; the finalizer butler.butlerlabs.dev/clustercidr holds it -> it should be gone in a moment; if not, is a manager running, with the component own-node-cidrs or node-cidrs (--node-cidrs=own, on or only)?\nrange: 10.1.0.0/23, for all Nodes",
		},
		"Nodes are hidden": {
			PodCIDRs{NodesHidden: true, ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/23", ready, withCondition("Exhausted", metav1.ConditionTrue, "Exhausted", "all are taken"))), FenceState: held},
			"waits: is full\nwhy: all are taken -> " + full + "\nrange: 10.1.0.0/23, for all Nodes",
		},
		"A fleet": {
			PodCIDRs{
				ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/16", forClusters(uses), withCondition("Ready", metav1.ConditionTrue, "Ready", "251 of 256 node CIDRs are free in Cluster team-a/prod, and no fewer in others"))),
				Clusters: []clusterv1.Cluster{
					cluster("prod", wants, metav1.Condition{Type: "PodCIDRsReady", Status: metav1.ConditionFalse, Reason: "NoMatch", Message: "1 of 6 Nodes waits"}), cluster("new", wants), cluster("apart", nil),
				},
			},
			"ok: gives CIDRs: 251 of 256 node CIDRs are free in Cluster team-a/prod, and no fewer in others\nrange: 10.1.0.0/16, for all Nodes\n" +
				"fleet: team-a/prod: 5 Nodes have a CIDR of it, 251 are free; NoMatch: 1 of 6 Nodes waits | team-a/new: selected, and has not used it yet | " +
				"team-a/apart: selected, and not served: it lacks the label butler.butlerlabs.dev/node-cidrs",
		},
		"A fleet that shares a pool": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "", fromPool, withCondition("Ready", metav1.ConditionTrue, "Ready", "3 of 8 node CIDRs of its blocks are free in 2 Clusters")))},
			"ok: gives CIDRs: 3 of 8 node CIDRs of its blocks are free in 2 Clusters\nrange: blocks of GlobalNetworkPool pods, for 4 Nodes each, for all Nodes",
		},
		"A fleet that has to release it": {
			PodCIDRs{ClusterCIDRs: ranges(newTestRange("r", "10.1.0.0/16", beingDeleted, forClusters(uses, v1alpha1.ClusterUse{Namespace: "team-a", Name: "idle"})))},
			"waits: is being deleted\nwhy: it stays until no Node of Cluster team-a/prod uses it: 5 of them -> with the kubeconfig of that: kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs; " + drain + "\n" +
				"why: Cluster team-a/idle has not released it yet -> see that the manager reaches it: kubectl describe cluster -n team-a idle\nrange: 10.1.0.0/16, for all Nodes\n" +
				"fleet: team-a/prod: 5 Nodes have a CIDR of it, 251 are free | team-a/idle: 0 Nodes have a CIDR of it, 0 are free",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e, found := ExplainClusterCIDR(tt.of, "r", noon)
			if diff := cmp.Diff(tt.want, lines(e)); diff != "" || !found || e.Subject != "ClusterCIDR r" {
				t.Error(e.Subject, diff)
			}
		})
	}
	if _, found := ExplainClusterCIDR(PodCIDRs{}, "r", noon); found {
		t.Error("a ClusterCIDR that is not there is explained")
	}
}
