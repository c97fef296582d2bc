package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// nodeWorld is shared by specs about the Nodes of one cluster. The specs run one after the other; each has a label of
// its own for its Nodes and ClusterCIDRs, and leaves none behind.
type nodeWorld struct{ labelValue string }

// newNodeWorld returns a world in which each spec of an ordered container begins without Nodes and ClusterCIDRs.
func newNodeWorld() *nodeWorld {
	w := &nodeWorld{}
	BeforeAll(func(ctx SpecContext) {
		for _, o := range applyPolicy(ctx, k8s, "nodes.yaml") {
			DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
		}
	})
	BeforeEach(func() {
		w.labelValue = fmt.Sprintf("n%d", names.Add(1))
		DeferCleanup(func(ctx context.Context) {
			var all corev1.NodeList
			Expect(k8s.List(ctx, &all, client.MatchingLabels{"spec": w.labelValue})).To(Succeed())
			for i := range all.Items {
				n := &all.Items[i]
				if len(n.Finalizers) > 0 {
					n.Finalizers = nil
					Expect(k8s.Update(ctx, n)).To(Succeed())
				}
				w.remove(ctx, n)
			}
			var ranges v1alpha1.ClusterCIDRList
			Expect(k8s.List(ctx, &ranges)).To(Succeed())
			for i := range ranges.Items {
				c := &ranges.Items[i]
				if controllerutil.RemoveFinalizer(c, v1alpha1.ClusterCIDRFinalizer) {
					Expect(k8s.Update(ctx, c)).To(Succeed())
				}
				w.remove(ctx, c)
			}
			fence := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "butler-node-cidrs"}}
			if k8s.Get(ctx, client.ObjectKeyFromObject(fence), fence) == nil {
				fence.Finalizers = nil
				Expect(k8s.Update(ctx, fence)).To(Succeed())
				w.remove(ctx, fence)
			}
		})
	})
	return w
}

// nodes starts a manager that serves Nodes alone, with the rights of config/rbac/node_cidrs_role.yaml, restricted by
// the policy for Nodes.
func (w *nodeWorld) nodes(ctx context.Context, args ...string) *framework.Manager {
	GinkgoHelper()
	kubeconfig, err := cp.NodesManagerKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	m, err := framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: kubeconfig, Args: append([]string{"--node-cidrs=only"}, args...)})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(m.LogTail(60))
		}
		Expect(m.Kill()).To(Succeed())
	})
	DeferCleanup(expectRest, m)
	return m
}

// skipAdoptionWait writes a record of an earlier holder, so that the next manager does not wait until writes of
// another allocator have landed.
func (w *nodeWorld) skipAdoptionWait(ctx context.Context) {
	GinkgoHelper()
	fence := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "butler-node-cidrs"}}
	_, err := controllerutil.CreateOrUpdate(ctx, k8s, fence, func() error {
		fence.Data = map[string]string{"state": `{"holder":"before","term":1,"seq":0}`}
		return nil
	})
	Expect(err).NotTo(HaveOccurred())
}

func (w *nodeWorld) node(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.labelValue + "-" + name, Labels: map[string]string{"spec": w.labelValue}}}
	for _, l := range labels {
		n.Labels[l] = "yes"
	}
	return n
}

// clusterCIDR returns a ClusterCIDR for the Nodes of the spec, or for those of them that have the given labels too.
func (w *nodeWorld) clusterCIDR(name string, bits int32, ipv4, ipv6 string, labels ...string) *v1alpha1.ClusterCIDR {
	terms := []corev1.NodeSelectorRequirement{{Key: "spec", Operator: corev1.NodeSelectorOpIn, Values: []string{w.labelValue}}}
	for _, l := range labels {
		terms = append(terms, corev1.NodeSelectorRequirement{Key: l, Operator: corev1.NodeSelectorOpExists})
	}
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: w.labelValue + "-" + name}}
	c.Spec = v1alpha1.ClusterCIDRSpec{
		PerNodeHostBits: bits, IPv4: ipv4, IPv6: ipv6,
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: terms}}},
	}
	return c
}

func (w *nodeWorld) read(ctx context.Context, name string) *corev1.Node {
	GinkgoHelper()
	n := &corev1.Node{}
	Expect(k8s.Get(ctx, client.ObjectKey{Name: w.labelValue + "-" + name}, n)).To(Succeed())
	return n
}

// cidrsOf waits until a Node has pod CIDRs, and returns them.
func (w *nodeWorld) cidrsOf(ctx context.Context, name string) []string {
	GinkgoHelper()
	var out []string
	Eventually(func(g Gomega) {
		out = w.read(ctx, name).Spec.PodCIDRs
		g.Expect(out).NotTo(BeEmpty())
	}).Should(Succeed(), "Node %s has no pod CIDR", name)
	return out
}

func (w *nodeWorld) readyOf(ctx context.Context, name string) func(Gomega) metav1.Condition {
	return func(g Gomega) metav1.Condition {
		c := &v1alpha1.ClusterCIDR{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Name: w.labelValue + "-" + name}, c)).To(Succeed())
		return ptr.Deref(meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ReadyCondition), metav1.Condition{})
	}
}

func (w *nodeWorld) remove(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, o))).To(Succeed())
	}
}

func (w *nodeWorld) goneOf(ctx context.Context, o client.Object) func() bool {
	return func() bool { return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(o), o)) }
}

// eventsOf returns the notes of the events with a reason on a Node.
func (w *nodeWorld) eventsOf(ctx context.Context, name, reason string) func() []string {
	return func() (out []string) {
		var all eventsv1.EventList
		Expect(k8s.List(ctx, &all)).To(Succeed())
		for _, e := range all.Items {
			if e.Regarding.Name == w.labelValue+"-"+name && e.Reason == reason {
				out = append(out, e.Note)
			}
		}
		return out
	}
}
