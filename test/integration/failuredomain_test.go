package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// test/consumers has the writes of each infrastructure provider.
var _ = Describe("A failure domain", func() {
	It("lets the manager rest while its claims wait, with the component and without", func(ctx SpecContext) { // U55, U57
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.177.0.1-10.177.0.3", "10.177.1.1").Obj()
		pool.Spec.Subnets = []v1alpha1.Subnet{{CIDR: "10.177.0.0/24"}, {CIDR: "10.177.1.0/24", FailureDomains: []string{"zone-a"}}}
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "m"}}
		machine.Spec.ClusterName, machine.Spec.FailureDomain, machine.Spec.Bootstrap.DataSecretName = "k", "zone-a", new("none")
		machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "VM", Name: "m"}
		create(ctx, pool, machine)
		claim := func(name string) {
			GinkgoHelper()
			c := framework.MakeClaim(ns, name).Pool("p").Obj()
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: machine.UID}}
			create(ctx, c)
		}

		m := namespaceManager(ctx, ns)
		claim("first")
		Expect(refusalOf(ctx, ns, "first", "PoolNotReady")).To(ContainSubstring("this manager runs without --failure-domains"))
		expectRest(ctx, m)
		Expect(m.Stop()).To(Succeed())

		m = namespaceManager(ctx, ns, "--failure-domains")
		Expect(addressOf(ctx, ns, "first").Spec.Address).To(Equal("10.177.1.1"))
		claim("second")
		Expect(refusalOf(ctx, ns, "second", "PoolExhausted")).To(ContainSubstring("for failure domain zone-a: those in 10.177.1.0/24"))
		expectRest(ctx, m)
		Expect(m.Stop()).To(Succeed())
	})
})
