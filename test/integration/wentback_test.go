package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The control plane is one of its own, because its etcd is restored: cp and k8s refer to it here.
var _ = Describe("An etcd that is restored while a manager runs", startsEarly, func() {
	const ns, each = "default", 4
	var suite *framework.ControlPlane
	var inSuite client.Client

	BeforeEach(func() {
		was, admin := cp, k8s
		suite, inSuite = was, admin
		DeferCleanup(func() { cp, k8s = was, admin })
		var err error
		cp, err = framework.StartControlPlane(framework.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(own *framework.ControlPlane) { Expect(own.Stop()).To(Succeed()) }, cp)
		k8s, err = cp.NewClient()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(showFailed, ns)
	})

	claim := func(ctx context.Context, names string) {
		GinkgoHelper()
		for i := range each {
			create(ctx, framework.MakeClaim(ns, fmt.Sprint(names, i)).Pool("p").Obj())
		}
	}

	It("ends the manager, and the next one serves the restored objects", func(ctx SpecContext) { // R7
		create(ctx, framework.MakePool("p").Namespace(ns).Addresses("10.0.0.1-10.0.0.12").Obj())
		m := startManager(ctx)
		claim(ctx, "stays-")
		claim(ctx, "ends-")
		expectAtRest(ctx, ns, 2*each)
		addresses := map[string]string{}
		for i := range each {
			for _, name := range []string{fmt.Sprint("stays-", i), fmt.Sprint("ends-", i)} {
				addresses[name] = addressOf(ctx, ns, name).Spec.Address
			}
		}
		was := filepath.Join(GinkgoT().TempDir(), "etcd")
		Expect(cp.BackupEtcd(was)).To(Succeed())

		By("granting addresses of the backup to other claims")
		lengthenHistory(ctx)
		for i := range each {
			deleteClaim(ctx, ns, fmt.Sprint("ends-", i))
		}
		claim(ctx, "later-")
		claim(ctx, "last-")
		expectAtRest(ctx, ns, 3*each) // all addresses of the pool
		Expect(ended(m)).To(BeFalse(), "a backup is no reason to end")

		By("restoring it")
		Expect(cp.RestoreEtcd(was)).To(Succeed())
		history := &invariants.History{}
		Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
		claim(ctx, "new-")
		// A manager retries the connection to the API server in its own time.
		Eventually(func() bool {
			Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
			return ended(m)
		}).WithTimeout(framework.LongTimeout).Should(BeTrue(), "the manager does not notice")
		Expect(m.LogTail(1000)).To(ContainSubstring("its etcd was restored while this process ran"))
		Expect(m.Stop()).NotTo(Succeed(), "its end is to be seen as a failure, so that it is started again")
		Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())

		By("starting another manager")
		startManager(ctx)
		expectAtRest(ctx, ns, 3*each)
		Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
		for name, address := range addresses {
			Expect(addressOf(ctx, ns, name).Spec.Address).To(Equal(address), name)
		}
	})

	// The backup has Nodes whose deletion the manager has observed. The range is filled by these Nodes and the later
	// ones: it has room for all of them only if no CIDR is lost, and any CIDR that is set twice is detected.
	const ranged, hostBits = "10.1.0.0/25", 4 // eight Nodes
	join := func(ctx context.Context, names string, n int) {
		GinkgoHelper()
		for i := range n {
			create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(names, i)}})
		}
	}
	// have returns the pod CIDRs of all Nodes that have some, by name, and expects that no two are the same.
	have := func(ctx context.Context) map[string]string {
		GinkgoHelper()
		var all corev1.NodeList
		Expect(k8s.List(ctx, &all)).To(Succeed())
		out, by := map[string]string{}, map[string]string{}
		for _, n := range all.Items {
			if cidr := n.Spec.PodCIDR; cidr != "" {
				Expect(by).NotTo(HaveKey(cidr), "%s and %s have it", n.Name, by[cidr])
				out[n.Name], by[cidr] = cidr, n.Name
			}
		}
		return out
	}
	served := func(ctx context.Context, n int) map[string]string {
		GinkgoHelper()
		Eventually(have).WithArguments(ctx).WithTimeout(framework.LongTimeout).Should(HaveLen(n))
		return have(ctx)
	}
	// goesBack restores an etcd with Nodes that were deleted since, and returns the CIDRs of all Nodes in it.
	goesBack := func(ctx context.Context, m *framework.Manager) map[string]string {
		GinkgoHelper()
		join(ctx, "stays-", each/2)
		join(ctx, "ends-", each/2)
		cidrs := served(ctx, each)
		was := filepath.Join(GinkgoT().TempDir(), "etcd")
		Expect(cp.BackupEtcd(was)).To(Succeed())

		By("allocating CIDRs of the backup to other Nodes")
		lengthenHistory(ctx)
		for i := range each / 2 {
			Expect(k8s.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("ends-", i)}})).To(Succeed())
		}
		join(ctx, "later-", each)
		served(ctx, each/2+each)
		Expect(ended(m)).To(BeFalse(), "a backup is no reason to end")

		By("restoring it")
		Expect(cp.RestoreEtcd(was)).To(Succeed())
		Expect(have(ctx)).To(Equal(cidrs))
		join(ctx, "new-", each)
		return cidrs
	}
	noticed := func(ctx context.Context, condition func() bool) {
		GinkgoHelper()
		Eventually(func() bool {
			have(ctx)
			return condition()
		}).WithTimeout(framework.LongTimeout).Should(BeTrue(), "the manager does not notice")
	}
	keep := func(ctx context.Context, cidrs map[string]string) {
		GinkgoHelper()
		now := served(ctx, 2*each)
		for name, cidr := range cidrs {
			Expect(now).To(HaveKeyWithValue(name, cidr))
		}
	}

	It("ends the manager of its Nodes, and the next one sets no pod CIDR twice", func(ctx SpecContext) { // R7, K20, K27
		w := &nodeWorld{labelValue: "own"}
		own := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "own"}}
		own.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: hostBits, IPv4: ranged}
		create(ctx, own)
		m := w.nodes(ctx)
		cidrs := goesBack(ctx, m)
		noticed(ctx, func() bool { return ended(m) })
		Expect(m.LogTail(1000)).To(ContainSubstring("its etcd was restored while this process ran"))
		Expect(m.Stop()).NotTo(Succeed(), "its end is to be seen as a failure, so that it is started again")

		By("starting another manager")
		w.nodes(ctx)
		keep(ctx, cidrs)
	})

	It("in a workload cluster has its Nodes read again, and no pod CIDR is set twice", func(ctx SpecContext) { // R7, K20, K27
		kubeconfig, err := suite.FleetManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		credentials, err := cp.NodesTenantKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		m := startManagerAs(ctx, kubeconfig, "--node-cidrs=fleet")
		of := map[string]string{v1alpha1.NodeCIDRsLabel: "", "etcd": "goes-back"}
		fleet := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "goes-back"}}
		fleet.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: hostBits, IPv4: ranged, ClusterSelector: &metav1.LabelSelector{MatchLabels: of}}
		Expect(inSuite.Create(ctx, fleet)).To(Succeed())
		cluster, err := framework.CreateClusterWithKubeconfig(ctx, inSuite, credentials, metav1.ObjectMeta{Namespace: ns, Name: "goes-back", Labels: of})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx context.Context) {
			Expect(inSuite.Delete(ctx, cluster)).To(Succeed())
			Expect(inSuite.Delete(ctx, fleet)).To(Succeed())
			Eventually(func() bool { return apierrors.IsNotFound(inSuite.Get(ctx, client.ObjectKeyFromObject(fleet), fleet)) }).WithTimeout(framework.LongTimeout).Should(BeTrue())
		})
		cidrs := goesBack(ctx, m)
		noticed(ctx, func() bool { return strings.Contains(m.LogTail(1000), "The etcd of a Cluster was put back") })
		keep(ctx, cidrs)
		Expect(ended(m)).To(BeFalse(), "it serves the other Clusters on")
	})
})

// lengthenHistory does more writes than an API server does when it starts: so the restored history is shorter.
func lengthenHistory(ctx context.Context) {
	GinkgoHelper()
	const writes = 300
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "history"}}
	create(ctx, note)
	for i := range writes {
		note.Data = map[string]string{"write": fmt.Sprint(i)}
		Expect(k8s.Update(ctx, note)).To(Succeed())
	}
}
