package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

var _ = Describe("ClusterCIDRs of node-ipam-controller", Ordered, func() {
	const flag, finalizer = "--serve-node-ipam-cluster-cidrs", "networking.x-k8s.io/cluster-cidr-finalizer"
	w := newNodeWorld()

	// newForeign returns a ClusterCIDR of node-ipam-controller from which Nodes of the spec have CIDRs: it has the
	// finalizer of that controller.
	newForeign := func(name, ipv4 string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("networking.x-k8s.io/v1")
		o.SetKind("ClusterCIDR")
		o.SetName(w.labelValue + "-" + name)
		o.SetFinalizers([]string{finalizer})
		o.Object["spec"] = map[string]any{
			"perNodeHostBits": int64(8), "ipv4": ipv4, "ipv6": "",
			"nodeSelector": map[string]any{"nodeSelectorTerms": []any{map[string]any{
				"matchExpressions": []any{map[string]any{"key": "spec", "operator": "In", "values": []any{w.labelValue}}},
			}}},
		}
		DeferCleanup(func(ctx context.Context) {
			if k8s.Get(ctx, client.ObjectKeyFromObject(o), o) == nil {
				o.SetFinalizers(nil)
				Expect(k8s.Update(ctx, o)).To(Succeed())
				w.remove(ctx, o)
			}
		})
		return o
	}
	// nodes starts a manager that reports that it adopts, and then one for which the wait is over.
	nodes := func(ctx context.Context) {
		GinkgoHelper()
		first := w.nodes(ctx, flag)
		Eventually(w.eventsOf(ctx, "theirs", "Adopting")).Should(ConsistOf(ContainSubstring("no grants before")))
		Expect(first.Kill()).To(Succeed())
		w.skipAdoptionWait(ctx)
		w.nodes(ctx, flag)
	}

	It("need their CRD when the flag that serves them is set", func(ctx SpecContext) {
		out, err := exec.CommandContext(ctx, binary, "--kubeconfig="+cp.Kubeconfig, "--node-cidrs=only", flag).CombinedOutput()
		Expect(err).To(HaveOccurred())
		Expect(string(out)).To(ContainSubstring("the CRD of node-ipam-controller is not installed here; run without " + flag))

		// The CRD is installed from here on.
		text, err := os.ReadFile(filepath.Join("testdata", "networking-x-clustercidrs.yaml"))
		Expect(err).NotTo(HaveOccurred())
		crd := &apiextensionsv1.CustomResourceDefinition{}
		Expect(yaml.UnmarshalStrict(text, crd)).To(Succeed())
		_, err = envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}})
		Expect(err).NotTo(HaveOccurred())
	})

	It("are served unchanged, beside ours, and Nodes keep their CIDRs", func(ctx SpecContext) { // K15, K16, K41, K48
		their := newForeign("theirs", "10.1.0.0/22")
		a, b := w.node("a"), w.node("b")
		a.Spec.PodCIDR, a.Spec.PodCIDRs = "10.1.0.0/24", []string{"10.1.0.0/24"}
		b.Spec.PodCIDR, b.Spec.PodCIDRs = "10.1.1.0/24", []string{"10.1.1.0/24"}
		create(ctx, their, a, b, w.node("c")) // without c the manager would have nothing to do
		nodes(ctx)
		Expect(w.cidrsOf(ctx, "c")).To(Equal([]string{"10.1.2.0/24"}))

		By("sharing the range with one of ours")
		create(ctx, w.clusterCIDR("ours", 8, "10.1.0.0/22", "", "ours"))
		Eventually(w.readyOf(ctx, "ours")).Should(HaveField("Message", "1 of 4 node CIDRs are free"))
		create(ctx, w.node("d", "ours")) // it would get a CIDR of theirs, if ours were not observed yet
		Expect(w.cidrsOf(ctx, "d")).To(Equal([]string{"10.1.3.0/24"}))
		create(ctx, w.node("x"))
		Eventually(w.eventsOf(ctx, "x", "CIDRNotAvailable")).ShouldNot(BeEmpty())
		Eventually(w.eventsOf(ctx, "theirs", "Exhausted")).ShouldNot(BeEmpty())

		By("deleting it, which waits for its Nodes")
		w.remove(ctx, their)
		Eventually(w.eventsOf(ctx, "theirs", "Deleting")).Should(ContainElement(ContainSubstring("3 Nodes use it: %[1]s-a, %[1]s-b, %[1]s-c", w.labelValue)))
		for _, n := range []*corev1.Node{a, b} {
			Expect(w.read(ctx, n.Name[len(w.labelValue)+1:]).ResourceVersion).To(Equal(n.ResourceVersion), "it was written")
		}
		w.remove(ctx, w.node("a"), w.node("b"))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(their), their)).To(Succeed())
		Expect(their.GetFinalizers()).To(Equal([]string{finalizer}))
		w.remove(ctx, w.node("c"))
		Eventually(w.goneOf(ctx, their)).Should(BeTrue())
		Expect(w.read(ctx, "x").Spec.PodCIDRs).To(BeEmpty(), "it is not for ours")
	})

	It("have their finalizer before a CIDR of them is allocated", func(ctx SpecContext) { // K16, K17
		their := newForeign("theirs", "10.1.0.0/24")
		their.SetFinalizers(nil)
		create(ctx, their)
		w.nodes(ctx, flag)
		create(ctx, w.node("a"))
		w.cidrsOf(ctx, "a")
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(their), their)).To(Succeed())
		Expect(their.GetFinalizers()).To(Equal([]string{finalizer}))
		w.remove(ctx, their, w.node("a"))
		Eventually(w.goneOf(ctx, their)).Should(BeTrue())
	})
})
