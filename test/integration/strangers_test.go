package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Metal3's provider takes claims by the name of their pool alone, puts its finalizer on them and writes their
// conditions.
var _ = Describe("The conditions that others write into the status", func() { // W23
	foreign := metav1.Condition{Type: "example.com/Theirs", Status: metav1.ConditionTrue, Reason: "Theirs", Message: "set by another controller"}

	It("of a claim stay, and the manager sets its own again", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		startManager(ctx)
		claim, waiting := framework.MakeClaim(ns, "c").Pool("p").Obj(), framework.MakeClaim(ns, "waiting").Pool("p").Obj()
		claim.Finalizers, waiting.Finalizers = []string{"example.com/theirs"}, []string{"example.com/theirs"}
		create(ctx, claim, waiting)
		message := refusalOf(ctx, ns, "c", "PoolNotReady")
		for _, c := range []*ipamv1.IPAddressClaim{claim, waiting} {
			modifyStatus(ctx, c, func(c *ipamv1.IPAddressClaim) {
				meta.SetStatusCondition(&c.Status.Conditions, foreign)
				meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Theirs", Message: "no pool of ours"})
			})
		}
		Eventually(func() string { return readyOf(getClaim(ctx, ns, "c")).Message }).Should(Equal(message))
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.224.0.4/31").Obj())
		kept := func(g Gomega) {
			c := getClaim(ctx, ns, "c")
			g.Expect(readyOf(c).Status).To(Equal(metav1.ConditionTrue))
			g.Expect(readyOf(c).Reason).NotTo(Equal("Theirs"))
			g.Expect(c.Status.AddressRef.Name).To(Equal("c"))
			g.Expect(meta.FindStatusCondition(c.Status.Conditions, foreign.Type)).To(HaveValue(And(HaveField("Reason", "Theirs"), HaveField("Message", foreign.Message))))
			g.Expect(c.Finalizers).To(ContainElement("example.com/theirs"))
		}
		Eventually(kept).Should(Succeed())
		address := addressOf(ctx, ns, "c")
		// The same for a claim that has its address.
		modifyStatus(ctx, claim, func(c *ipamv1.IPAddressClaim) {
			c.Status.AddressRef.Name = ""
			meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Theirs", Message: "no pool of ours"})
		})
		Eventually(kept).Should(Succeed())
		Expect(addressOf(ctx, ns, "c").UID).To(Equal(address.UID))
		for _, c := range []*ipamv1.IPAddressClaim{claim, waiting} {
			force(ctx, c)
		}
	})

	It("of an IPAllocation and of a pool stay, and the manager sets its own again", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		startManager(ctx)
		pool, block := framework.MakePool("p").Namespace(ns).CIDR("10.224.1.0/29").Obj(), framework.MakeAllocation(ns, "b").Count(2).Obj()
		create(ctx, pool, block)
		was := allocatedTo(ctx, block)
		overwrite := func(all *[]metav1.Condition) {
			meta.SetStatusCondition(all, foreign)
			meta.SetStatusCondition(all, metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Theirs"})
		}
		modifyStatus(ctx, block, func(b *v1alpha1.IPAllocation) { overwrite(&b.Status.Conditions) })
		modifyStatus(ctx, pool, func(p *v1alpha1.NetworkPool) { overwrite(&p.Status.Conditions) })
		checkConditions := func(g Gomega, all []metav1.Condition) {
			g.Expect(meta.FindStatusCondition(all, "Ready")).To(HaveValue(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", "Ready"))))
			g.Expect(meta.FindStatusCondition(all, foreign.Type)).To(HaveValue(HaveField("Message", foreign.Message)))
		}
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(block), block)).To(Succeed())
			checkConditions(g, block.Status.Conditions)
			g.Expect(block.Status.CIDR).To(Equal(was))
			checkConditions(g, statusOf(ctx, pool).Conditions)
		}).Should(Succeed())
	})
})

var _ = Describe("A claim that waits", func() { // W24
	It("for a Cluster is served when the Cluster is created, before the next periodic reconcile of the pool", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		startManager(ctx)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.224.2.0/29").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Cluster("late").Obj(), framework.MakeClaim(ns, "labelled").Pool("p").ClusterLabel("late").Obj())
		for _, name := range []string{"c", "labelled"} {
			Expect(refusalOf(ctx, ns, name, "AllocationFailed")).To(ContainSubstring("waiting for Cluster " + ns + "/late"))
		}
		create(ctx, makeCluster(ns, "late", false))
		for _, name := range []string{"c", "labelled"} {
			Eventually(func() metav1.ConditionStatus { return readyOf(getClaim(ctx, ns, name)).Status }).Should(Equal(metav1.ConditionTrue), name)
		}
	})
})
