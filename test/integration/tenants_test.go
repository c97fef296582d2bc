package integration

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// docs/security.md names these specs. No webhook runs, as if it were disabled or unreachable.

// expectFit expects a message that fits into a status and is printable on a terminal.
func expectFit(message string) {
	GinkgoHelper()
	Expect(len(message)).To(BeNumerically("<=", text.MaxMessageLength))
	Expect(strings.ContainsFunc(message, func(r rune) bool { return !unicode.IsPrint(r) })).To(BeFalse(), "%q", message)
}

// expectServed expects that a claim that is not involved gets an address.
func expectServed(ctx context.Context, ns, name, pool string) {
	GinkgoHelper()
	create(ctx, framework.MakeClaim(ns, name).Pool(pool).Obj())
	addressOf(ctx, ns, name)
}

var _ = Describe("A tenant", Ordered, func() {
	var ns, otherNS string
	var m *framework.Manager

	BeforeAll(func(ctx SpecContext) { m = startManager(ctx) })
	BeforeEach(func(ctx SpecContext) {
		ns, otherNS = newNamespace(ctx, map[string]string{"team": "a"}), newNamespace(ctx, nil)
	})

	It("gets nothing from a pool of another namespace", func(ctx SpecContext) {
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.150.0.0/29").Obj(), framework.MakeClaim(otherNS, "c").Pool("p").Obj(),
			framework.MakeClaim(otherNS, "asks").Pool("p").RequestAddress("10.150.0.3").Obj())
		block := framework.MakeAllocation(otherNS, "b").Count(2).Cluster(ns, "theirs").Obj()
		create(ctx, block)
		for _, name := range []string{"c", "asks"} {
			Expect(refusalOf(ctx, otherNS, name, "PoolNotReady")).To(ContainSubstring("NetworkPool " + otherNS + "/p does not exist"))
		}
		Expect(refusedBlock(ctx, block, v1alpha1.AllocationPending, "PoolNotReady")).To(ContainSubstring("does not exist"))
	})

	It("keeps its addresses when its namespace is not selected any more, and gets no new ones", func(ctx SpecContext) {
		create(ctx, framework.MakeGlobalPool(ns).CIDR("10.150.1.0/29").ForNamespaces("team", "a").Obj(), framework.MakeClaim(ns, "had").GlobalPool(ns).Obj())
		had := addressOf(ctx, ns, "had").Spec.Address
		create(ctx, framework.MakeClaim(otherNS, "c").GlobalPool(ns).Obj())
		refusalOf(ctx, otherNS, "c", "AllocationFailed")
		modify(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, func(n *corev1.Namespace) { n.Labels["team"] = "b" })
		modify(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: otherNS}}, func(n *corev1.Namespace) {
			n.Labels["team"] = "a"
		})
		addressOf(ctx, otherNS, "c") // so the labels were observed
		create(ctx, framework.MakeClaim(ns, "new").GlobalPool(ns).Obj())
		Expect(refusalOf(ctx, ns, "new", "AllocationFailed")).To(ContainSubstring("does not serve namespace " + ns))
		Expect(addressOf(ctx, ns, "had").Spec.Address).To(Equal(had))
	})

	It("gets no address of others with a forged record and finalizer", func(ctx SpecContext) {
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.150.2.0/28").Gateway("10.150.2.1").Reserved("10.150.2.2").PreAllocate("vip", "10.150.2.9").ReuseGracePeriod(3600).Obj()
		create(ctx, pool)
		expectServed(ctx, ns, "owner", "p")
		expectServed(ctx, ns, "gone", "p")
		owned, rests := addressOf(ctx, ns, "owner").Spec.Address, addressOf(ctx, ns, "gone").Spec.Address
		deleteClaim(ctx, ns, "gone")
		expectGone(ctx, framework.MakeClaim(ns, "gone").Obj())
		for name, c := range map[string]struct{ record, want string }{
			"others":    {owned, "IPAddressClaim " + ns + "/owner"},
			"rests":     {rests, "is held by"},
			"kept":      {"10.150.2.9", "is held by"},
			"gateway":   {"10.150.2.1", "does not grant"},
			"reserved":  {"10.150.2.2", "does not grant"},
			"outside":   {"10.150.3.2", "does not grant"},
			"all-of-it": {"10.150.2.0/28", "does not grant"},
			"family":    {"fd00::1", "does not grant"},
			"whole":     {"0.0.0.0/0", "does not grant"},
		} {
			for _, finalizers := range [][]string{nil, {v1alpha1.ClaimFinalizer}} {
				claim := framework.MakeClaim(ns, fmt.Sprintf("%s-%d", name, len(finalizers))).Pool("p").Annotate(v1alpha1.AddressAnnotation, c.record).Obj()
				claim.Finalizers = finalizers
				create(ctx, claim)
				Expect(refusalOf(ctx, ns, claim.Name, "AllocationFailed")).To(ContainSubstring(c.want), claim.Name)
			}
			if name != "others" && name != "rests" && name != "kept" {
				continue
			}
			asks := framework.MakeClaim(ns, "asks-"+name).Pool("p").RequestAddress(c.record).Obj()
			create(ctx, asks)
			Expect(refusalOf(ctx, ns, asks.Name, "AllocationFailed")).To(ContainSubstring(c.want), asks.Name)
		}
		expectServed(ctx, ns, "after", "p")
		expectNothingWrong(ctx, ns)
	})

	It("takes no address from others with a forged IPAddress", func(ctx SpecContext) {
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.150.4.0/28").Obj()
		create(ctx, pool)
		expectServed(ctx, ns, "owner", "p")
		owned := addressOf(ctx, ns, "owner")
		owner := getClaim(ctx, ns, "owner")
		// One with the owner's claim as owner, one with a claim that never existed, and one whose address cannot be
		// parsed.
		second, void := madeAddress(ns, "second", owned.Spec.Address, 28, claimOwner("owner", owner.UID)), madeAddress(ns, "void", owned.Spec.Address, 28, claimOwner("void", "made-up"))
		second.Spec.ClaimRef.Name = "owner"
		create(ctx, second, void, madeAddress(ns, "unreadable", "fe80::1%eth0", 64, claimOwner("unreadable", "made-up")))
		expectServed(ctx, ns, "after", "p")
		Expect(addressOf(ctx, ns, "after").Spec.Address).NotTo(Equal(owned.Spec.Address))
		Expect(addressOf(ctx, ns, "owner").UID).To(Equal(owned.UID))
		// They can be deleted, and the owner keeps the address.
		for _, made := range []*ipamv1.IPAddress{second, void} {
			force(ctx, made)
		}
		Expect(addressOf(ctx, ns, "owner").UID).To(Equal(owned.UID))
		expectServed(ctx, ns, "later", "p")
		Expect(addressOf(ctx, ns, "later").Spec.Address).NotTo(Equal(owned.Spec.Address))
	})

	It("that creates objects of the maximum size gets short messages, and delays no other claim", func(ctx SpecContext) {
		const most = 250 << 10
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.150.5.0/26").Obj())
		large := strings.Repeat("x\x1b", most/2)
		for name, claim := range map[string]*ipamv1.IPAddressClaim{
			"asks":    framework.MakeClaim(ns, "asks").Pool("p").RequestAddress(large).Obj(),
			"zone":    framework.MakeClaim(ns, "zone").Pool("p").RequestAddress("fe80::1%" + large).Obj(),
			"local":   framework.MakeClaim(ns, "local").Pool("p").RequestAddress("10.150.5.9%eth0").Obj(),
			"mapped":  framework.MakeClaim(ns, "mapped").Pool("p").RequestAddress("::ffff:10.9.9.9").Obj(),
			"cluster": framework.MakeClaim(ns, "cluster").Pool("p").Cluster("missing").Annotate("note", large).Obj(),
		} {
			create(ctx, claim)
			expectFit(refusalOf(ctx, ns, name, "AllocationFailed"))
		}
		expectRestMeanwhile(ctx, 1, m)
		// Large content that is no reason for a refusal stays on the claim.
		kept := framework.MakeClaim(ns, "kept").Pool("p").Annotate(v1alpha1.AddressAnnotation, large).Obj()
		for i := range 1000 {
			kept.Finalizers = append(kept.Finalizers, fmt.Sprintf("example.com/f%d", i))
			kept.OwnerReferences = append(kept.OwnerReferences, metav1.OwnerReference{
				APIVersion: "example.com/v1", Kind: "Machine", Name: strings.Repeat("n", 200), UID: "u",
			})
		}
		create(ctx, kept)
		addressOf(ctx, ns, "kept")
		modifyStatus(ctx, kept, func(c *ipamv1.IPAddressClaim) {
			for i := range 20 {
				c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{
					Type: fmt.Sprintf("Large%d", i), Status: metav1.ConditionTrue, Reason: "Large", Message: strings.Repeat("m", 32768), LastTransitionTime: metav1.Now(),
				})
			}
		})
		deleteClaim(ctx, ns, "kept")
		modify(ctx, kept, func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} }) // no other user
		expectGone(ctx, kept)
		expectServed(ctx, ns, "after", "p")
	})

	It("that writes invalid pools without a webhook gets no address of them, and a short message", func(ctx SpecContext) {
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.150.6.0/28").Obj()
		create(ctx, pool)
		expectServed(ctx, ns, "had", "p")
		had := addressOf(ctx, ns, "had").UID
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) {
			p.Spec.PreAllocations = v1alpha1.PreAllocations{}
			for i := range 256 {
				p.Spec.Reserved = append(p.Spec.Reserved, v1alpha1.ReservedRange{Addresses: fmt.Sprintf("10.151.%d.0-10.151.%d.255", i, i)})
				p.Spec.PreAllocations[strings.Repeat("n", 500)+fmt.Sprint(i)] = fmt.Sprintf("10.152.0.%d", i)
			}
		})
		expectFit(expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason))
		create(ctx, framework.MakeClaim(ns, "new").Pool("p").Obj())
		expectFit(refusalOf(ctx, ns, "new", "PoolNotReady"))
		expectRestMeanwhile(ctx, 1, m)
		Expect(addressOf(ctx, ns, "had").UID).To(Equal(had))
		Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ContainElement("PoolValidationFailed"))
		deleteClaim(ctx, ns, "had") // existing grants end as usual
		expectGone(ctx, framework.MakeClaim(ns, "had").Obj())
	})

	It("gets a short message about a selector of any length", func(ctx SpecContext) {
		pool := framework.MakeGlobalPool(ns).CIDR("10.150.7.0/28").Obj()
		selector := &metav1.LabelSelector{}
		for i := range 2000 {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: fmt.Sprintf("k%d", i), Operator: metav1.LabelSelectorOpIn, Values: []string{strings.Repeat("v", 60)},
			})
		}
		pool.Spec.NamespaceSelector = selector
		create(ctx, pool, framework.MakeClaim(ns, "c").GlobalPool(ns).Obj())
		expectFit(refusalOf(ctx, ns, "c", "AllocationFailed"))
		pool = framework.MakeGlobalPool(otherNS).CIDR("10.150.8.0/28").Obj()
		pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{strings.Repeat("k", 100_000): "v"}}
		create(ctx, pool, framework.MakeClaim(otherNS, "c").GlobalPool(otherNS).Obj())
		expectFit(refusalOf(ctx, otherNS, "c", "PoolNotReady"))
	})

	It("gets absurd numbers of addresses only from pools that have them", func(ctx SpecContext) {
		create(ctx, framework.MakePool("all").Namespace(ns).CIDR("::/0").Network("absurd").Obj(), framework.MakePool("p").Namespace(ns).CIDR("10.150.9.0/28").Obj())
		most := framework.MakeAllocation(ns, "most").Pool("p").Count(1<<31 - 1).Obj()
		all := framework.MakeAllocation(ns, "all").Pool("all").PinnedRange("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").Obj()
		outside := framework.MakeAllocation(ns, "outside").Pool("p").PinnedRange("0.0.0.0", "255.255.255.255").Obj()
		create(ctx, most, outside, all)
		expectFit(refusedBlock(ctx, most, v1alpha1.AllocationFailed, "PoolExhausted"))
		expectFit(refusedBlock(ctx, outside, v1alpha1.AllocationFailed, "AllocationFailed"))
		allocatedTo(ctx, all)
		Expect(all.Status.AllocatedCount).To(Equal(int64(1<<63 - 1)))
		expectServed(ctx, ns, "after", "p")
		remove(ctx, all)
	})
})
