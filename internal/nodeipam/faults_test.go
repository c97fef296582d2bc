package nodeipam_test

import (
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

func forbidden(r *faults.Request) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: string(r.Ref.Kind)}, r.Ref.Name, errors.New("a policy says so"))
}

// The objects.

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: object(name)} }

func sized(name, size string) *corev1.Node {
	n := node(name)
	n.Labels = map[string]string{"size": size}
	return n
}

func newNodeWithCIDRs(name string, cidrs ...string) *corev1.Node {
	n := node(name)
	n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
	return n
}

func clusterCIDR(name, ipv4 string, bits int32) *v1alpha1.ClusterCIDR {
	return &v1alpha1.ClusterCIDR{ObjectMeta: object(name), Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: bits, IPv4: ipv4}}
}

func dual(c *v1alpha1.ClusterCIDR, ipv6 string) *v1alpha1.ClusterCIDR {
	c.Spec.IPv6 = ipv6
	return c
}

func forSize(c *v1alpha1.ClusterCIDR, size string) *v1alpha1.ClusterCIDR {
	c.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpIn, Values: []string{size}}},
	}}}
	return c
}

func forServices(cidr string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: object("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}
}

var twoFamilies = []string{"10.0.0.0/23", "10.0.4.0/23", "fd00::/119", "fd00::400/119"}

var threeBlocks = []string{"10.0.0.0/23", "10.0.4.0/23", "10.0.8.0/23"}

func removeBlock(name string) action {
	return sim.NewAttempt("delete block "+name, func(w *world) bool {
		return w.api.Delete(faults.Ref{Kind: faults.Allocations, Namespace: prod.Namespace, Name: name}, false) == nil
	})
}

// prod is the Cluster of a fleet.
var prod = nodeipam.ClusterKey{Namespace: "team", Name: "prod"}

func clusterProd() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: prod.Namespace, Name: prod.Name, Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}}
}

func forClusters(c *v1alpha1.ClusterCIDR) *v1alpha1.ClusterCIDR {
	c.Spec.ClusterSelector = &metav1.LabelSelector{}
	return c
}

// The actions of users.

