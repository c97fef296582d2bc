package consumers

import (
	"context"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/migrate"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// metal3Machine is a machine of CAPM3 whose template names a pool of Metal3.
type metal3Machine struct {
	*machine
	claim *m3ipamv1.IPClaim
}

// read does what CAPM3 does for such a template: it requires that the IPClaim is its own, and returns its IPAddress.
func (m *metal3Machine) read(ctx context.Context) *m3ipamv1.IPAddress {
	GinkgoHelper()
	claim, address := &m3ipamv1.IPClaim{}, &m3ipamv1.IPAddress{}
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(m.claim), claim)).To(Succeed())
	Expect(claim.DeletionTimestamp).To(BeNil())
	Expect(claim.OwnerReferences).To(ContainElement(HaveField("UID", m.owner.GetUID())))
	Expect(claim.Status.Address).NotTo(BeNil())
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: m.namespace, Name: claim.Status.Address.Name}, address)).To(Succeed())
	return address
}

// leave does what CAPM3 does when such a machine is deleted: it removes its finalizer from the IPClaim, deletes it,
// and then removes the finalizer from the Metal3Data. It does not search for a claim of Cluster API.
func (m *metal3Machine) leave(ctx context.Context) {
	GinkgoHelper()
	Expect(k8s.Delete(ctx, m.owner)).To(Succeed())
	update(ctx, m.claim, func(c *m3ipamv1.IPClaim) { controllerutil.RemoveFinalizer(c, framework.Metal3DataFinalizer) })
	Expect(client.IgnoreNotFound(k8s.Delete(ctx, m.claim))).To(Succeed())
	update(ctx, m.owner, func(owner *unstructured.Unstructured) { controllerutil.RemoveFinalizer(owner, machineFinalizer) })
}

var _ = Describe("CAPM3 with a pool that is imported from Metal3's IPAM", func() {
	It("finds its addresses before and after the import, with either template, and releases them", func(ctx SpecContext) { // U64, U65
		ns := newNamespace(ctx)
		history := record(ctx, ns)
		cluster := &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "k"},
			Spec:       clusterv1.ClusterSpec{Paused: ptr.To(true), ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
		}
		gateway := ptr.To(m3ipamv1.IPAddressStr("10.62.0.1"))
		pool := &m3ipamv1.IPPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "hosts"}, Spec: m3ipamv1.IPPoolSpec{
			NamePrefix: "prov", Prefix: 24, Gateway: gateway,
			Pools: []m3ipamv1.Pool{{Start: ptr.To(m3ipamv1.IPAddressStr("10.62.0.10")), End: ptr.To(m3ipamv1.IPAddressStr("10.62.0.20"))}},
		}}
		create(ctx, cluster, pool)
		var machines []*metal3Machine
		for name, address := range map[string]m3ipamv1.IPAddressStr{"workers-0": "10.62.0.10", "workers-1": "10.62.0.11"} {
			m := &metal3Machine{machine: named("CAPM3").newMachineOf(ctx, clusterLabel("k"), ns, name, "hosts")}
			m.claim = framework.NewMetal3Claim(ns, name, "hosts", newUnblockingReference(m.owner), clusterLabel("k"))
			create(ctx, m.claim)
			Expect(framework.FulfilAsMetal3(ctx, k8s, pool, m.claim, m3ipamv1.IPAddressSpec{Address: address, Prefix: 24, Gateway: gateway})).To(Succeed())
			machines = append(machines, m)
		}
		before := map[string]m3ipamv1.IPAddressSpec{}
		for _, m := range machines {
			before[m.name] = m.read(ctx).Spec
		}

		By("importing the pool")
		move := &migrate.Import{
			Client: k8s, Source: migrate.Source{Kind: migrate.Metal3IPPoolKind, Namespace: ns, Name: "hosts"}, JournalNamespace: ns,
			Reportf: func(string, ...any) {
				for _, m := range machines {
					Expect(m.read(ctx).Spec).To(Equal(before[m.name]), "while the import runs")
				}
			},
		}
		_, err := move.Apply(ctx)
		Expect(err).NotTo(HaveOccurred())
		update(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(false) })

		By("reading the addresses as CAPM3 does, with the old template and with one that names our pool")
		for _, m := range machines {
			var answers []answer
			Eventually(func(g Gomega) { // the address exists at once, the condition follows with the manager of this provider
				var err error
				answers, err = m.reconcile(ctx)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(m.complaints(answers)).To(BeEmpty())
			}).Should(Succeed())
			Expect(answers).To(HaveLen(1))
			Expect(answers[0].IP).To(BeEquivalentTo(before[m.name].Address))
			Expect(answers[0].Gateway).To(BeEquivalentTo(*before[m.name].Gateway))
			Expect(answers[0].Bits).To(Equal(before[m.name].Prefix))
			Expect(m.read(ctx).Spec).To(Equal(before[m.name]))
		}

		By("deleting a machine with the old template")
		machines[0].leave(ctx)
		machines[0].gone(ctx)
		expectGone(ctx, object(m3ipamv1.GroupVersion.WithKind("IPClaim"), ns, machines[0].claim.Name))
		expectGone(ctx, object(m3ipamv1.GroupVersion.WithKind("IPAddress"), ns, "prov-"+map[string]string{"workers-0": "10-62-0-10", "workers-1": "10-62-0-11"}[machines[0].name]))
		Eventually(func(g Gomega) {
			ours := &v1alpha1.NetworkPool{}
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: ns, Name: "hosts"}, ours)).To(Succeed())
			g.Expect(ours.Status.AllocatedIPs).To(BeEquivalentTo(1))
		}).Should(Succeed())
		Expect(machines[1].read(ctx).Spec).To(Equal(before[machines[1].name]))

		By("deleting a machine whose template names our pool")
		machines[1].destroy(ctx)
		machines[1].gone(ctx)
		Expect(history.wrong(ctx, ns)).To(BeEmpty())
	})
})
