package endpoints

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// kubeVIP returns the address that kube-vip has on the machines of a Cluster's control plane.
func kubeVIP(ctx context.Context, cluster *clusterv1.Cluster) string {
	GinkgoHelper()
	controlPlane := &unstructured.Unstructured{}
	Eventually(func(g Gomega) {
		read(ctx, cluster)
		g.Expect(cluster.Spec.ControlPlaneRef.IsDefined()).To(BeTrue())
		setReferencedObject(controlPlane, cluster, cluster.Spec.ControlPlaneRef)
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(controlPlane), controlPlane)).To(Succeed())
	}).Should(Succeed())
	files, _, _ := unstructured.NestedSlice(controlPlane.Object, "spec", "kubeadmConfigSpec", "files")
	Expect(files).To(HaveLen(1))
	pod := &corev1.Pod{}
	Expect(yaml.UnmarshalStrict([]byte(files[0].(map[string]any)["content"].(string)), pod)).To(Succeed())
	Expect(pod.Spec.Containers[0].VolumeMounts).To(HaveLen(1), "the rest of the manifest stays")
	for _, env := range pod.Spec.Containers[0].Env {
		if env.Name == "address" {
			return env.Value
		}
	}
	return ""
}

// expectRefusedAs waits until the condition Ready of a claim has a reason.
func expectRefusedAs(ctx context.Context, claim *ipamv1.IPAddressClaim, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		read(ctx, claim)
		g.Expect(claim.Status.Conditions).To(ContainElement(And(HaveField("Type", ipamv1.IPAddressClaimReadyCondition), HaveField("Reason", reason))))
	}).Should(Succeed())
}

func allocated(ctx context.Context, pool *v1alpha1.NetworkPool) func() int64 {
	return func() int64 {
		read(ctx, pool)
		return pool.Status.AllocatedIPs
	}
}

