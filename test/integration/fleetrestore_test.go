package integration

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The management cluster has a control plane of its own here, whose etcd is restored from a backup.
var _ = Describe("Pod CIDRs after the management cluster is restored", Ordered, startsEarly, func() {
	start := func() (*framework.ControlPlane, client.Client) {
		server, err := framework.StartControlPlane(framework.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
		admin, err := server.NewClient()
		Expect(err).NotTo(HaveOccurred())
		return server, admin
	}

	It("stay in blocks that were carved after the backup, which are requested again and which no other Cluster gets", func(ctx SpecContext) { // R15, K27
		management, in := start()
		ofOne, one := tenantFor(ctx, start)
		ofTwo, two := tenantFor(ctx, start)
		kubeconfig, err := management.FleetManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		serve := func() *framework.Manager { return startManagerAs(ctx, kubeconfig, "--node-cidrs=fleet") }
		const ns = "default"
		cluster := func(name string, credentials []byte) {
			GinkgoHelper()
			_, err := framework.CreateClusterWithKubeconfig(ctx, in, credentials, metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}})
			Expect(err).NotTo(HaveOccurred())
		}
		join := func(c client.Client, names ...string) {
			GinkgoHelper()
			for _, name := range names {
				Expect(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
			}
		}
		cidrOf := func(c client.Client, name string) (out string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				n := &corev1.Node{}
				g.Expect(c.Get(ctx, client.ObjectKey{Name: name}, n)).To(Succeed())
				out = n.Spec.PodCIDR
				g.Expect(out).NotTo(BeEmpty())
			}).WithTimeout(framework.LongTimeout).Should(Succeed())
			return out
		}
		blocks := func() map[string]string {
			GinkgoHelper()
			var all v1alpha1.IPAllocationList
			Expect(in.List(ctx, &all, client.InNamespace(ns))).To(Succeed())
			out := map[string]string{}
			for i := range all.Items {
				out[all.Items[i].Name] = all.Items[i].Status.CIDR
			}
			return out
		}

		m := serve()
		Expect(in.Create(ctx, framework.MakeGlobalPool("pods").CIDR("100.64.0.0/22").AllocateReservedAddresses().Obj())).To(Succeed())
		Expect(in.Create(ctx, &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}, Spec: v1alpha1.ClusterCIDRSpec{
			PerNodeHostBits: 6, ClusterSelector: &metav1.LabelSelector{}, IPv4Pool: &v1alpha1.PodPool{Name: "pods", NodesPerBlock: 2},
		}})).To(Succeed())
		cluster("one", ofOne)
		join(one, "w1", "w2")
		cidrOf(one, "w1")
		cidrOf(one, "w2")
		was := filepath.Join(GinkgoT().TempDir(), "etcd")
		Expect(management.BackupEtcd(was)).To(Succeed())
		Expect(blocks()).To(HaveLen(1))

		By("restoring a backup that has no block for some Nodes")
		join(one, "w3", "w4")
		before := map[string]string{}
		for _, name := range []string{"w1", "w2", "w3", "w4"} {
			before[name] = cidrOf(one, name)
		}
		carved := blocks()
		Expect(carved).To(HaveLen(2))
		Expect(m.Kill()).To(Succeed())
		Expect(management.RestoreEtcd(was)).To(Succeed())
		Expect(blocks()).To(HaveLen(1))

		By("requesting that block again")
		serve()
		Eventually(blocks).WithTimeout(framework.LongTimeout).Should(Equal(carved))
		cluster("two", ofTwo)
		join(two, "w1", "w2", "w3")
		join(one, "w5")
		nodeByCIDR := map[string]string{}
		for name, cidr := range before {
			Expect(cidrOf(one, name)).To(Equal(cidr))
			nodeByCIDR[cidr] = "one " + name
		}
		for _, node := range []struct {
			in   client.Client
			name string
		}{{one, "w5"}, {two, "w1"}, {two, "w2"}, {two, "w3"}} {
			cidr := cidrOf(node.in, node.name)
			Expect(nodeByCIDR).NotTo(HaveKey(cidr))
			nodeByCIDR[cidr] = node.name
		}
	})
})

// tenantFor starts a workload cluster, and returns the kubeconfig of the manager for it, and a client.
func tenantFor(ctx context.Context, start func() (*framework.ControlPlane, client.Client)) ([]byte, client.Client) {
	GinkgoHelper()
	server, admin := start()
	credentials, err := server.NodesTenantKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	return credentials, admin
}
