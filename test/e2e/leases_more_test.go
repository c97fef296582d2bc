package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// families sets the IP family policy of a Service to create.
func families(policy corev1.IPFamilyPolicy) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &policy }
}

func withAnnotation(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value) }
}

// make creates a Service with TCP port 80; the changes may edit it first.
func (t tenant) make(ctx context.Context, name string, changes ...func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.ns, Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false), Ports: []corev1.ServicePort{port(corev1.ProtocolTCP, 80)},
		},
	}
	for _, change := range changes {
		change(s)
	}
	Expect(t.Create(ctx, s)).To(Succeed())
	return s
}

// expectNoAddress expects an event of MetalLB that a Service gets no address.
func (t tenant) expectNoAddress(ctx context.Context, s *corev1.Service) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		events := &corev1.EventList{}
		g.Expect(t.List(ctx, events, client.InNamespace(t.ns))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(HaveField("InvolvedObject.Name", s.Name), HaveField("Reason", "AllocationFailed"))))
	}).Should(Succeed())
	Expect(t.Get(ctx, client.ObjectKeyFromObject(s), s)).To(Succeed())
	Expect(s.Status.LoadBalancer.Ingress).To(BeEmpty())
}

// expectLeaseCondition expects a condition of a lease.
func (t tenant) expectLeaseCondition(ctx context.Context, lease, kind string, status metav1.ConditionStatus, message string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		condition := meta.FindStatusCondition(t.lease(ctx, g, lease).Status.Conditions, kind)
		g.Expect(condition).To(HaveValue(And(HaveField("Status", status), HaveField("Message", ContainSubstring(message)))))
	}).Should(Succeed())
}