var _ = Describe("A Cluster of a ClusterClass", func() {
	var ns string
	BeforeEach(func(ctx SpecContext) {
		ns = newNamespace(ctx)
		startManager(ctx)
	})

	DescribeTable("has an address of the pool as its endpoint until it is deleted", func(ctx SpecContext, provider string) { // U40, U42, U43
		endpoints := pool(ns, "endpoints").CIDR("10.1.0.0/29").Obj()
		create(ctx, endpoints)
		newClass(ctx, ns, provider)
		cluster := newCluster(ns, "lab", "")
		create(ctx, cluster)

		infra := infrastructureOf(ctx, cluster)
		claim := claimOf(cluster)
		address := addressOf(ctx, claim)
		Expect(hostOf(infra)).To(Equal(address))
		port, _, _ := unstructured.NestedInt64(infra.Object, "spec", "controlPlaneEndpoint", "port")
		Expect(port).To(BeEquivalentTo(6443))
		Expect(kubeVIP(ctx, cluster)).To(Equal(address))
		Expect(claim.OwnerReferences).To(ConsistOf(HaveField("UID", cluster.UID)))
		provision(ctx, cluster)
		expectReconciled(ctx, cluster)
		Expect(allocated(ctx, endpoints)()).To(BeEquivalentTo(1))

		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		Eventually(allocated(ctx, endpoints)).WithTimeout(framework.LongTimeout).Should(BeZero())
		Expect(client.IgnoreNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(claim), claim))).To(Succeed())
	},
		Entry("with CAPV", "VSphere"),
		Entry("with CAPM3", "Metal3"),
		Entry("with CAPMOX", "Proxmox"),
	)

	It("may name another pool, as long as it has no address", func(ctx SpecContext) { // U41, U44
		create(ctx, pool(ns, "endpoints").CIDR("10.1.0.0/29").Obj(),
			pool(ns, "rack-1").Addresses("10.2.0.5").Prefix(24).Obj(), framework.MakeClaim(ns, "other").Pool("rack-1").Obj(),
			pool(ns, "rack-2").Addresses("10.3.0.5").Prefix(24).Obj())
		newClass(ctx, ns, "VSphere")
		cluster := newCluster(ns, "lab", "rack-1")
		create(ctx, cluster)
		expectTopologyMessage(ctx, cluster, "IPAddressClaim "+ns+"/lab-control-plane waits (PoolExhausted)")
		name := func(pool string) func(*clusterv1.Cluster) {
			return func(c *clusterv1.Cluster) {
				c.Spec.Topology.Variables[0].Value.Raw = []byte(`{"name": "` + pool + `"}`)
			}
		}
		modify(ctx, cluster, name("rack-2"))
		Expect(hostOf(infrastructureOf(ctx, cluster))).To(Equal("10.3.0.5"))
		modify(ctx, cluster, name("endpoints"))
		expectReconciled(ctx, cluster)
		Expect(hostOf(infrastructureOf(ctx, cluster))).To(Equal("10.3.0.5"))
		Expect(addressOf(ctx, claimOf(cluster))).To(Equal("10.3.0.5"))
	})

	It("waits while the pool is full, reports that, and is served when an address is free", func(ctx SpecContext) { // U46
		create(ctx, pool(ns, "endpoints").Addresses("10.1.0.5").Prefix(24).Obj())
		newClass(ctx, ns, "VSphere")
		first, second := newCluster(ns, "first", ""), newCluster(ns, "second", "")
		create(ctx, first)
		Expect(hostOf(infrastructureOf(ctx, first))).To(Equal("10.1.0.5"))
		create(ctx, second)
		expectTopologyMessage(ctx, second, "has no free address")
		Expect(second.Spec.InfrastructureRef.IsDefined()).To(BeFalse())
		Expect(k8s.Delete(ctx, first)).To(Succeed())
		Expect(addressOf(ctx, claimOf(second))).To(Equal("10.1.0.5"))
		expectReconciled(ctx, second) // Cluster API retries by itself
		Expect(hostOf(infrastructureOf(ctx, second))).To(Equal("10.1.0.5"))
	})

	It("keeps its address when its claim is deleted, although another claim waits for it", func(ctx SpecContext) { // U44
		create(ctx, pool(ns, "endpoints").Addresses("10.1.0.5").Prefix(24).Obj())
		newClass(ctx, ns, "VSphere")
		cluster := newCluster(ns, "lab", "")
		create(ctx, cluster)
		provision(ctx, cluster)
		host, claim := cluster.Spec.ControlPlaneEndpoint.Host, claimOf(cluster)
		waits := framework.MakeClaim(ns, "waits").Pool("endpoints").Obj()
		create(ctx, waits)
		expectRefusedAs(ctx, waits, v1alpha1.PoolExhaustedReason)

		Expect(k8s.Delete(ctx, claim)).To(Succeed())
		expectRefusedAs(ctx, claim, v1alpha1.DeletingReason)
		wake(ctx, cluster)
		expectReconciled(ctx, cluster)
		Expect(hostOf(infrastructureOf(ctx, cluster))).To(Equal(host))
		Expect(addressOf(ctx, claim)).To(Equal(host))
		expectRefusedAs(ctx, waits, v1alpha1.PoolExhaustedReason)

		// The same in a foreground deletion: the objects that a Cluster owns are deleted before the Cluster is gone.
		modify(ctx, cluster, func(c *clusterv1.Cluster) { controllerutil.AddFinalizer(c, "example.com/machines") })
		Expect(k8s.Delete(ctx, cluster, client.PropagationPolicy(metav1.DeletePropagationForeground))).To(Succeed())
		Eventually(func(g Gomega) {
			read(ctx, cluster)
			g.Expect(cluster.Finalizers).To(ConsistOf("example.com/machines"))
		}).WithTimeout(framework.LongTimeout).Should(Succeed())
		Expect(addressOf(ctx, claim)).To(Equal(host))
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Finalizers = nil })
		Expect(addressOf(ctx, waits)).To(Equal(host))
	})

	It("keeps the endpoint that it has when the class gets the patch", func(ctx SpecContext) { // U45
		create(ctx, pool(ns, "endpoints").CIDR("10.1.0.0/24").Obj())
		ours := []clusterv1.ClusterClassPatch{}
		newClass(ctx, ns, "VSphere", func(c *clusterv1.ClusterClass) {
			ours, c.Spec.Patches = c.Spec.Patches, nil
			c.Spec.Variables = []clusterv1.ClusterClassVariable{{
				Name: "host", Required: ptr.To(true), Schema: clusterv1.VariableSchema{OpenAPIV3Schema: clusterv1.JSONSchemaProps{Type: "string"}},
			}}
			c.Spec.Patches = []clusterv1.ClusterClassPatch{{Name: "host", Definitions: []clusterv1.PatchDefinition{{
				Selector: clusterv1.PatchSelector{
					APIVersion: infrastructure + "/v1beta2", Kind: "VSphereClusterTemplate",
					MatchResources: clusterv1.PatchSelectorMatch{InfrastructureCluster: ptr.To(true)},
				},
				JSONPatches: []clusterv1.JSONPatch{{
					Op: "add", Path: "/spec/template/spec/controlPlaneEndpoint",
					ValueFrom: &clusterv1.JSONPatchValue{Template: "host: '{{ .host }}'\nport: 6443"},
				}},
			}}}}
		})
		other := framework.MakeClaim(ns, "other").Pool("endpoints").RequestAddress("10.1.0.88").Obj()
		create(ctx, other)
		Expect(addressOf(ctx, other)).To(Equal("10.1.0.88"))
		known, unknown, taken := newCluster(ns, "known", ""), newCluster(ns, "unknown", ""), newCluster(ns, "taken", "")
		for cluster, host := range map[*clusterv1.Cluster]string{known: "10.1.0.77", unknown: "192.0.2.1", taken: "10.1.0.88"} {
			cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: "host"}}
			cluster.Spec.Topology.Variables[0].Value.Raw = []byte(`"` + host + `"`)
			create(ctx, cluster)
			provision(ctx, cluster)
		}
		class := &clusterv1.ClusterClass{}
		class.Namespace, class.Name = ns, "from-pool"
		modify(ctx, class, func(c *clusterv1.ClusterClass) { c.Spec.Patches = append(c.Spec.Patches, ours...) })

		Expect(addressOf(ctx, claimOf(known))).To(Equal("10.1.0.77"))
		expectReconciled(ctx, known)
		Expect(hostOf(infrastructureOf(ctx, known))).To(Equal("10.1.0.77"))
		expectTopologyMessage(ctx, taken, "waits (AllocationFailed)")
		Expect(hostOf(infrastructureOf(ctx, taken))).To(Equal("10.1.0.88"))
		Expect(k8s.Delete(ctx, other)).To(Succeed())
		Expect(addressOf(ctx, claimOf(taken))).To(Equal("10.1.0.88"))
		expectReconciled(ctx, taken)
		expectTopologyMessage(ctx, unknown, "does not hand out the requested address 192.0.2.1")
		Expect(hostOf(infrastructureOf(ctx, unknown))).To(Equal("192.0.2.1"))
		modify(ctx, unknown, func(c *clusterv1.Cluster) {
			left := clusterv1.ClusterVariable{Name: "controlPlanePool"}
			left.Value.Raw = []byte(`{"name": ""}`)
			c.Spec.Topology.Variables = append(c.Spec.Topology.Variables, left)
		})
		expectReconciled(ctx, unknown)
		Expect(hostOf(infrastructureOf(ctx, unknown))).To(Equal("192.0.2.1"))
		Expect(claimsIn(ctx, ns)).To(HaveLen(2))

		// When another patch sets the same host, the patch of this provider may be removed from the class.
		modify(ctx, class, func(c *clusterv1.ClusterClass) { c.Spec.Patches = c.Spec.Patches[:1] })
		modify(ctx, unknown, func(c *clusterv1.Cluster) { c.Spec.Topology.Variables = c.Spec.Topology.Variables[:1] })
		expectReconciled(ctx, known)
		Expect(hostOf(infrastructureOf(ctx, known))).To(Equal("10.1.0.77"))
		Expect(addressOf(ctx, claimOf(known))).To(Equal("10.1.0.77"))
	})

	It("ignores a claim of its name that it does not own", func(ctx SpecContext) { // U47
		create(ctx, pool(ns, "endpoints").CIDR("10.1.0.0/24").Obj())
		newClass(ctx, ns, "VSphere")
		cluster := newCluster(ns, "lab", "")
		foreign := framework.MakeClaim(ns, "lab-control-plane").Pool("endpoints").Obj()
		create(ctx, foreign)
		address := addressOf(ctx, foreign)
		create(ctx, cluster)
		expectTopologyMessage(ctx, cluster, "is not owned by the Cluster and is ignored")
		Expect(addressOf(ctx, foreign)).To(Equal(address))
		Expect(foreign.OwnerReferences).To(BeEmpty())
		Expect(k8s.Delete(ctx, foreign)).To(Succeed())
		expectReconciled(ctx, cluster)
	})
})
