package consumers

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// ours is the finalizer of the manager on claims.
const ours = "ipam.cluster.x-k8s.io/ReleaseAddress"

var _ = Describe("A machine", func() {
	for i := range consumers {
		c := &consumers[i]
		It("of "+c.name+" releases its address when it is deleted", func(ctx SpecContext) { // C36, C41: most rely on the garbage collector
			ns := newNamespace(ctx)
			create(ctx, makePool(ns, "p").Addresses("10.20.0.9").Gateway("10.20.0.1").Prefix(24).Obj())
			watch := record(ctx, ns)
			one := c.newMachine(ctx, ns, "one", "p")
			one.waitUntilBound(ctx)
			one.destroy(ctx)
			one.gone(ctx)

			// After a delete of the owner with --cascade=foreground the collector waits for the objects that it owns.
			two := c.newMachine(ctx, ns, "two", "p")
			two.waitUntilBound(ctx)
			two.destroy(ctx, client.PropagationPolicy(metav1.DeletePropagationForeground))
			two.gone(ctx)

			Expect(watch.wrong(ctx, ns)).To(BeEmpty())
		})

		It("of "+c.name+" has an address when it is deleted and created again under its name", func(ctx SpecContext) { // C46
			ns := newNamespace(ctx)
			create(ctx, makePool(ns, "p").CIDR("10.21.0.0/29").Gateway("10.21.0.1").Obj())
			watch := record(ctx, ns)
			m := c.newMachine(ctx, ns, "m", "p")
			for range 3 {
				m.waitUntilBound(ctx)
				m.destroy(ctx)
				m = c.newMachine(ctx, ns, "m", "p") // without a wait until the claim is gone
			}
			// The first read may find a claim that the old machine owned. It is deleted in the next cycle of the
			// collector.
			Eventually(func(g Gomega) {
				_, err := m.reconcile(ctx)
				g.Expect(err).NotTo(HaveOccurred())
				claim := m.claim(m.reads, 0)
				g.Expect(k8s.Get(ctx, keyOf(claim), claim)).To(Succeed())
				g.Expect(claim.GetDeletionTimestamp()).To(BeNil())
				if m.owner != nil {
					g.Expect(claim.GetOwnerReferences()).To(ConsistOf(HaveField("UID", m.owner.GetUID())))
				}
			}).Should(Succeed())
			m.waitUntilBound(ctx)
			expectAtRest(ctx, ns, 1)
			Expect(watch.wrong(ctx, ns)).To(BeEmpty())
		})

		if c.finalizer == "" {
			continue
		}
		It("of "+c.name+" keeps its address while the finalizer of the provider holds its deleted claim", func(ctx SpecContext) { // C36
			ns := newNamespace(ctx)
			create(ctx, makePool(ns, "p").Addresses("10.22.0.9").Gateway("10.22.0.1").Prefix(24).Obj())
			m := c.newMachine(ctx, ns, "m", "p")
			m.waitUntilBound(ctx)
			claim := m.claim(m.reads, 0)
			update(ctx, claim, func(claim *unstructured.Unstructured) { controllerutil.AddFinalizer(claim, "example.com/later") })
			before := claim.GetFinalizers()
			Expect(before).To(ConsistOf(c.finalizer, ours, "example.com/later"))
			Expect(k8s.Delete(ctx, claim)).To(Succeed())
			// The machine may still use the address: no other claim gets it, and its IPAddress stays.
			next := c.newMachine(ctx, ns, "next", "p")
			Eventually(func(g Gomega) {
				_, err := next.reconcile(ctx)
				g.Expect(err).To(MatchError(errUnbound))
				waiting := next.claim(next.reads, 0)
				g.Expect(k8s.Get(ctx, keyOf(waiting), waiting)).To(Succeed())
				g.Expect(readyOf(waiting).Reason).To(Equal("PoolExhausted"))
			}).Should(Succeed())
			Expect(k8s.Get(ctx, keyOf(claim), claim)).To(Succeed())
			Expect(claim.GetFinalizers()).To(Equal(before))
			kept := &ipamv1.IPAddress{}
			Expect(k8s.Get(ctx, keyOf(claim), kept)).To(Succeed())
			Expect(kept.DeletionTimestamp).To(BeNil())
			update(ctx, claim, func(claim *unstructured.Unstructured) { claim.SetFinalizers([]string{ours}) })
			next.waitUntilBound(ctx)
		})
	}
})
