package clusterctl

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// fleet is a namespace with a Cluster. The Cluster has an address for its control plane and a block for its Services;
// each of its two Machines has an address from a pool that is carved from another pool of the namespace, and one from
// a global pool. The namespace has a lease too.
type fleet struct{ ns string }

// newFleet creates the pools, the Cluster, its Machines and their claims. The Cluster is its own workload cluster.
func newFleet(ctx context.Context, s *site, ns string) fleet {
	GinkgoHelper()
	config := &v1alpha1.ProviderConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "services"},
		Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{
			Mode: v1alpha1.IPAMMode, PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Name: "services"}}},
		}},
	}
	services := framework.MakePool("services").Namespace(ns).CIDR("10.31.0.0/24").Obj()
	services.Spec.Leases = &v1alpha1.Leases{}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
		framework.MakePool("datacentre").Namespace(ns).CIDR("10.30.0.0/16").Gateway("10.30.0.1").AllocateReservedAddresses().Carvable().Obj(),
		framework.MakePool("machines").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "datacentre", 26, 1, 2).Obj(),
		services,
		framework.MakeGlobalPool("storage").CIDR("10.32.0.0/24").Obj(),
		config, framework.MakeLease(ns, "shop").Pool("services").Obj(),
		framework.MakeClaim(ns, "endpoint").Pool("machines").Obj(), // without an owner
	} {
		Expect(client.IgnoreAlreadyExists(s.Create(ctx, o))).To(Succeed())
	}
	cluster, err := framework.CreateCluster(ctx, s, s.ControlPlane, metav1.ObjectMeta{
		Namespace: ns, Name: "prod", Labels: map[string]string{v1alpha1.ProviderConfigLabel: config.Name},
	})
	Expect(err).NotTo(HaveOccurred())
	endpoint := framework.MakeClaim(ns, "prod-control-plane").Pool("machines").ClusterLabel(cluster.Name).Obj() // as in docs/endpoints.md
	endpoint.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}}
	Expect(s.Create(ctx, endpoint)).To(Succeed())
	for _, name := range []string{"prod-1", "prod-2"} {
		machine := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: ns, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}},
			},
			Spec: clusterv1.MachineSpec{
				ClusterName: cluster.Name, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("none")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "NoMachine", Name: name},
			},
		}
		Expect(s.Create(ctx, machine)).To(Succeed())
		owner := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: machine.UID}
		for _, claim := range []*ipamv1.IPAddressClaim{
			framework.MakeClaim(ns, name).Pool("machines").ClusterLabel(cluster.Name).Obj(),
			framework.MakeClaim(ns, name+"-storage").GlobalPool("storage").ClusterLabel(cluster.Name).Obj(),
		} {
			claim.OwnerReferences = []metav1.OwnerReference{owner}
			Expect(s.Create(ctx, claim)).To(Succeed())
		}
	}
	return fleet{ns}
}

// markRunning sets the status of the Cluster and its Machines as CAPI's controllers would: clusterctl moves no
// others.
func (f fleet) markRunning(ctx context.Context, s *site) {
	GinkgoHelper()
	cluster := &clusterv1.Cluster{}
	Expect(s.Get(ctx, client.ObjectKey{Namespace: f.ns, Name: "prod"}, cluster)).To(Succeed())
	Expect(framework.MarkProvisioned(ctx, s, cluster)).To(Succeed())
	machines := &clusterv1.MachineList{}
	Expect(s.List(ctx, machines, client.InNamespace(f.ns))).To(Succeed())
	for i := range machines.Items {
		m := &machines.Items[i]
		m.Status.NodeRef = clusterv1.MachineNodeReference{Name: m.Name}
		Expect(s.Status().Update(ctx, m)).To(Succeed())
	}
}

// waitUntilGranted waits until all claims, blocks and leases are allocated.
func (f fleet) waitUntilGranted(ctx context.Context, s *site) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		claims, blocks, leases := &ipamv1.IPAddressClaimList{}, &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}
		g.Expect(s.List(ctx, claims, client.InNamespace(f.ns))).To(Succeed())
		g.Expect(s.List(ctx, blocks, client.InNamespace(f.ns))).To(Succeed())
		g.Expect(claims.Items).To(And(HaveLen(6), HaveEach(HaveField("Status.AddressRef.Name", Not(BeEmpty())))))
		g.Expect(blocks.Items).To(And(HaveLen(2), HaveEach(HaveField("Status.Phase", v1alpha1.AllocationAllocated))))
		g.Expect(s.List(ctx, leases, client.InNamespace(f.ns))).To(Succeed())
		g.Expect(leases.Items).To(And(HaveLen(1), HaveEach(HaveField("Status.Address", Not(BeEmpty())))))
	}).Should(Succeed())
}

// allocated returns the addresses of all claims, blocks and leases, by name.
func (s *site) allocated(ctx context.Context) map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	addresses, blocks, leases := &ipamv1.IPAddressList{}, &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}
	Expect(s.List(ctx, addresses)).To(Succeed())
	for i := range addresses.Items {
		a := &addresses.Items[i]
		out["IPAddress "+a.Namespace+"/"+a.Name] = a.Spec.Address
	}
	Expect(s.List(ctx, blocks)).To(Succeed())
	for i := range blocks.Items {
		b := &blocks.Items[i]
		out["IPAllocation "+b.Namespace+"/"+b.Name] = b.Status.CIDR
	}
	Expect(s.List(ctx, leases)).To(Succeed())
	for i := range leases.Items {
		l := &leases.Items[i]
		out["IPLease "+l.Namespace+"/"+l.Name] = l.Status.Address
	}
	return out
}

// addressOf waits for the address of a claim, and returns it.
func (s *site) addressOf(ctx context.Context, claim *ipamv1.IPAddressClaim) string {
	GinkgoHelper()
	address := &ipamv1.IPAddress{}
	Eventually(func(g Gomega) {
		g.Expect(s.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.Status.AddressRef.Name).NotTo(BeEmpty(), "%+v", claim.Status)
		g.Expect(s.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: claim.Status.AddressRef.Name}, address)).To(Succeed())
	}).Should(Succeed())
	return address.Spec.Address
}
