package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A claim that is created again under its name", func() {
	// again deletes claim c and creates it again as soon as the name is free, and returns its UID.
	again := func(ctx context.Context, ns string) types.UID {
		GinkgoHelper()
		deleteClaim(ctx, ns, "c")
		claim := framework.MakeClaim(ns, "c").Pool("p").Obj()
		Eventually(func() error { return k8s.Create(ctx, claim) }).WithPolling(1e6).Should(
			Or(Succeed(), Not(Satisfy(apierrors.IsAlreadyExists))))
		return claim.UID
	}

	It("gets an address while that of its predecessor is released", func(ctx SpecContext) { // U24, U25
		const rounds = 40
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.17.0.0/30").Obj(),
			framework.MakeClaim(ns, "c").Pool("p").Obj(), framework.MakeClaim(ns, "bystander").Pool("p").Obj())
		bystander := addressOf(ctx, ns, "bystander")
		history := &invariants.History{}
		for round := range rounds {
			if round%2 == 0 { // every other claim is deleted before it has been served
				addressOf(ctx, ns, "c")
			}
			Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
			uid := again(ctx, ns)
			Expect(getClaim(ctx, ns, "c").UID).To(Equal(uid))
		}
		Expect(addressOf(ctx, ns, "c").OwnerReferences).To(ContainElement(claimOwner("c", getClaim(ctx, ns, "c").UID)))
		expectAtRest(ctx, ns, 2)
		Expect(addressOf(ctx, ns, "bystander").ResourceVersion).To(Equal(bystander.ResourceVersion))
		Expect(m.Stop()).To(Succeed())
	})

	It("does not wait forever for the address that its predecessor had", func(ctx SpecContext) { // W6, C23: woken by what happened
		const rounds = 60
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.17.3.0/32").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		for round := range rounds {
			if round%3 == 0 { // the other claims are deleted at some point while they are being served
				Eventually(func() metav1.ConditionStatus { return readyOf(getClaim(ctx, ns, "c")).Status }).Should(Equal(metav1.ConditionTrue), "in round %d", round)
			}
			again(ctx, ns)
		}
		deleteClaim(ctx, ns, "c")
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 0, "availableIPs": 1})
		Expect(m.Stop()).To(Succeed())
	})

	It("gets the address that is cooling for its name", func(ctx SpecContext) { // W15, U8
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.17.1.0/28").ReuseGracePeriod(3600).Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		first := addressOf(ctx, ns, "c").Spec.Address
		for range 5 {
			again(ctx, ns)
			Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal(first))
		}
		deleteClaim(ctx, ns, "c")
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		// The cooling period continues under the next manager.
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "d").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "d").Spec.Address).NotTo(Equal(first))
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal(first))
		Expect(m.Stop()).To(Succeed())
	})

	It("waits until the IPAddress of its predecessor is deleted", func(ctx SpecContext) { // R12, U26
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.17.2.0/28").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		address := addressOf(ctx, ns, "c")
		// Another controller has a finalizer on the IPAddress, and the claim is deleted by force.
		mine := client.MergeFrom(address.DeepCopy())
		address.Finalizers = append(address.Finalizers, "example.com/dns")
		Expect(k8s.Patch(ctx, address, mine)).To(Succeed())
		Expect(m.Kill()).To(Succeed())
		force(ctx, getClaim(ctx, ns, "c"))
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		m = namespaceManager(ctx, ns)
		Expect(refusalOf(ctx, ns, "c", "AllocationFailed")).To(ContainSubstring("earlier claim of this name"))
		expectRestMeanwhile(ctx, 1, m)
		Expect(getClaim(ctx, ns, "c").Annotations).NotTo(HaveKey(v1alpha1.AddressAnnotation))
		Expect(client.IgnoreNotFound(k8s.Patch(ctx, address, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`))))).To(Succeed())
		Expect(addressOf(ctx, ns, "c").UID).NotTo(Equal(address.UID))
		expectAtRest(ctx, ns, 1)
		Expect(m.Stop()).To(Succeed())
	})
})