// newUninitializedNode returns a Node that registers before its labels are there, and has a taint for that.
func newUninitializedNode(name string) *corev1.Node {
	n := node(name)
	n.Spec.Taints = []corev1.Taint{{Key: clusterv1.NodeUninitializedTaint.Key, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

// initialized adds the labels of an uninitialized Node, and removes its taint.
func initialized(name, size string) action {
	return sim.NewAttempt("initialize "+name, func(w *world) bool {
		return faults.EditObject(w.api, ref(faults.Nodes, name), func(o *corev1.Node) {
			o.SetLabels(map[string]string{"size": size})
			o.Spec.Taints = nil
		}) == nil
	})
}

// expectCIDROf checks that a Node has CIDRs of a ClusterCIDR, if it has any by now.
func expectCIDROf(name, from string) action {
	return sim.NewAttempt(name+" has of "+from, func(w *world) bool {
		for _, n := range w.nodes() {
			if current := n.Annotations[v1alpha1.ClusterCIDRAnnotation]; n.Name == name && len(n.Spec.PodCIDRs) > 0 && current != from {
				w.Failf("K7: Node %s has %v of ClusterCIDR %s, and not of %s, which its labels select", name, n.Spec.PodCIDRs, current, from)
			}
		}
		return true
	})
}

// heartbeat is a write of a kubelet that changes nothing of interest.
func heartbeat(name string) action {
	return sim.NewAttempt("heartbeat of "+name, func(w *world) bool {
		at := fmt.Sprint(w.api.ResourceVersion())
		return w.api.EditObject(ref(faults.Nodes, name), func(o client.Object) {
			o.SetAnnotations(mergeInto(o.GetAnnotations(), "heartbeat", at))
		}) == nil
	})
}

func mergeInto(m map[string]string, key, value string) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	out[key] = value
	return out
}

// labelProd adds or removes the label that makes the Nodes of the Cluster get CIDRs.
func labelProd(wanted bool) action {
	return sim.NewAttempt(fmt.Sprintf("label the Cluster: %v", wanted), func(w *world) bool {
		return w.api.EditObject(faults.RefForObject(clusterProd()), func(o client.Object) {
			o.SetLabels(nil)
			if wanted {
				o.SetLabels(clusterProd().Labels)
			}
		}) == nil
	})
}

// setOtherClusterUse adds or removes the entry of another Cluster in a ClusterCIDR.
func setOtherClusterUse(name string, uses bool) action {
	return sim.NewAttempt(fmt.Sprintf("another Cluster uses %s: %v", name, uses), func(w *world) bool {
		return faults.EditStatus(w.api, ref(faults.ClusterCIDRs, name), func(c *v1alpha1.ClusterCIDR) {
			c.Status.Clusters = slices.DeleteFunc(c.Status.Clusters, func(u v1alpha1.ClusterUse) bool { return u.Name == "another" })
			if uses {
				c.Status.Clusters = append(c.Status.Clusters, v1alpha1.ClusterUse{Namespace: "team", Name: "another", Mark: "m"})
			}
		}) == nil
	})
}

func add(o client.Object) action {
	return sim.NewAttempt("add "+o.GetName(), func(w *world) bool { return w.api.Create(o.DeepCopyObject().(client.Object)) == nil })
}

func remove(kind faults.Kind, name string) action {
	return sim.NewAttempt(fmt.Sprintf("delete %s %s", kind, name), func(w *world) bool { return w.api.Delete(ref(kind, name), false) == nil })
}

// drain deletes a Node that a foreign finalizer keeps, such as karpenter's; gone removes that finalizer.
func drain(name string) action {
	return sim.NewAttempt("drain "+name, func(w *world) bool {
		_ = w.api.EditObject(ref(faults.Nodes, name), func(o client.Object) { o.SetFinalizers([]string{"karpenter.sh/termination"}) })
		return w.api.Delete(ref(faults.Nodes, name), false) == nil
	})
}

func gone(name string) action {
	return sim.NewAttempt("end of "+name, func(w *world) bool { return w.api.Delete(ref(faults.Nodes, name), true) == nil })
}

// replace deletes a Node and creates another of its name at once.
func replace(name string) action {
	return sim.NewAttempt("replace "+name, func(w *world) bool {
		return w.api.Delete(ref(faults.Nodes, name), true) == nil && w.api.Create(node(name)) == nil
	})
}

// setByHand sets the CIDRs of a Node as another allocator would.
func setByHand(name string, cidrs ...string) action {
	return sim.NewAttempt("set the CIDRs of "+name, func(w *world) bool {
		_ = faults.EditObject(w.api, ref(faults.Nodes, name), func(n *corev1.Node) {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
		})
		return true
	})
}

func label(name, size string) action {
	return sim.NewAttempt("label "+name, func(w *world) bool {
		return w.api.EditObject(ref(faults.Nodes, name), func(o client.Object) { o.SetLabels(map[string]string{"size": size}) }) == nil
	})
}

var touchFence = sim.NewAttempt("touch the ConfigMap", func(w *world) bool {
	return w.api.EditObject(fenceRef, func(o client.Object) { o.SetLabels(map[string]string{"by": "hand"}) }) == nil
})

// saveFence saves the content of the ConfigMap; restoreFence restores it, without the grants made since.
var saveFence = sim.NewAttempt("note the ConfigMap", func(w *world) bool {
	for _, o := range faults.ListObjects[*corev1.ConfigMap](w.api) {
		w.saved = o
	}
	return w.saved != nil
})

var restoreFence = sim.NewAttempt("put the ConfigMap back", func(w *world) bool {
	return faults.EditObject(w.api, fenceRef, func(o *corev1.ConfigMap) { o.Data = w.saved.Data }) == nil
})

// loseFence deletes the ConfigMap regardless of its finalizer.
var loseFence = sim.NewAttempt("lose the ConfigMap", func(w *world) bool { return w.api.Delete(fenceRef, true) == nil })

var deleteFence = sim.NewAttempt("delete the ConfigMap", func(w *world) bool { return w.api.Delete(fenceRef, false) == nil })

func ref(kind faults.Kind, name string) faults.Ref { return faults.Ref{Kind: kind, Name: name} }

var fenceRef = faults.Ref{Kind: faults.ConfigMaps, Namespace: fence.ConfigMapNamespace, Name: fence.ConfigMapName}

var scenarios = []scenario{
	{
		name: "three Nodes", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{add(node("x"))}, served: 3,
	},
	{
		name: "full, then not", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a"), node("b"), node("x")},
		script: []action{remove(faults.Nodes, "a"), add(node("y")), add(clusterCIDR("d", "10.1.0.0/23", 8))}, served: 3,
	},
	{
		name: "its finalizer keeps a Node", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a"), node("b")},
		script: []action{drain("a"), add(node("x")), gone("a")}, served: 2,
	},
	{
		name: "replaced", before: []client.Object{clusterCIDR("c", "10.0.0.0/24", 8), node("a")},
		script: []action{replace("a"), add(node("b")), replace("a")}, served: 1,
	},
	{
		name: "two families", before: []client.Object{dual(clusterCIDR("c", "10.0.0.0/22", 8), "fd00::/119"), node("a"), node("b"), node("x")},
		script: []action{remove(faults.Nodes, "a")}, served: 2,
	},
	{
		name: "sizes in one range", before: []client.Object{
			clusterCIDR("small", "10.0.0.0/23", 7), forSize(clusterCIDR("big", "10.0.0.0/23", 8), "big"), sized("a", "big"), node("b"), node("x"),
		},
		script: []action{remove(faults.Nodes, "b"), add(sized("y", "big")), add(node("z"))}, served: 3,
	},
	{
		name: "deleted in use", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a")},
		script: []action{remove(faults.ClusterCIDRs, "c"), add(node("b")), remove(faults.Nodes, "a")}, served: 0,
	},
	{
		name: "deleted and made again", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a")},
		script: []action{remove(faults.ClusterCIDRs, "c"), remove(faults.Nodes, "a"), add(clusterCIDR("c", "10.0.0.0/23", 7)), add(node("b"))}, served: 1,
	},
	{
		name: "of two with one range one goes", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a")},
		script: []action{add(clusterCIDR("b", "10.0.0.0/23", 8)), remove(faults.ClusterCIDRs, "c"), add(node("x")), remove(faults.Nodes, "a"), add(node("y"))}, served: 2,
	},
	{
		name: "labels decide later", before: []client.Object{forSize(clusterCIDR("big", "10.0.0.0/23", 8), "big"), node("a")},
		script: []action{label("a", "big")}, served: 1,
	},
	{
		name: "adopted", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), newNodeWithCIDRs("a", "10.0.1.0/24"), newNodeWithCIDRs("b", "192.168.0.0/24"), node("x")},
		script: []action{add(node("y"))}, served: 3,
	},
	{
		name: "set by another", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{add(node("x")), setByHand("x", "10.0.2.0/24"), add(node("y"))}, served: 4,
	},
	{
		name: "the ConfigMap is touched", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{touchFence, add(node("x"))}, served: 3,
	},
	{
		name: "the ConfigMap is deleted", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{deleteFence, add(node("x"))}, served: 3,
	},
	{
		name: "the ConfigMap is lost", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{loseFence, add(node("x")), remove(faults.Nodes, "a")}, served: 2,
	},
	{
		name: "the ConfigMap is lost beside requests", before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a"), node("b")},
		script: []action{loseFence, remove(faults.Nodes, "a"), add(node("x")), add(node("y"))}, served: 2,
	},
	{
		name: "the ConfigMap is put back", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{saveFence, add(node("x")), add(node("y")), restoreFence, remove(faults.Nodes, "x"), add(node("z"))}, served: 4,
	},
	{
		name: "two managers", managers: 2, before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{add(node("x")), remove(faults.Nodes, "a"), add(node("y"))}, served: 3,
	},
	{
		name: "two managers, deleted in use", managers: 2, before: []client.Object{clusterCIDR("c", "10.0.0.0/23", 8), node("a")},
		script: []action{remove(faults.ClusterCIDRs, "c"), add(node("b")), remove(faults.Nodes, "a"), add(clusterCIDR("d", "10.0.0.0/24", 8))}, served: 1,
	},
	{
		name: "fleet, three Nodes", fleet: true, before: []client.Object{clusterProd(), forClusters(clusterCIDR("c", "10.0.0.0/22", 8)), node("a"), node("b")},
		script: []action{add(node("x")), setOtherClusterUse("c", true), add(node("y"))}, served: 4,
	},
	{
		name: "fleet, deleted in use", fleet: true, before: []client.Object{clusterProd(), forClusters(clusterCIDR("c", "10.0.0.0/23", 8)), node("a")},
		script: []action{setOtherClusterUse("c", true), remove(faults.ClusterCIDRs, "c"), add(node("b")), remove(faults.Nodes, "a"), setOtherClusterUse("c", false)}, served: 0,
	},
	{
		name: "fleet, the label goes and comes", fleet: true, before: []client.Object{clusterProd(), forClusters(clusterCIDR("c", "10.0.0.0/23", 8)), node("a")},
		script: []action{labelProd(false), add(node("b")), remove(faults.Nodes, "a"), labelProd(true), add(node("x"))}, served: 2,
	},
	{
		name: "fleet, two managers, the label goes and comes", fleet: true, managers: 2,
		before: []client.Object{clusterProd(), forClusters(clusterCIDR("c", "10.0.0.0/23", 8)), node("a")},
		script: []action{labelProd(false), remove(faults.Nodes, "a"), labelProd(true), add(node("b")), labelProd(false), remove(faults.Nodes, "b")}, served: 0,
	},
	{
		name: "fleet, the ConfigMap is lost", fleet: true, before: []client.Object{clusterProd(), forClusters(clusterCIDR("c", "10.0.0.0/22", 8)), node("a"), node("b")},
		script: []action{loseFence, add(node("x")), remove(faults.Nodes, "a")}, served: 2,
	},
	{
		name: "blocks, five Nodes", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a"), node("b")},
		script: []action{add(node("x")), add(node("y")), add(node("z"))}, served: 5,
	},
	{
		name: "blocks, one goes back", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a"), node("b"), node("x")},
		script: []action{remove(faults.Nodes, "x"), add(node("y")), remove(faults.Nodes, "a"), add(node("z"))}, served: 3,
	},
	{
		name: "blocks, one is deleted in use", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
		script: []action{removeBlock("prod-pods-4-1"), add(node("b")), remove(faults.Nodes, "a"), add(node("x")), add(node("y"))}, served: 3,
	},
	{
		name: "blocks, too few", fleet: true, pool: threeBlocks[:1], before: []client.Object{clusterProd(), fromPool("c"), node("a"), node("b"), node("x")},
		script: []action{remove(faults.Nodes, "a")}, served: 2,
	},
	{
		name: "blocks, as many as there may be", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), atMost(1, fromPool("c")), node("a"), node("b"), node("x")},
		script: []action{add(forClusters(clusterCIDR("d", "10.1.0.0/24", 8))), remove(faults.Nodes, "a")}, served: 2,
	},
	{
		name: "blocks, their ClusterCIDR is deleted", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
		script: []action{remove(faults.ClusterCIDRs, "c"), add(node("b")), remove(faults.Nodes, "a")}, served: 0,
	},
	{
		name: "blocks, the label goes and comes", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
		script: []action{labelProd(false), remove(faults.Nodes, "a"), labelProd(true), add(node("b"))}, served: 1,
	},
	{
		name: "blocks, two managers", fleet: true, pool: threeBlocks, managers: 2, before: []client.Object{clusterProd(), fromPool("c"), node("a"), node("b")},
		script: []action{add(node("x")), remove(faults.Nodes, "x"), add(node("y")), remove(faults.Nodes, "a")}, served: 2,
	},
	{
		name: "blocks, the ConfigMap is lost", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a"), node("b")},
		script: []action{loseFence, add(node("x")), remove(faults.Nodes, "a")}, served: 2,
	},
	{
		name: "blocks of two families", fleet: true, pool: twoFamilies, before: []client.Object{clusterProd(), alsoFromPool(fromPool("c")), node("a"), node("b")},
		script: []action{add(node("x")), remove(faults.Nodes, "a"), add(node("y")), remove(faults.Nodes, "x")}, served: 2,
	},
	{
		// The second IPv4 block is of no use without an IPv6 block.
		name: "blocks of two families, one has too few", fleet: true, pool: slices.Concat(threeBlocks, twoFamilies[2:3]),
		before: []client.Object{clusterProd(), alsoFromPool(fromPool("c")), node("a"), node("b")},
		script: []action{add(node("x")), remove(faults.Nodes, "a"), add(node("y"))}, served: 2,
	},
	{
		name: "a range of one family, blocks of the other", fleet: true, pool: twoFamilies, before: []client.Object{
			clusterProd(), alsoFromPool(forClusters(clusterCIDR("c", "10.1.0.0/22", 8))), node("a"), node("b"),
		},
		script: []action{add(node("x")), remove(faults.Nodes, "a"), remove(faults.Nodes, "b"), remove(faults.ClusterCIDRs, "c")}, served: 1,
	},
	{
		name: "two sites, blocks", fleet: true, managesItself: true, pool: threeBlocks, before: []client.Object{
			clusterProd(), fromPool("c"), forSize(clusterCIDR("own", "10.9.0.0/22", 8), "big"), node("a"), sized("b", "big"),
		},
		script: []action{add(sized("x", "big")), remove(faults.Nodes, "a"), add(node("y")), add(sized("z", "big"))}, served: 4,
	},
	{
		name: "two sites, named ranges", fleet: true, managesItself: true, before: []client.Object{
			clusterProd(), forClusters(clusterCIDR("c", "10.0.0.0/22", 8)), forSize(clusterCIDR("own", "10.0.0.0/22", 8), "big"), node("a"), sized("b", "big"),
		},
		script: []action{add(sized("x", "big")), remove(faults.ClusterCIDRs, "own"), add(node("y")), remove(faults.Nodes, "a")}, served: 3,
	},
	{
		name: "they come with CIDRs", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a")},
		script: []action{add(newNodeWithCIDRs("w", "10.0.1.0/24")), add(node("x")), add(newNodeWithCIDRs("f", "192.168.0.0/24")), add(node("y"))}, served: 5,
	},
	{
		name: "labels come late", before: []client.Object{clusterCIDR("all", "10.0.0.0/22", 8), forSize(clusterCIDR("big", "10.0.0.0/22", 9), "big"), newUninitializedNode("a")},
		script: []action{waitFor(10 * time.Second), initialized("a", "big"), expectCIDROf("a", "big"), add(newUninitializedNode("x")), waitFor(3 * time.Minute), expectCIDROf("x", "all")}, served: 2,
	},
	{
		name: "heartbeats", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{heartbeat("a"), heartbeat("b"), add(node("x")), heartbeat("x"), heartbeat("a"), remove(faults.Nodes, "b"), heartbeat("a"), add(node("y"))}, served: 3,
	},
	{
		name: "a clock that is ahead", clocks: []time.Duration{8 * time.Hour}, before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), newNodeWithCIDRs("a", "10.0.1.0/24"), node("b")},
		script: []action{add(node("x"))}, served: 3,
	},
	{
		name: "a clock that is behind", clocks: []time.Duration{-8 * time.Hour}, before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), newNodeWithCIDRs("a", "10.0.1.0/24"), node("b")},
		script: []action{add(node("x"))}, served: 3,
	},
	{
		name: "Services have some of it", before: []client.Object{forServices("10.0.1.0/24"), clusterCIDR("c", "10.0.0.0/22", 8), node("a"), node("b")},
		script: []action{add(node("x")), add(node("y")), remove(faults.Nodes, "a")}, served: 3,
	},
	{
		name: "fleet, Services have some of it", fleet: true, before: []client.Object{
			clusterProd(), forServices("10.0.0.0/24"), forClusters(clusterCIDR("c", "10.0.0.0/23", 8)), node("a"),
		},
		script: []action{add(node("b")), remove(faults.Nodes, "a")}, served: 1,
	},
	{
		name: "one is refused", refuses: "bad", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("bad"), node("b")},
		script: []action{add(node("x")), remove(faults.Nodes, "bad")}, served: 2,
	},
}

