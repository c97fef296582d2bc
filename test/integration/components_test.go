package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/config"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// mayDo returns the output of `kubectl auth can-i --list` for a user: verbs by resource.
func mayDo(ctx context.Context, kubeconfig string) map[string]string {
	GinkgoHelper()
	assets, err := framework.FindAssets()
	Expect(err).NotTo(HaveOccurred())
	out, err := exec.CommandContext(ctx, filepath.Join(assets, "kubectl"), "--kubeconfig="+kubeconfig, "auth", "can-i", "--list", "--no-headers").Output()
	Expect(err).NotTo(HaveOccurred())
	verbs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		resource, _, _ := strings.Cut(line, " ")
		if i := strings.LastIndex(line, "["); i >= 0 { // the last bracket has the verbs
			verbs[resource] = strings.Trim(line[i:], "[]\n ")
		}
	}
	Expect(verbs).To(HaveKey("ipaddressclaims.ipam.cluster.x-k8s.io"))
	return verbs
}

func logOf(m *framework.Manager) func() string {
	return func() string {
		text, err := os.ReadFile(m.LogFile)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
}

var _ = Describe("A manager without all components", func() {
	It("may read no Secret and write no Cluster, fulfils claims, and changes no lease and grants none of their addresses", func(ctx SpecContext) { // C49
		ns := newNamespace(ctx, nil)
		kubeconfig, err := cp.ManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		verbs := mayDo(ctx, kubeconfig)
		Expect(verbs).NotTo(HaveKey("secrets"))
		Expect(verbs).To(HaveKeyWithValue("clusters.cluster.x-k8s.io", "get list watch"))
		Expect(verbs).NotTo(HaveKey("clusters.cluster.x-k8s.io/status"))
		Expect(verbs).NotTo(HaveKey("nodes"))
		Expect(verbs).NotTo(HaveKey("services"))

		create(ctx, leasePool(ns, "10.99.0.0/30")) // .1 and .2
		full := startManager(ctx, "--namespace="+ns)
		had := framework.MakeLease(ns, "had").Pool("p").Obj()
		create(ctx, had)
		address := leasedTo(ctx, had)
		Expect(full.Stop()).To(Succeed())

		m := startManagerAs(ctx, kubeconfig, "--namespace="+ns)
		waits := framework.MakeLease(ns, "waits").Pool("p").Obj()
		create(ctx, waits, framework.MakeClaim(ns, "c").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "c").Spec.Address).NotTo(Equal(address))
		create(ctx, framework.MakeClaim(ns, "over").Pool("p").Obj())
		refusalOf(ctx, ns, "over", "PoolExhausted")
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(waits), waits)).To(Succeed())
		Expect(waits.Status).To(BeZero())
		Expect(waits.Finalizers).To(BeEmpty())

		// A deleted lease keeps its address until a manager with leases runs, because the release is shown on the
		// lease.
		Expect(k8s.Delete(ctx, had)).To(Succeed())
		Consistently(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(had), &v1alpha1.IPLease{}) }).WithTimeout(1e9).Should(Succeed())
		Expect(logOf(m)()).NotTo(ContainSubstring("forbidden"))
		Expect(logOf(m)()).To(And(ContainSubstring(`on=["claims"]`), ContainSubstring(`"load-balancers"`)))
		Expect(m.Stop()).To(Succeed())

		startManager(ctx, "--namespace="+ns)
		Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(had), &v1alpha1.IPLease{}) }).ShouldNot(Succeed())
	})

	It("serves load balancers only in the namespaces in which their role is bound", func(ctx SpecContext) { // C49
		kubeconfig, err := cp.ManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		text, err := config.Files.ReadFile("rbac/load_balancers_role.yaml")
		Expect(err).NotTo(HaveOccurred())
		role := &rbacv1.ClusterRole{}
		Expect(yaml.UnmarshalStrict(text, role)).To(Succeed())
		bound, other := newNamespace(ctx, nil), newNamespace(ctx, nil)
		role.Name = bound
		create(ctx, role, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: bound, Name: "load-balancers"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "butler-ipam-manager"}},
		})
		m := startManagerAs(ctx, kubeconfig, "--load-balancers")
		for _, ns := range []string{other, bound} {
			create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.98.0.0/24").Network(ns).Obj(), provider(ns, ns, "p"), tenant(ns, "prod", ns))
		}
		served := tenant(bound, "prod", bound)
		expectNetwork(ctx, served, metav1.ConditionTrue, v1alpha1.ReadyReason)
		Eventually(logOf(m)).Should(And(ContainSubstring("is forbidden"), ContainSubstring(`in the namespace \"`+other)))
		expectRestMeanwhile(ctx, 1, m)
		Expect(allocationsIn(ctx, other)).To(BeEmpty())
		// Clusters that no component serves would keep the manager from becoming idle.
		Expect(k8s.DeleteAllOf(ctx, &clusterv1.Cluster{}, client.InNamespace(other))).To(Succeed())
		modify(ctx, served, func(c *clusterv1.Cluster) { c.Labels = nil })
	})

	It("grants nothing from blocks of Clusters, and removes no finalizer of a component from a block or a Cluster", func(ctx SpecContext) { // C49
		ns := newNamespace(ctx, nil)
		cluster := tenant(ns, "prod", ns)
		full := startManager(ctx, "--namespace="+ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.97.0.0/28").Network(ns).Obj(), provider(ns, ns, "p"), cluster)
		expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason) // 8 of 14
		block := &allocationsIn(ctx, ns)[0]
		modify(ctx, block, func(a *v1alpha1.IPAllocation) { controllerutil.AddFinalizer(a, v1alpha1.TenantPoolFinalizer) }) // as when MetalLB shows it
		Expect(full.Stop()).To(Succeed())

		m := startManagerAs(ctx, cp.Kubeconfig, "--namespace="+ns, shortGrace)
		other := framework.MakeAllocation(ns, "other").Count(8).Obj()
		create(ctx, other)
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(other), other)).To(Succeed())
			g.Expect(other.Status.Phase).To(Equal(v1alpha1.AllocationFailed))
		}).Should(Succeed())
		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		Consistently(func() error { return k8s.Get(ctx, keyOf(cluster), cluster) }).WithTimeout(1e9).Should(Succeed())
		Expect(cluster.Finalizers).To(ConsistOf(v1alpha1.TenantNetworkFinalizer))
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Finalizers = nil })
		// Its Cluster is gone: it is deleted as an orphan, and its addresses are free once no load balancer shows
		// them.
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(block), block)).To(Succeed())
			g.Expect(block.DeletionTimestamp).NotTo(BeNil())
			g.Expect(block.Finalizers).To(ConsistOf(v1alpha1.TenantPoolFinalizer)) // the manager removes its own finalizer
		}).Should(Succeed())
		Expect(k8s.Get(ctx, keyOf(other), other)).To(Succeed())
		Expect(other.Status.Phase).To(Equal(v1alpha1.AllocationFailed))
		modify(ctx, block, func(a *v1alpha1.IPAllocation) { controllerutil.RemoveFinalizer(a, v1alpha1.TenantPoolFinalizer) })
		allocatedTo(ctx, other)
		Expect(m.Stop()).To(Succeed()) // an object of a Cluster that was never created would be checked once in each grace period
	})

	It("logs that the namespace of --namespace does not exist", func(ctx SpecContext) {
		m := startManagerAs(ctx, cp.Kubeconfig, "--namespace=nosuchns")
		Expect(logOf(m)()).To(ContainSubstring("The namespace of --namespace does not exist"))
	})

	It("logs the missing rights of an enabled component, and the manifest that grants them", func(ctx SpecContext) { // C50
		kubeconfig, err := cp.ManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		m, err := framework.LaunchManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: kubeconfig, Args: []string{"--load-balancers"}})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(m.Kill()).To(Succeed()) })
		Eventually(logOf(m)).Should(And(
			ContainSubstring("apply component-load-balancers.yaml"), ContainSubstring("get secrets"),
			ContainSubstring("patch clusters.cluster.x-k8s.io"), ContainSubstring("patch clusters/status.cluster.x-k8s.io"),
		))
		expectRestMeanwhile(ctx, 1, m)
		Expect(logOf(m)()).NotTo(ContainSubstring("list ipaddresses"), "it has that")
	})
})
