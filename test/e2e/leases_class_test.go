package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const class = "butler.butlerlabs.dev/metallb"

func ofClass(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To(class) }

// requestingAddress makes a Service of the class request an address, on a port.
func requestingAddress(address string, n int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		ofClass(s)
		s.Spec.LoadBalancerIP, s.Spec.Ports = address, []corev1.ServicePort{port(corev1.ProtocolTCP, n)}
	}
}

// endpoint creates an endpoint of a Service, ready or not.
func (t tenant) endpoint(ctx context.Context, service string, ready bool) {
	GinkgoHelper()
	e := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: t.ns, Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	if err := t.Create(ctx, e); apierrors.IsAlreadyExists(err) {
		Expect(t.Update(ctx, e)).To(Succeed())
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
}

// gone waits until there is no lease with the given name.
func (t tenant) gone(ctx context.Context, lease string) {
	GinkgoHelper()
	Eventually(func() bool {
		return apierrors.IsNotFound(t.Get(ctx, client.ObjectKey{Namespace: t.ns, Name: lease}, &v1alpha1.IPLease{}))
	}).WithTimeout(framework.LongTimeout).Should(BeTrue())
}

var _ = Describe("Services of a load balancer class of pools", Ordered, func() {
	var c cluster
	BeforeAll(func(ctx SpecContext) {
		c = startCluster(twoFamilies)
		Expect(c.InstallMetalLB(ctx)).To(Succeed())
		m, err := c.StartMetalLB(ctx, "--lb-class="+class)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() {
			if CurrentSpecReport().Failed() {
				GinkgoWriter.Println(m.LogTail(40))
			}
			Expect(m.Kill()).To(Succeed())
		})
		c.startLeases(ctx)
		c.leasePool(ctx, "first", "198.51.100.0/30", v1alpha1.Leases{LoadBalancerClass: class, Priority: 1, QuotaPerNamespace: ptr.To[int32](4)})
		c.leasePool(ctx, "second", "198.51.100.32/28", v1alpha1.Leases{LoadBalancerClass: class, Priority: 2})
		c.leasePool(ctx, "six", "fd00:51::/123", v1alpha1.Leases{LoadBalancerClass: class})
	})

	It("have a lease each, which is deleted with them", func(ctx SpecContext) { // A4, H8, H21, H25
		t := c.newTenant(ctx)
		web := t.make(ctx, "web", ofClass)
		address := t.addressOf(ctx, "web-ipv4")
		t.expectPublished(ctx, []string{address}, web)
		l := t.lease(ctx, Default, "web-ipv4")
		Expect(l.Labels).To(HaveKeyWithValue(v1alpha1.MadeForServicesLabel, "web"))
		Expect(l.OwnerReferences).To(BeEmpty())
		By("another Service has another lease, and no other Service gets the first address")
		other := t.make(ctx, "other", ofClass)
		t.expectPublished(ctx, []string{t.addressOf(ctx, "other-ipv4")}, other)
		Expect(t.addressOf(ctx, "other-ipv4")).NotTo(Equal(address))
		thief := t.make(ctx, "thief", requestingAddress(address, 81))
		t.expectReason(ctx, thief, v1alpha1.LeaseNotReadyReason, "held by IPLease "+t.ns+"/web-ipv4")
		named := t.make(ctx, "named", ofClass, withAnnotation(v1alpha1.LeaseAnnotation, "web-ipv4"), func(s *corev1.Service) { s.Spec.Ports[0].Port = 82 })
		t.expectReason(ctx, named, v1alpha1.NotAllowedReason, "was made for Service web")
		By("a Service that is created again at once gets its address again") // H23
		Expect(t.Delete(ctx, web)).To(Succeed())
		web = t.make(ctx, "web", ofClass)
		t.expectPublished(ctx, []string{address}, web)
		Expect(t.Delete(ctx, web)).To(Succeed())
		Expect(t.Delete(ctx, thief)).To(Succeed())
		t.gone(ctx, "web-ipv4")
		t.gone(ctx, "ip-198-51-100-1")
	})

	It("get addresses of the next pool by priority when the first has none", func(ctx SpecContext) { // H24
		t := c.newTenant(ctx)
		in := map[string]int{}
		for _, name := range []string{"a", "b", "d"} {
			s := t.make(ctx, name, ofClass)
			t.expectPublished(ctx, []string{t.addressOf(ctx, name+"-ipv4")}, s)
			in[t.lease(ctx, Default, name+"-ipv4").Spec.PoolRef.Name]++
		}
		Expect(in).To(Equal(map[string]int{"first": 2, "second": 1}))
	})

	It("have a lease for each IP family that they require", func(ctx SpecContext) {
		t := c.newTenant(ctx)
		both := t.make(ctx, "both", ofClass, families(corev1.IPFamilyPolicyRequireDualStack))
		t.expectPublished(ctx, []string{t.addressOf(ctx, "both-ipv4"), t.addressOf(ctx, "both-ipv6")}, both)
	})

	It("share the address that they ask for, on 80 and 443", func(ctx SpecContext) { // H5, H19
		t := c.newTenant(ctx)
		web, tls := t.make(ctx, "web", requestingAddress("198.51.100.40", 80)), t.make(ctx, "tls", requestingAddress("198.51.100.40", 443))
		t.expectPublished(ctx, []string{"198.51.100.40"}, web, tls)
		late := t.make(ctx, "late", requestingAddress("198.51.100.40", 443))
		t.expectReason(ctx, late, v1alpha1.PortTakenReason, "198.51.100.40 TCP/443 is already allocated to Service tls")
		others := c.newTenant(ctx)
		foreign := others.make(ctx, "web", requestingAddress("198.51.100.40", 81))
		others.expectReason(ctx, foreign, v1alpha1.LeaseNotReadyReason, "held by IPLease "+t.ns+"/ip-198-51-100-40")
		outside := t.make(ctx, "outside", requestingAddress("203.0.113.1", 80)) // H10
		t.expectReason(ctx, outside, v1alpha1.NoPoolReason, "has the address 203.0.113.1")
		for _, s := range []*corev1.Service{web, tls, late} {
			Expect(t.Delete(ctx, s)).To(Succeed())
		}
		others.expectPublished(ctx, []string{"198.51.100.40"}, foreign) // it waits until the address is released
		t.gone(ctx, "ip-198-51-100-40")
	})

	It("share another address on 8080 and 9090", func(ctx SpecContext) { // H19
		t := c.newTenant(ctx)
		t.expectPublished(ctx, []string{"198.51.100.41"}, t.make(ctx, "a", requestingAddress("198.51.100.41", 8080)), t.make(ctx, "b", requestingAddress("198.51.100.41", 9090)))
	})

	It("lose their address after a time without a ready endpoint, and get one again with an endpoint", func(ctx SpecContext) { // H25
		t := c.newTenant(ctx)
		c.leasePool(ctx, "idle", "198.51.100.64/28", v1alpha1.Leases{LoadBalancerClass: class + ".idle", ReleaseIdleAfterSeconds: 1})
		web := t.make(ctx, "web", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To(class + ".idle") })
		t.expectReason(ctx, web, v1alpha1.IdleReason, "it gets one when it has an endpoint")
		t.gone(ctx, "web-ipv4")
		t.endpoint(ctx, "web", true)
		t.expectLeaseCondition(ctx, "web-ipv4", v1alpha1.InUseCondition, metav1.ConditionTrue, "")
		t.endpoint(ctx, "web", false)
		t.expectReason(ctx, web, v1alpha1.IdleReason, "")
		t.gone(ctx, "web-ipv4")
	})

	It("have a condition that reports that no pool serves their class", func(ctx SpecContext) { // H3
		t := c.newTenant(ctx)
		s := t.make(ctx, "web", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("butler.butlerlabs.dev/unknown") })
		t.expectReason(ctx, s, v1alpha1.NoPoolReason, "no pool of class butler.butlerlabs.dev/unknown gives IPv4 addresses to this namespace")
	})
})