// fault is what happens at the n-th write.
type fault struct {
	name string
	do   func(*world, *faults.Request)
	// reads reports whether the fault can happen at a read as well.
	reads bool
}

// breakWatches breaks watches of some managers, and lets the call happen.
func breakWatches(kind faults.Kind, delay time.Duration, of func(*world, *manager, *faults.Request) bool) func(*world, *faults.Request) {
	return func(w *world, r *faults.Request) {
		for _, m := range w.Managers {
			if of(w, m, r) {
				w.relist(m, kind, delay)
			}
		}
		w.ExecuteAndAnswer(r)
	}
}

func isCaller(_ *world, m *manager, r *faults.Request) bool { return m.Name == r.Client }
func isOther(_ *world, m *manager, r *faults.Request) bool  { return m.Name != r.Client && !m.Dead }
func isFleetCaller(w *world, m *manager, r *faults.Request) bool {
	return w.fleet && m.Name == r.Client
}
func isPoolCaller(w *world, m *manager, r *faults.Request) bool {
	return w.pool != nil && m.Name == r.Client
}
func isPoolOther(w *world, m *manager, r *faults.Request) bool {
	return w.pool != nil && isOther(w, m, r)
}

var faultsOfWrites = []fault{
	{name: "killed before", do: func(w *world, r *faults.Request) { w.CrashBefore(r) }},
	{name: "killed after", do: func(w *world, r *faults.Request) { w.CrashAfter(r) }},
	{name: "answer lost", do: func(w *world, r *faults.Request) { w.LoseAnswer(r) }},
	{name: "never arrives", do: func(w *world, r *faults.Request) { w.Answer(r, nil, sim.ErrTimeout) }},
	{name: "late", do: func(w *world, r *faults.Request) { w.DelayCall(r, 4, 10*time.Second) }},
	{name: "very late", do: func(w *world, r *faults.Request) { w.DelayCall(r, 0, 40*time.Second) }},
	{name: "killed, lands late", do: func(w *world, r *faults.Request) { w.CrashLate(r, 4, 40*time.Second) }},
	{name: "killed, the ConfigMap lost, another Node comes first, lands late", do: func(w *world, r *faults.Request) {
		w.CrashBefore(r)
		w.ChangeAsUser("the ConfigMap is lost, and Node 0 comes", func() {
			_ = w.api.Delete(fenceRef, true)
			_ = w.api.Create(sized("0", "big"))
		})
		w.ExecuteLate(r, 0, 40*time.Second)
	}},
	{name: "late, its Node is drained", do: func(w *world, r *faults.Request) {
		if r.Ref.Kind != faults.Nodes {
			w.ExecuteAndAnswer(r)
			return
		}
		w.ChangeAsUser("drain "+r.Ref.Name, func() { drain(r.Ref.Name).Do(w) })
		w.DelayCall(r, 0, 40*time.Second)
	}},
	{name: "refused", do: func(w *world, r *faults.Request) { w.Answer(r, nil, forbidden(r)) }},
	{name: "failed", do: func(w *world, r *faults.Request) { w.Answer(r, nil, apierrors.NewInternalError(errors.New("etcd"))) }},
	{name: "paused, another manager works", do: func(w *world, r *faults.Request) { w.PauseBefore(r, 0, 30*time.Second) }, reads: true},
	{name: "answered after a pause in which another manager works", do: func(w *world, r *faults.Request) {
		w.ExecuteAndAnswer(r)
		w.PauseManager(w.Manager(r.Client), 0, 30*time.Second, func() {})
	}, reads: true},
	{name: "the watch of Nodes breaks", do: breakWatches(faults.Nodes, 8*time.Second, isCaller)},
	{name: "the others' watch of ClusterCIDRs breaks", do: breakWatches(faults.ClusterCIDRs, 90*time.Second, isOther)},
	{name: "the watch of Clusters breaks", do: breakWatches(faults.Clusters, 90*time.Second, isFleetCaller)},
	{name: "the others' watch of IPAllocations breaks", do: breakWatches(faults.Allocations, 90*time.Second, isPoolOther)},
	{name: "the watch of IPAllocations breaks", do: breakWatches(faults.Allocations, 90*time.Second, isPoolCaller)},
	{name: "the watch of ClusterCIDRs breaks", do: breakWatches(faults.ClusterCIDRs, 8*time.Second, isCaller)},
}

