package consumers

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
)

var _ = Describe("A refusal", func() {
	for i := range consumers {
		c := &consumers[i]
		It("is visible to "+c.name+", whichever API version it reads", func(ctx SpecContext) { // C5, C47
			ns := newNamespace(ctx)
			create(ctx, makePool(ns, "p").CIDR("10.7.0.1/32").Gateway("10.7.0.1").AllocateReservedAddresses().Obj())
			m := c.newMachine(ctx, ns, "m", "p")
			_, err := m.reconcile(ctx)
			Expect(err).To(MatchError(errUnbound))
			claim := m.claim(m.reads, 0)
			Eventually(func(g Gomega) {
				g.Expect(k8s.Get(ctx, keyOf(claim), claim)).To(Succeed())
				g.Expect(readyOf(claim)).To(And(HaveField("Status", "False"), HaveField("Reason", "PoolExhausted"),
					HaveField("Message", ContainSubstring("has no free address"))))
			}).Should(Succeed())
			legacy := legacyOf(claim)
			Expect(legacy).To(And(HaveField("Status", "False"), HaveField("Reason", Not(BeEmpty())), HaveField("Severity", Not(BeEmpty()))))
			Expect(legacy.Message).To(Equal(readyOf(claim).Message))
		})
	}

	It("is shown by CAPV word for word", func(ctx SpecContext) { // C46: IPAddressClaimsFulfilled
		ns := newNamespace(ctx)
		create(ctx, makePool(ns, "one").CIDR("10.8.0.5/32").Obj())
		m := named("CAPV").newMachine(ctx, ns, "m", "one", "one")
		var claims []*ipamv1.IPAddressClaim
		Eventually(func(g Gomega) {
			_, err := m.reconcile(ctx)
			g.Expect(err).To(MatchError(errUnbound))
			claims = nil
			for n := range m.pools {
				read, claim := m.claim(v1beta2, n), &ipamv1.IPAddressClaim{}
				g.Expect(k8s.Get(ctx, keyOf(read), read)).To(Succeed())
				g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(read.Object, claim)).To(Succeed())
				// CAPV reads the conditions when every claim has one, and counts addresses before that.
				g.Expect(conditions.Has(claim, clusterv1.ReadyCondition)).To(BeTrue())
				claims = append(claims, claim)
			}
		}).Should(Succeed())
		vm := &clusterv1.Machine{}
		Expect(conditions.SetAggregateCondition(claims, vm, clusterv1.ReadyCondition, conditions.TargetConditionType("IPAddressClaimsFulfilled"))).To(Succeed())
		Expect(vm.GetConditions()).To(ConsistOf(And(HaveField("Type", "IPAddressClaimsFulfilled"), HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", ContainSubstring(conditions.Get(claims[1], clusterv1.ReadyCondition).Message)))))
	})
})
