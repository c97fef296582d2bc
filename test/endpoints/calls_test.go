package endpoints

import (
	"context"
	"net/http"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// classSettings are the settings of the class of docs/endpoints.md.
var classSettings = map[string]string{"poolName": "endpoints", "poolKind": "NetworkPool"}

// expectRefused requests the patches for a Cluster that must get no claim, and expects a failure with the given
// message.
func expectRefused(ctx context.Context, cluster *clusterv1.Cluster, settings map[string]string, message string) {
	GinkgoHelper()
	resp, err := hooks.GeneratePatches(ctx, cluster, settings)
	Expect(err).NotTo(HaveOccurred())
	Expect(resp.Status).To(Equal(hooksv1.ResponseStatusFailure))
	Expect(resp.Message).To(ContainSubstring(message))
	Expect(resp.Items).To(BeEmpty())
	Expect(claimsIn(ctx, cluster.Namespace)).To(BeEmpty())
}

func claimsIn(ctx context.Context, ns string) []ipamv1.IPAddressClaim {
	GinkgoHelper()
	list := &ipamv1.IPAddressClaimList{}
	Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
	return list.Items
}

var _ = Describe("A request for patches", func() {
	It("gets no claim for a Cluster that is paused, deleted, replaced or of another class, and none of another pool", func(ctx SpecContext) { // U46, U49
		ns := newNamespace(ctx)
		startManager(ctx)
		create(ctx, pool(ns, "endpoints").CIDR("10.1.0.0/24").Obj())
		newClass(ctx, ns, "VSphere")
		cluster := newCluster(ns, "lab", "")
		cluster.Spec.Paused = ptr.To(true)
		cluster.Finalizers = []string{"example.com/keep"}
		create(ctx, cluster)
		expectRefused(ctx, cluster, classSettings, "the Cluster is paused")
		other := cluster.DeepCopy()
		other.UID = "other"
		expectRefused(ctx, other, classSettings, "no longer exists")
		bare := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "bare"}}
		bare.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrastructure, Kind: "VSphereCluster", Name: "bare"}
		create(ctx, bare)
		expectRefused(ctx, bare, classSettings, "has no ClusterClass")
		elsewhere := newNamespace(ctx)
		create(ctx, pool(elsewhere, "endpoints").CIDR("10.3.0.0/24").Obj())
		newClass(ctx, elsewhere, "VSphere", func(c *clusterv1.ClusterClass) { c.Spec.Patches = nil })
		unasked := newCluster(elsewhere, "lab", "")
		create(ctx, unasked)
		expectRefused(ctx, unasked, classSettings, "no patch of ClusterClass")
		expectRefused(ctx, unasked, nil, "no pool is named")

		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
		expectRefused(ctx, cluster, classSettings, "the Cluster is being deleted")
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Finalizers = nil })
	})

	It("gets the same address of a Cluster from any manager, however many arrive at once", func(ctx SpecContext) { // U48
		ns := newNamespace(ctx)
		first := startManager(ctx)
		startManager(ctx)
		create(ctx, pool(ns, "endpoints").CIDR("10.1.0.0/24").Obj())
		newClass(ctx, ns, "VSphere")
		cluster := newCluster(ns, "lab", "")
		create(ctx, cluster)
		var mu sync.Mutex
		patches := map[string]int{}
		ask := func(times int) {
			var all sync.WaitGroup
			for range times {
				all.Go(func() {
					defer GinkgoRecover()
					resp, err := hooks.GeneratePatches(ctx, cluster, classSettings)
					Expect(err).NotTo(HaveOccurred())
					Expect(resp.Status).To(Equal(hooksv1.ResponseStatusSuccess), resp.Message)
					Expect(resp.Items).To(HaveLen(1))
					mu.Lock()
					defer mu.Unlock()
					patches[string(resp.Items[0].Patch)]++
				})
			}
			all.Wait()
		}
		ask(40)
		Expect(first.Kill()).To(Succeed())
		ask(10)
		Expect(patches).To(HaveLen(1))
		Expect(claimsIn(ctx, ns)).To(HaveLen(1))
		Expect(patches).To(HaveKey(ContainSubstring(`"host":"` + addressOf(ctx, claimOf(cluster)) + `"`)))
	})
})

var _ = Describe("A manager without the component", func() {
	It("serves no hooks, and may neither create a claim nor read a ClusterClass", func(ctx SpecContext) { // U49
		port, err := framework.FreePort()
		Expect(err).NotTo(HaveOccurred())
		plain, err := cp.ManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		m, err := framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: plain, WebhookPort: port, WebhookCertDir: certs})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(m.Kill()).To(Succeed()) })
		Expect(framework.NewHooksClient(port, ca, false).DiscoverHooks(ctx)).To(Equal(http.StatusNotFound))
		for verb, resource := range map[string][2]string{"create": {"ipam.cluster.x-k8s.io", "ipaddressclaims"}, "get": {"cluster.x-k8s.io", "clusterclasses"}} {
			Expect(isAllowed(ctx, "butler-ipam-manager", verb, resource[0], resource[1])).To(BeFalse(), "%s %s", verb, resource[1])
			Expect(isAllowed(ctx, "butler-ipam-endpoints-manager", verb, resource[0], resource[1])).To(BeTrue(), "%s %s", verb, resource[1])
		}
	})
})