func at(n int, f fault) func(*world) {
	return func(w *world) {
		w.Disturb = func(w *world, r *faults.Request) bool {
			if (f.reads && w.Calls < n) || (!f.reads && (!r.IsWrite() || w.Writes < n)) {
				return false
			}
			w.Disturb = nil
			w.Tracef("%s: %s", r, f.name)
			f.do(w, r)
			return true
		}
	}
}

// full runs every schedule. Without it, only a sixth of the schedules is run of the scenarios with a pool, which take
// many more calls than the others. To run a single one, the flag is needed too:
//
//	go test ./internal/nodeipam -run 'TestFaultsAtEveryWrite/blocks,_too_few/lazy/late/7' -args -full
var full = flag.Bool("full", false, "run every schedule, and not a part of those with a pool")

// runs reports whether the n-th run of a fault is part of this test run: a sixth of the runs with a pool is, and with
// -short a third of the remaining ones.
func (s scenario) runs(name string, n int) bool {
	part := 1
	if s.pool != nil {
		part = 6
	}
	if testing.Short() {
		part *= 3
	}
	return *full || (n+int(crc32.ChecksumIEEE([]byte(s.name+name))))%part == 0
}

// TestFaultsAtEveryWrite runs each scenario with each fault at each write, or call, in each order, with users that wait
// and with some that do not; and with its users acting before each write.
func TestFaultsAtEveryWrite(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range names(sim.Orders) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					s.runWithFaults(t, func(w *world) { w.Order = sim.Orders[name] })
				})
			}
		})
	}
}

