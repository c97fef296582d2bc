package clusterctl

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("clusterctl move", func() {
	It("takes a Cluster to another management cluster and back, and no address changes", func(ctx SpecContext) { // C42, C51, C52, U44
		here, there := startSite(), startSite()
		for _, s := range []*site{here, there} {
			s.init(ctx)
			s.add(ctx, "load-balancers", "leases")
			s.run(ctx)
		}
		// The other site has a global pool of that name already, and serves it.
		Expect(there.Create(ctx, framework.MakeGlobalPool("storage").CIDR("10.32.0.0/24").Obj())).To(Succeed())
		there.expectReady(ctx, "storage")
		// A pool that nothing in the namespace uses; clusterctl copies it nevertheless.
		Expect(here.Create(ctx, framework.MakeGlobalPool("spare").CIDR("10.32.1.0/24").Obj())).To(Succeed())
		here.expectReady(ctx, "spare")
		f := newFleet(ctx, here, "fleet")
		f.markRunning(ctx, here)
		f.waitUntilGranted(ctx, here)
		before := here.allocated(ctx)
		Expect(before).To(HaveLen(9))

		By("moving there")
		f.move(ctx, here, there, before)
		there.expectNewAddress(ctx, before)
		copied := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "spare"}}
		Eventually(func(g Gomega) {
			g.Expect(there.Get(ctx, client.ObjectKeyFromObject(copied), copied)).To(Succeed())
			g.Expect(copied.Status.Conditions).To(ContainElement(And(
				HaveField("Type", v1alpha1.ReadyCondition), HaveField("Status", metav1.ConditionFalse), HaveField("Message", ContainSubstring("was copied here")))))
		}).Should(Succeed())
		here.expectReady(ctx, "spare") // the original, which stays in service
		was := copied.DeepCopy()
		delete(copied.Annotations, v1alpha1.ManagementClusterAnnotation)
		Expect(there.Patch(ctx, copied, client.MergeFrom(was))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(there.Get(ctx, client.ObjectKeyFromObject(copied), copied)).To(Succeed())
			g.Expect(copied.Status.Conditions).NotTo(ContainElement(HaveField("Message", ContainSubstring("was copied here"))))
		}).Should(Succeed())

		By("moving back")
		f.markRunning(ctx, there)
		f.move(ctx, there, here, before)
		// The other site may have granted addresses of the global pool to others meanwhile: the pool grants again
		// when an operator releases them.
		late := framework.MakeClaim("default", "too-early").GlobalPool("storage").Obj()
		Expect(here.Create(ctx, late)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(here.Get(ctx, client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(late.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("kubectl butler-ipam release-held"))))
		}).Should(Succeed())
		here.releaseHeld(ctx, "storage")
		Expect(before).NotTo(ContainElement(here.addressOf(ctx, late)))
		here.expectNewAddress(ctx, before)
	})
})

// releaseHeld opens a pool that is in no namespace and of which something was moved, as kubectl butler-ipam release-held does.
func (s *site) releaseHeld(ctx context.Context, name string) {
	GinkgoHelper()
	pool := &v1alpha1.GlobalNetworkPool{}
	Expect(s.Get(ctx, client.ObjectKey{Name: name}, pool)).To(Succeed())
	plan, err := inspect.PlanHeldRelease(pool, name, nil)
	Expect(err).NotTo(HaveOccurred())
	moved := pool.DeepCopy()
	metav1.SetMetaDataAnnotation(&pool.ObjectMeta, v1alpha1.ReleaseHeldAnnotation, plan.Annotation)
	Expect(s.Patch(ctx, pool, client.MergeFrom(moved))).To(Succeed())
}

// move moves a fleet, and expects all of it to have the same addresses at the other site.
func (f fleet) move(ctx context.Context, from, to *site, want map[string]string) {
	GinkgoHelper()
	granted := to.grants(ctx)
	from.clusterctl(ctx, "move", "--to-kubeconfig", to.Kubeconfig, "-n", f.ns)
	f.waitUntilGranted(ctx, to)
	Expect(to.allocated(ctx)).To(Equal(want))
	// The claim without an owner is not paused: its IPAddress may be created again between the deletions of the
	// IPAddress and the claim.
	Eventually(func() map[string]string { return from.allocated(ctx) }).Should(BeEmpty())
	// No new address was granted. A claim without a Cluster, which nothing pauses, may be granted the address on its
	// record.
	Expect(to.grants(ctx)).To(BeNumerically("<=", granted+1))
	// The pool that stays on the source does not offer the moved addresses.
	Eventually(func(g Gomega) {
		staying := &v1alpha1.GlobalNetworkPool{}
		g.Expect(from.Get(ctx, client.ObjectKey{Name: "storage"}, staying)).To(Succeed())
		g.Expect(staying.Status.Held).To(HaveLen(2))
	}).Should(Succeed())
}

// expectNewAddress expects a new claim to get an address that no other claim has, and deletes the claim.
func (s *site) expectNewAddress(ctx context.Context, allocated map[string]string) {
	GinkgoHelper()
	late := framework.MakeClaim("default", "late").GlobalPool("storage").Obj()
	Expect(s.Create(ctx, late)).To(Succeed())
	Expect(allocated).NotTo(ContainElement(s.addressOf(ctx, late)))
	Expect(s.Delete(ctx, late)).To(Succeed())
	Eventually(func() map[string]string { return s.allocated(ctx) }).ShouldNot(HaveKey("IPAddress default/late"))
}

func (s *site) expectReady(ctx context.Context, pool string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		p := &v1alpha1.GlobalNetworkPool{}
		g.Expect(s.Get(ctx, client.ObjectKey{Name: pool}, p)).To(Succeed())
		g.Expect(p.Status.Conditions).To(ContainElement(And(HaveField("Type", v1alpha1.ReadyCondition), HaveField("Status", metav1.ConditionTrue))))
	}).Should(Succeed())
}
