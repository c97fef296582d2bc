package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant whose MetalLB a user changes by hand", func() {
	var s *story
	var first *corev1.Service
	var pool *metallbv1beta1.IPAddressPool
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		first = s.served(ctx, "first", "10")
		var err error
		pool, err = metalLBPool(ctx, "default-pool")
		Expect(err).NotTo(HaveOccurred())
	})

	It("has its pool restored after each edit", func(ctx SpecContext) { // B55, B58
		for _, edit := range []string{
			`{"spec":{"addresses":["10.99.0.1-10.99.0.9"]}}`,
			`{"spec":{"autoAssign":false}}`,
			`{"metadata":{"labels":null}}`,
		} {
			workload.change(ctx, pool, edit)
			Eventually(func(g Gomega) {
				current, err := metalLBPool(ctx, "default-pool")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(current.Spec.Addresses).To(Equal([]string{s.net + "10-" + s.net + "10"}))
				g.Expect(current.Spec.AutoAssign).To(HaveValue(BeTrue()))
				g.Expect(current.Labels).NotTo(BeEmpty())
			}).Should(Succeed(), edit)
		}
		// MetalLB may have withdrawn the address, and assigns it again.
		expectAddress(ctx, first, s.net+"10")
		s.expectBlocks(ctx, map[string]int{"lb": 1})
	})

	It("has its pool and its advertisement restored when they are deleted", func(ctx SpecContext) { // B55
		advertisement := waitForAdvertisement(ctx)
		Expect(workload.Delete(ctx, pool)).To(Succeed())
		Expect(workload.Delete(ctx, advertisement.DeepCopy())).To(Succeed())
		s.expectPoolEntries(ctx, "10-10")
		now := &metallbv1beta1.L2Advertisement{}
		Eventually(func(g Gomega) {
			g.Expect(workload.Get(ctx, inMetalLB("default-pool"), now)).To(Succeed())
			g.Expect(now.UID).NotTo(Equal(advertisement.UID))
		}).Should(Succeed())
		Expect(now.Spec).To(Equal(advertisement.Spec))
		workload.change(ctx, now, `{"spec":{"ipAddressPoolSelectors":null,"ipAddressPools":["other"]}}`)
		Eventually(func(g Gomega) {
			g.Expect(workload.Get(ctx, inMetalLB("default-pool"), now)).To(Succeed())
			g.Expect(now.Spec.IPAddressPoolSelectors).To(Equal(advertisement.Spec.IPAddressPoolSelectors))
		}).Should(Succeed())
		expectAddress(ctx, first, s.net+"10")
		s.expectBlocks(ctx, map[string]int{"lb": 1})
	})

	It("keeps a pool of another name", func(ctx SpecContext) { // B56
		mine := &metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: framework.MetalLBNamespace, Name: "mine"},
			Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{"10.99.0.0/24"}, AutoAssign: ptr.To(false)},
		}
		Expect(workload.Create(ctx, mine)).To(Succeed())
		named := s.serve(ctx, "named", annotated("metallb.io/address-pool", "mine"))
		Expect(s.addressOf(ctx, named)).To(HavePrefix("10.99.0."))
		s.served(ctx, "second", "11")
		Expect(workload.Delete(ctx, pool)).To(Succeed())
		s.expectPoolEntries(ctx, "10-10", "11-11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		current := &metallbv1beta1.IPAddressPool{}
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(mine), current)).To(Succeed())
		Expect(current.Spec).To(Equal(mine.Spec))
		Expect(current.Labels).To(BeEmpty())
		Expect(current.Generation).To(Equal(mine.Generation))
	})
})
