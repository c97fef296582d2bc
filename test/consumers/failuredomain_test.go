package consumers

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// zonedPool returns a pool with a subnet for zone-a, one for zone-b and zone-c, and one for all others.
func zonedPool(namespace string) *v1alpha1.NetworkPool {
	pool := makePool(namespace, "p").Addresses("10.9.0.10-10.9.0.19", "10.9.1.10-10.9.1.11", "10.9.2.10-10.9.2.19").Obj()
	pool.Spec.Subnets = []v1alpha1.Subnet{
		{CIDR: "10.9.0.0/24", Gateway: "10.9.0.1"},
		{CIDR: "10.9.1.0/24", Gateway: "10.9.1.1", FailureDomains: []string{"zone-a"}},
		{CIDR: "10.9.2.0/24", Gateway: "10.9.2.1", FailureDomains: []string{"zone-b", "zone-c"}},
	}
	return pool
}

// newMachineIn is newMachine with a Machine in a failure domain as the top owner, linked as the provider links the
// two.
func (c *consumer) newMachineIn(ctx context.Context, domain, namespace, name string, pools ...string) (*machine, *clusterv1.Machine) {
	GinkgoHelper()
	top := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "capi-" + name}}
	top.Spec.ClusterName, top.Spec.FailureDomain = "k", domain
	top.Spec.Bootstrap.DataSecretName = new("none")
	top.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: c.owner.Group, Kind: c.owner.Kind, Name: name}
	create(ctx, top)
	owner := controller(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(), "kind": "Machine", "metadata": map[string]any{"name": top.Name, "uid": string(top.UID)},
	}})
	var links []metav1.OwnerReference
	for i := len(c.between) - 1; i >= 0; i-- {
		link := object(c.between[i], namespace, name)
		link.SetOwnerReferences([]metav1.OwnerReference{owner})
		create(ctx, link)
		owner = newPlainReference(link)
		links = append(links, owner)
	}
	if len(links) == 0 {
		links = []metav1.OwnerReference{owner}
	}
	m := c.newMachine(ctx, namespace, name, pools...)
	update(ctx, m.owner, func(o *unstructured.Unstructured) { o.SetOwnerReferences(links) })
	return m, top
}

// waitForRefusal waits until the claim of a machine is refused, and returns the message.
func (m *machine) waitForRefusal(ctx context.Context, reason string) (message string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		_, err := m.reconcile(ctx)
		g.Expect(err).To(HaveOccurred())
		claim := m.claim(v1beta2, 0)
		g.Expect(k8s.Get(ctx, keyOf(claim), claim)).To(Succeed())
		ready := readyOf(claim)
		g.Expect(ready.Reason).To(Equal(reason))
		message = ready.Message
	}).Should(Succeed())
	return message
}

var _ = Describe("A failure domain", func() {
	for _, name := range []string{"CAPV", "CAPV of v1beta1", "CAPM3", "CAPMOX", "CAPO"} {
		It("of a Machine selects the subnet of its address, with "+name, func(ctx SpecContext) { // U53, U54, U55
			c, ns := named(name), newNamespace(ctx)
			create(ctx, zonedPool(ns))
			for domain, want := range map[string]string{"zone-a": "10.9.1.", "zone-b": "10.9.2.", "zone-c": "10.9.2.", "": "10.9.0."} {
				m, _ := c.newMachineIn(ctx, domain, ns, "of-"+domain+"x", "p")
				got := m.waitUntilBound(ctx)[0]
				Expect(got.IP).To(HavePrefix(want), domain)
				Expect(got.Gateway).To(Equal(want + "1"))
			}
		})
	}

	It("without a subnet, or with a full one, is named in the refusal of the claim", func(ctx SpecContext) { // U55
		c, ns := named("CAPV"), newNamespace(ctx)
		pool := zonedPool(ns)
		create(ctx, pool)
		lost, _ := c.newMachineIn(ctx, "zone-x", ns, "lost", "p")
		Expect(lost.waitForRefusal(ctx, "AllocationFailed")).To(Equal("NetworkPool " + ns + "/p has no subnet for failure domain zone-x, in which Machine " + ns + "/capi-lost is; " +
			"add the failure domain to failureDomains of one of its spec.subnets"))
		for _, name := range []string{"one", "two"} {
			m, _ := c.newMachineIn(ctx, "zone-a", ns, name, "p")
			m.waitUntilBound(ctx)
		}
		full, _ := c.newMachineIn(ctx, "zone-a", ns, "full", "p")
		Expect(full.waitForRefusal(ctx, "PoolExhausted")).To(HavePrefix("NetworkPool " + ns + "/p has no free address for failure domain zone-a: those in 10.9.1.0/24 are allocated"))

		By("serving both by an edit of the pool")
		update(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.Subnets[2].FailureDomains = []string{"zone-a", "zone-x"} })
		Expect(lost.waitUntilBound(ctx)[0].IP).To(HavePrefix("10.9.2."))
		Expect(full.waitUntilBound(ctx)[0].IP).To(HavePrefix("10.9.2."))
	})

	It("that changes does not change an allocated address, not even over a restart", func(ctx SpecContext) { // U56
		c, ns := named("CAPV"), newNamespace(ctx)
		create(ctx, zonedPool(ns))
		m, top := c.newMachineIn(ctx, "zone-a", ns, "m", "p")
		before := m.waitUntilBound(ctx)[0]
		update(ctx, top, func(o *clusterv1.Machine) { o.Spec.FailureDomain = "zone-b" })
		Expect(k8s.Delete(ctx, before.address)).To(Succeed())
		Expect(manager.Kill()).To(Succeed())
		startManager(ctx)
		Expect(m.waitUntilBound(ctx)[0].IP).To(Equal(before.IP))
	})

	It("is not read by a manager without the component, and the refusal of the claim names the component", func(ctx SpecContext) { // U57
		c, ns := named("CAPV"), newNamespace(ctx)
		create(ctx, zonedPool(ns))
		kubeconfig, err := cp.ManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(manager.Stop()).To(Succeed())
		without, err := framework.StartManager(ctx, framework.ManagerOptions{Kubeconfig: kubeconfig})
		Expect(err).NotTo(HaveOccurred())
		m, _ := c.newMachineIn(ctx, "zone-a", ns, "m", "p")
		Expect(m.waitForRefusal(ctx, "PoolNotReady")).To(ContainSubstring("this manager runs without --failure-domains; apply component-failure-domains.yaml"))
		Expect(named("ironcore without owners").newMachine(ctx, ns, "alone", "p").waitUntilBound(ctx)[0].IP).To(HavePrefix("10.9.0."))
		Expect(without.Stop()).To(Succeed())
		startManager(ctx)
		Expect(m.waitUntilBound(ctx)[0].IP).To(HavePrefix("10.9.1."))
	})
})
