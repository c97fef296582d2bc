package inspect

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// newTestNode returns a Node with pod CIDRs. Its UID is its name, and all Nodes have one creation time, so the name
// decides which is older.
func newTestNode(name, from string, cidrs ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon)}}
	n.Spec.PodCIDRs = cidrs
	if from != "" {
		n.Annotations = map[string]string{v1alpha1.ClusterCIDRAnnotation: from}
	}
	return n
}

func labelled(n corev1.Node, pairs ...string) corev1.Node {
	n.Labels = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		n.Labels[pairs[i]] = pairs[i+1]
	}
	return n
}

// newTestRange returns a ClusterCIDR that assigns /24s.
func newTestRange(name, ipv4 string, change ...func(*v1alpha1.ClusterCIDR)) v1alpha1.ClusterCIDR {
	c := v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: ipv4}
	for _, f := range change {
		f(&c)
	}
	return c
}

// selecting makes a ClusterCIDR select Nodes by a label.
func selecting(key, value string) func(*v1alpha1.ClusterCIDR) {
	return func(c *v1alpha1.ClusterCIDR) {
		c.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}
	}
}

func beingDeleted(c *v1alpha1.ClusterCIDR) {
	c.DeletionTimestamp = &metav1.Time{Time: noon}
	c.Finalizers = []string{v1alpha1.ClusterCIDRFinalizer}
}

// forClusters makes a ClusterCIDR one of a fleet, with the given entries in its status.
func forClusters(uses ...v1alpha1.ClusterUse) func(*v1alpha1.ClusterCIDR) {
	return func(c *v1alpha1.ClusterCIDR) {
		c.Spec.ClusterSelector, c.Status.Clusters = &metav1.LabelSelector{}, uses
	}
}

// withCondition adds a condition to the status of a ClusterCIDR.
func withCondition(kind string, status metav1.ConditionStatus, reason, message string) func(*v1alpha1.ClusterCIDR) {
	return func(c *v1alpha1.ClusterCIDR) {
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

// stateWithGrant returns a fence state with a grant to a Node in flight.
func stateWithGrant(holder, node, from string, cidrs ...string) *fence.State {
	s := &fence.State{Holder: holder, Term: 2}
	if node != "" {
		s.InFlight = []fence.Grant{{NodeName: node, NodeUID: types.UID(node), ClusterCIDRName: from, CIDRs: prefixes(cidrs...)}}
	}
	return s
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// fromPool makes a ClusterCIDR one of a fleet that takes blocks of four Nodes from a pool.
func fromPool(c *v1alpha1.ClusterCIDR) {
	c.Spec.IPv4, c.Spec.ClusterSelector = "", &metav1.LabelSelector{}
	c.Spec.IPv4Pool = &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods", NodesPerBlock: 4}
}