var _ = Describe("Services that name leases", Ordered, func() {
	const named = v1alpha1.LeaseAnnotation
	var m *framework.Manager
	BeforeAll(func(ctx SpecContext) {
		m = workload.startLeases(ctx)
		workload.leasePool(ctx, "more", "10.211.0.0/27", v1alpha1.Leases{})
		workload.leasePool(ctx, "more-6", "fd00:211::/123", v1alpha1.Leases{})
		DeferCleanup(func(ctx SpecContext) {
			advertisement := &metallbv1beta1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "butler-leases"}}
			Expect(client.IgnoreNotFound(workload.Delete(ctx, advertisement))).To(Succeed())
		})
	})

	It("have addresses of both families, from two leases, or none", func(ctx SpecContext) {
		t := newTenant(ctx, "more", "shop")
		t.newLease(ctx, "shop-6", "more-6")
		four, six := t.addressOf(ctx, "shop"), t.addressOf(ctx, "shop-6")
		both := t.make(ctx, "both", withAnnotation(named, "shop,shop-6"), families(corev1.IPFamilyPolicyRequireDualStack))
		t.expectPublished(ctx, []string{four, six}, both)
		half := t.make(ctx, "half", withAnnotation(named, "shop"), families(corev1.IPFamilyPolicyRequireDualStack), func(s *corev1.Service) { s.Spec.Ports[0].Port = 83 })
		t.expectReason(ctx, half, v1alpha1.LeaseUnfitReason, "the Service requires both families")
		late := t.make(ctx, "late", withAnnotation(named, "shop-6"), families(corev1.IPFamilyPolicyPreferDualStack), func(s *corev1.Service) { s.Spec.Ports[0].Port = 82 })
		t.expectReason(ctx, late, v1alpha1.LeaseUnfitReason, "MetalLB gives it both or none: name a lease of each, or set ipFamilyPolicy SingleStack")
		second := t.make(ctx, "second", withAnnotation(named, "shop,shop-6"), families(corev1.IPFamilyPolicyPreferDualStack), func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
		t.expectPublished(ctx, []string{four, six}, second)
	})

	It("of other namespaces share an address where the lease selects them, and only then", func(ctx SpecContext) { // A7
		mine, otherTenant := newTenant(ctx, "more", "shop"), workload.newTenant(ctx)
		address := mine.addressOf(ctx, "shop")
		web := mine.make(ctx, "web", withAnnotation(named, "shop"))
		guest := otherTenant.make(ctx, "web", withAnnotation(named, mine.ns+"/shop"), func(s *corev1.Service) { s.Spec.Ports[0].Port = 443 })
		expectPublished(ctx, address, web)
		expectReason(ctx, guest, v1alpha1.NotAllowedReason, "its spec.namespaceSelector has to select that")
		selecting := func(value string) {
			Eventually(func() error {
				l := mine.lease(ctx, Default, "shop")
				l.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": value}}
				return mine.Update(ctx, l)
			}).Should(Succeed())
		}
		selecting(otherTenant.ns)
		expectPublished(ctx, address, web, guest)
		Expect(mine.lease(ctx, Default, "shop").Status.Ports).To(HaveExactElements(
			v1alpha1.LeasedPort{Protocol: "TCP", Port: 80, Service: "web", UID: web.UID},
			v1alpha1.LeasedPort{Protocol: "TCP", Port: 443, Service: "web", Namespace: otherTenant.ns, UID: guest.UID}))
		late := otherTenant.make(ctx, "late", withAnnotation(named, mine.ns+"/shop"))
		expectReason(ctx, late, v1alpha1.PortTakenReason, "is already allocated to Service web")
		selecting("none")
		expectReason(ctx, guest, v1alpha1.NotAllowedReason, "its spec.namespaceSelector has to select that")
		expectPublished(ctx, address, web)
		Eventually(func() []v1alpha1.LeasedPort { return mine.lease(ctx, Default, "shop").Status.Ports }).Should(HaveLen(1))
	})

	It("get no address of a lease of their own tenant by requesting it from MetalLB", func(ctx SpecContext) { // H9
		t := newTenant(ctx, "more", "shop")
		address := t.addressOf(ctx, "shop")
		expectPublished(ctx, address, t.make(ctx, "web", withAnnotation(named, "shop")))
		t.expectNoAddress(ctx, t.make(ctx, "by-annotation", withAnnotation("metallb.io/loadBalancerIPs", address), withAnnotation("metallb.io/allow-shared-ip", "lease-"+t.ns), func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }))
		t.expectNoAddress(ctx, t.make(ctx, "by-field", func(s *corev1.Service) { s.Spec.LoadBalancerIP, s.Spec.Ports[0].Port = address, 82 }))
		t.expectNoAddress(ctx, t.make(ctx, "by-pool", withAnnotation("metallb.io/address-pool", "lease-"+t.ns), func(s *corev1.Service) { s.Spec.Ports[0].Port = 83 }))
	})

	It("have an event when MetalLB refuses the address of their lease, and no other lease is affected", func(ctx SpecContext) { // A8, A14
		t := newTenant(ctx, "more", "good")
		t.newLease(ctx, "bad", "more")
		good, bad := t.addressOf(ctx, "good"), t.addressOf(ctx, "bad")
		refuseAddress(ctx, t.ns, bad)
		refused := t.make(ctx, "refused", withAnnotation(named, "bad"))
		expectPublished(ctx, good, t.make(ctx, "served", withAnnotation(named, "good")))
		t.expectLeaseCondition(ctx, "good", v1alpha1.AnnouncedCondition, metav1.ConditionTrue, "MetalLB has the address")
		t.expectLeaseCondition(ctx, "bad", v1alpha1.AnnouncedCondition, metav1.ConditionFalse, "overlaps")
		Eventually(func() []string { return eventsOn(ctx, workload, t.ns, refused.UID, v1alpha1.MetalLBRefusesReason) }).Should(ContainElement(ContainSubstring("IPLease bad")))
		expectRestMeanwhile(ctx, m)
		// A change of an IPAddressPool of MetalLB triggers another try.
		policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: t.ns}}
		Expect(workload.Delete(ctx, policy)).To(Succeed())
		Eventually(func(g Gomega) {
			other := &metallbv1beta1.IPAddressPool{
				ObjectMeta: metav1.ObjectMeta{Namespace: framework.MetalLBNamespace, GenerateName: "other-"},
				Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{"10.212.0.1-10.212.0.1"}, AutoAssign: ptr.To(false)},
			}
			g.Expect(workload.Create(ctx, other)).To(Succeed())
			g.Expect(workload.Delete(ctx, other)).To(Succeed())
			g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(refused), refused)).To(Succeed())
			g.Expect(refused.Status.LoadBalancer.Ingress).To(HaveExactElements(HaveField("IP", bad)))
		}).Should(Succeed())
		t.expectLeaseCondition(ctx, "bad", v1alpha1.AnnouncedCondition, metav1.ConditionTrue, "")
	})

	It("are served beside elastic blocks, in a cluster that is its own workload cluster", func(ctx SpecContext) {
		t := newTenant(ctx, "more", "shop")
		pool := framework.MakePool("elastic").Namespace(t.ns).Addresses("10.213.0.1-10.213.0.9").Obj()
		pool.Spec.Leases = &v1alpha1.Leases{} // for both uses
		config := &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{Namespace: t.ns, Name: t.ns}, Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{
			Mode: v1alpha1.IPAMMode, PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Name: "elastic"}}},
			LoadBalancer: &v1alpha1.LoadBalancerPool{AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: ptr.To[int32](1), GrowthIncrement: ptr.To[int32](1)},
		}}}
		for _, o := range []client.Object{pool, config} {
			Expect(workload.Create(ctx, o)).To(Succeed())
		}
		credentials, err := workload.TenantKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		itself, err := framework.CreateClusterWithKubeconfig(ctx, workload, credentials, metav1.ObjectMeta{
			Namespace: t.ns, Name: "itself", Labels: map[string]string{v1alpha1.ProviderConfigLabel: config.Name},
		})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) {
			Expect(workload.Delete(ctx, itself)).To(Succeed())
			Eventually(func(g Gomega) {
				blocks := &v1alpha1.IPAllocationList{}
				g.Expect(workload.List(ctx, blocks, client.InNamespace(t.ns))).To(Succeed())
				g.Expect(blocks.Items).To(BeEmpty())
			}).WithTimeout(framework.LongTimeout).Should(Succeed())
			for _, left := range []client.Object{&metallbv1beta1.IPAddressPool{}, &metallbv1beta1.L2Advertisement{}} { // of a deleted Cluster
				left.SetNamespace(framework.MetalLBNamespace)
				left.SetName("default-pool")
				Expect(client.IgnoreNotFound(workload.Delete(ctx, left))).To(Succeed())
			}
		})
		Expect(workload.Create(ctx, framework.MakeLease(t.ns, "same-pool").Pool("elastic").Obj())).To(Succeed())
		shop, same := t.addressOf(ctx, "shop"), t.addressOf(ctx, "same-pool")
		web, of := t.make(ctx, "web", withAnnotation(named, "shop")), t.make(ctx, "of-the-same-pool", withAnnotation(named, "same-pool"))
		expectPublished(ctx, shop, web)
		expectPublished(ctx, same, of)
		plain := []*corev1.Service{t.make(ctx, "plain-a"), t.make(ctx, "plain-b")}
		Eventually(func(g Gomega) {
			for _, s := range plain {
				g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(s), s)).To(Succeed())
				g.Expect(s.Status.LoadBalancer.Ingress).To(HaveExactElements(HaveField("IP", And(HavePrefix("10.213.0."), Not(Equal(same))))))
			}
		}).Should(Succeed())
		// The Services are deleted, and their block with them; the leases stay.
		for _, s := range plain {
			Expect(workload.Delete(ctx, s)).To(Succeed())
		}
		Eventually(func(g Gomega) {
			p := &metallbv1beta1.IPAddressPool{}
			g.Expect(workload.Get(ctx, client.ObjectKey{Namespace: framework.MetalLBNamespace, Name: "default-pool"}, p)).To(Succeed())
			g.Expect(p.Spec.Addresses).To(HaveLen(1))
		}).WithTimeout(framework.LongTimeout).Should(Succeed())
		expectPublished(ctx, shop, web)
		expectPublished(ctx, same, of)
	})
})

// refuseAddress creates a policy that refuses writes of a namespace's IPAddressPool with the given address, as
// MetalLB's webhook refuses a pool that overlaps another.
func refuseAddress(ctx context.Context, ns, address string) {
	GinkgoHelper()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"metallb.io"}, APIVersions: []string{"*"}, Resources: []string{"ipaddresspools"}},
			}}}},
			Validations: []admissionv1.Validation{{
				Expression: "object.metadata.name != 'lease-" + ns + "' || !object.spec.addresses.exists(a, a == '" + address + "-" + address + "')",
				Message:    "overlaps with another pool",
			}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	for _, o := range []client.Object{policy, binding} {
		Expect(workload.Create(ctx, o)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(workload.Delete(ctx, o))).To(Succeed()) })
	}
	// The policy takes a while to become effective.
	Eventually(func() bool {
		probe := &metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: framework.MetalLBNamespace, Name: "lease-" + ns},
			Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{address + "-" + address}},
		}
		return apierrors.IsInvalid(workload.Create(ctx, probe, client.DryRunAll))
	}).Should(BeTrue())
}
