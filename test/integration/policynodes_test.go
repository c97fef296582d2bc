package integration

import (
	"context"
	"fmt"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// applyPolicy creates the objects in a file of config/policy.
func applyPolicy(ctx context.Context, to client.Client, file string) []client.Object {
	GinkgoHelper()
	text, err := os.ReadFile("../../config/policy/" + file)
	Expect(err).NotTo(HaveOccurred())
	objs, err := framework.ParseManifests(text)
	Expect(err).NotTo(HaveOccurred())
	var out []client.Object
	for _, o := range objs {
		Expect(to.Create(ctx, o)).To(Succeed())
		out = append(out, o)
	}
	return out
}

var _ = Describe("The admission policy for Nodes", func() {
	It("confines the manager to the pod CIDRs, and restricts no other user", func(ctx SpecContext) {
		for _, o := range applyPolicy(ctx, k8s, "nodes.yaml") {
			DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
		}
		as := rest.CopyConfig(cp.Config) // with all rights, so that only the policy refuses
		as.Impersonate = rest.ImpersonationConfig{UserName: framework.NodesManagerUser, Groups: []string{"system:masters"}}
		confined, err := client.New(as, client.Options{Scheme: k8s.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		node := func(name string) *corev1.Node {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("policy-%d-%s", names.Add(1), name)}}
			n.Labels, n.Annotations, n.Spec.ProviderID = map[string]string{"zone": "a"}, map[string]string{"theirs": "yes"}, "some://node"
			n.Finalizers = []string{"example.com/theirs"}
			create(ctx, n)
			DeferCleanup(func(ctx SpecContext) {
				modify(ctx, n, func(n *corev1.Node) { n.Finalizers = nil })
				Expect(k8s.Delete(ctx, n)).To(Succeed())
			})
			return n
		}
		n := node("a")
		// changing sends a merge patch as the manager does: a difference to the Node as it was read, without a
		// resourceVersion.
		changing := func(change func(*corev1.Node)) error {
			GinkgoHelper()
			Expect(k8s.Get(ctx, keyOf(n), n)).To(Succeed())
			next := n.DeepCopy()
			change(next)
			return confined.Patch(ctx, next, client.MergeFrom(n))
		}
		label := func(n *corev1.Node) { n.Labels["zone"] = "b" }
		// The policy takes a moment to become effective.
		Eventually(func() error { return changing(func(n *corev1.Node) { n.Labels["probe"] = fmt.Sprint(names.Add(1)) }) }).
			Should(Satisfy(apierrors.IsForbidden))

		for _, tc := range []struct {
			wantChange string
			change     func(*corev1.Node)
		}{
			{"metadata.labels", label},
			{"the annotation theirs", func(n *corev1.Node) { n.Annotations["theirs"] = "no" }},
			{"the annotation more", func(n *corev1.Node) { n.Annotations["more"] = "" }},
			{"the annotation theirs", func(n *corev1.Node) { n.Annotations = nil }},
			{"metadata.finalizers", func(n *corev1.Node) { n.Finalizers = nil }},
			{"metadata.ownerReferences", func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{claimOwner("c", "u")} }},
			{"spec.taints", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}} }},
			{"spec.unschedulable", func(n *corev1.Node) { n.Spec.Unschedulable = true }},
			{"metadata.labels", func(n *corev1.Node) {
				n.Labels, n.Spec.PodCIDR, n.Spec.PodCIDRs = nil, "10.7.0.0/24", []string{"10.7.0.0/24"}
			}},
		} {
			Expect(changing(tc.change)).To(And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring("this changes "+tc.wantChange))), tc.wantChange)
		}
		Expect(confined.Delete(ctx, n)).To(And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring("this is DELETE"))))
		Expect(confined.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "policy-new"}})).
			To(And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring("this is CREATE"))))
		ready := n.DeepCopy()
		ready.Status.Phase = corev1.NodeRunning
		Expect(confined.Status().Patch(ctx, ready, client.MergeFrom(n))).To(And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring("of its status"))))

		By("setting pod CIDRs, once")
		give := func(cidr string) func(*corev1.Node) {
			return func(n *corev1.Node) {
				n.Annotations[v1alpha1.ClusterCIDRAnnotation], n.Spec.PodCIDR, n.Spec.PodCIDRs = "c", cidr, []string{cidr}
			}
		}
		Expect(changing(give("10.7.0.0/24"))).To(Succeed())
		Expect(changing(give("10.7.0.0/24"))).To(Succeed(), "it may be repeated")
		Expect(changing(give("10.7.1.0/24"))).To(Satisfy(apierrors.IsInvalid), "that it stays, the API server says, and the manager goes by that")

		By("writing as another user, which the policy does not restrict")
		modify(ctx, n, label)
		modify(ctx, n, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	})

	It("has no expression for which Kubernetes reports a warning", func(ctx SpecContext) {
		stop, err := cp.StartPolicyChecker()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(stop()).To(Succeed()) })
		for _, o := range append(applyPolicy(ctx, k8s, "nodes.yaml"), applyPolicy(ctx, k8s, "records.yaml")...) {
			DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
		}
		var all admissionv1.ValidatingAdmissionPolicyList
		Eventually(func(g Gomega) {
			g.Expect(k8s.List(ctx, &all)).To(Succeed())
			g.Expect(all.Items).To(HaveLen(2))
			for _, p := range all.Items {
				g.Expect(p.Status.TypeChecking).NotTo(BeNil(), p.Name)
			}
		}).WithTimeout(framework.LongTimeout).Should(Succeed())
		for _, p := range all.Items {
			Expect(p.Status.TypeChecking.ExpressionWarnings).To(BeEmpty(), p.Name)
		}
	})
})