// runWithFaults runs the scenario as it is, and then with each fault.
func (s scenario) runWithFaults(t *testing.T, in func(*world)) {
	t.Helper()
	var calls int
	writes := s.run(t, func(w *world) {
		in(w)
		w.Disturb = func(w *world, _ *faults.Request) bool { calls = w.Calls; return false }
	})
	for _, f := range faultsOfWrites {
		most := writes
		if f.reads {
			most = calls
		}
		for n := 1; n <= most; n++ {
			if s.runs(f.name, n) {
				s.runWithFault(t, f, n, in)
			}
		}
	}
	for n := 1; n <= writes; n++ {
		if !s.runs("hurry", n) {
			continue
		}
		t.Run(fmt.Sprintf("hurry/%d", n), func(t *testing.T) {
			s := s
			s.served = -1
			s.run(t, func(w *world) { in(w); w.Hurry = n })
		})
	}
}

// runWithFault runs the scenario with one fault, with patient and with impatient users.
func (s scenario) runWithFault(t *testing.T, f fault, n int, in func(*world)) {
	t.Helper()
	t.Run(fmt.Sprintf("%s/%d", f.name, n), func(t *testing.T) {
		s := s
		if f.name == "refused" || strings.Contains(f.name, "another Node") || strings.Contains(f.name, "drained") {
			s.served = -1
		}
		s.run(t, func(w *world) { in(w); at(n, f)(w) })
		s.served = -1
		s.run(t, func(w *world) { in(w); at(n, f)(w); w.Impatient = true })
	})
}

// TestRandomFaultsInRandomOrder runs each scenario with many faults, in any order.
func TestRandomFaultsInRandomOrder(t *testing.T) {
	t.Parallel()
	runs := 400
	if testing.Short() {
		runs = 12
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for seed := range runs {
				t.Run(fmt.Sprint(seed), func(t *testing.T) { s.storm(t, uint64(seed)) })
			}
		})
	}
}

func (s scenario) storm(t *testing.T, seed uint64) {
	t.Helper()
	s.served = -1
	s.run(t, func(w *world) {
		r := rand.New(rand.NewPCG(seed, uint64(crc32.ChecksumIEEE([]byte(s.name)))))
		w.Order, w.Anytime = sim.RandomOrder(r), true
		left := 6
		w.Disturb = func(w *world, q *faults.Request) bool {
			f := faultsOfWrites[r.IntN(len(faultsOfWrites))]
			if (!q.IsWrite() && !f.reads) || left == 0 || r.IntN(4) > 0 {
				return false
			}
			if left--; left == 0 {
				w.Disturb = nil
			}
			w.Tracef("%s: %s", q, f.name)
			f.do(w, q)
			return true
		}
	})
}
