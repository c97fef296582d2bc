package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// quotaOf creates a quota that allows no IPAddress in a namespace.
func quotaOf(ctx context.Context, ns string) client.Object {
	GinkgoHelper()
	q, err := framework.DenyAddressesByQuota(ctx, k8s, ns)
	Expect(err).NotTo(HaveOccurred())
	return q
}

// policyOf creates an admission policy that refuses to create any IPAddress in a namespace.
func policyOf(ctx context.Context, ns string) client.Object {
	GinkgoHelper()
	return refuse(ctx, ns, "no addresses for this namespace", admissionv1.Create, ipamv1.GroupVersion.Group, "ipaddresses")
}

// refuse creates an admission policy that refuses, with a message, one kind of writes in a namespace, and returns its
// binding: when that is deleted, nothing is refused any more.
func refuse(ctx context.Context, ns, message string, operation admissionv1.OperationType, group, resource string) client.Object {
	GinkgoHelper()
	return refuseIn(ctx, k8s, ns, ns, message, operation, group, resource)
}

// refuseIn is refuse for any cluster, and for objects without a namespace.
func refuseIn(ctx context.Context, c client.Client, name, ns, message string, operation admissionv1.OperationType, group, resource string) client.Object {
	GinkgoHelper()
	return refuseUnless(ctx, c, name, fmt.Sprintf("has(request.namespace) && request.namespace != %q", ns), message, operation, group, resource)
}

// refuseUnless is refuse for writes for which a CEL expression is false.
func refuseUnless(ctx context.Context, c client.Client, name, expression, message string, operation admissionv1.OperationType, group, resource string) client.Object {
	GinkgoHelper()
	fail := admissionv1.Fail
	writes := admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{operation},
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}}
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{writes}},
			Validations:      []admissionv1.Validation{{Expression: expression, Message: message}},
		},
	}
	Expect(c.Create(ctx, policy)).To(Succeed())
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	Expect(c.Create(ctx, binding)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(c.Delete(ctx, binding))).To(Succeed())
		Expect(c.Delete(ctx, policy)).To(Succeed())
	})
	return binding
}

var _ = Describe("A namespace whose IPAddresses are refused for good", func() {
	const claims = 45

	It("by a webhook that does not answer has the error on its claims, and is served when the webhook is deleted", func(ctx SpecContext) {
		const few = term.SerialRetryThreshold - 1 // each is retried by itself
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.152.2.0/24").Obj())
		fails, none, path := admissionv1.Fail, admissionv1.SideEffectClassNone, "https://127.0.0.1:1/"
		hook := &admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: ns},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: "addresses.example.com", FailurePolicy: &fails, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				ClientConfig:      admissionv1.WebhookClientConfig{URL: &path},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}},
				Rules: []admissionv1.RuleWithOperations{{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{ipamv1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"ipaddresses"}},
				}},
			}},
		}
		create(ctx, hook)
		DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, hook))).To(Succeed()) })
		Eventually(func() error { // the webhook takes a moment to become effective
			return k8s.Create(ctx, madeAddress(ns, "tried", "10.153.0.1", 24), client.DryRunAll)
		}).Should(MatchError(ContainSubstring("failed calling webhook")))
		for i := range few {
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%02d", i)).Pool("p").Obj())
		}
		for i := range few {
			Expect(refusalOf(ctx, ns, fmt.Sprintf("c%02d", i), v1alpha1.WriteFailedReason)).To(ContainSubstring("failed calling webhook"))
		}
		expectRestMeanwhile(ctx, 2, m)
		Expect(k8s.Delete(ctx, hook)).To(Succeed())
		for i := range few {
			Eventually(func() metav1.ConditionStatus { return readyOf(getClaim(ctx, ns, fmt.Sprintf("c%02d", i))).Status }).
				WithTimeout(framework.LongTimeout).Should(Equal(metav1.ConditionTrue))
		}
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})

	DescribeTable("delays no other namespace, has the reason on its claims, and is served when the refusal ends",
		func(ctx SpecContext, net int, refuse func(context.Context, string) client.Object, why string) {
			refused, served := newNamespace(ctx, nil), newNamespace(ctx, nil)
			pool := framework.MakeGlobalPool(refused).CIDR(fmt.Sprintf("10.152.%d.0/24", net)).Obj()
			create(ctx, pool)
			m := startManager(ctx)
			create(ctx, framework.MakeClaim(served, "first").GlobalPool(refused).Obj())
			addressOf(ctx, served, "first")
			obstacle := refuse(ctx, refused)
			Eventually(func() error { // the refusal takes a moment to become effective
				return k8s.Create(ctx, madeAddress(refused, "tried", "10.153.0.1", 24), client.DryRunAll)
			}).Should(MatchError(ContainSubstring(why)))

			for i := range claims {
				create(ctx, framework.MakeClaim(refused, fmt.Sprintf("c%02d", i)).GlobalPool(refused).Obj())
			}
			create(ctx, framework.MakeClaim(served, "next").GlobalPool(refused).Obj())
			addressOf(ctx, served, "next")
			for i := range claims {
				Expect(refusalOf(ctx, refused, fmt.Sprintf("c%02d", i), v1alpha1.WriteFailedReason)).
					To(And(ContainSubstring("the API server refuses"), ContainSubstring(why)))
			}
			// The grants of refused claims are released, in a commit after their conditions are set.
			Eventually(func() int { return len(statusOf(ctx, pool).Allocator.InFlight) }).Should(BeNumerically("<", claims))
			expectRestMeanwhile(ctx, 2, m)
			expectNothingWrong(ctx, refused)

			Expect(k8s.Delete(ctx, obstacle)).To(Succeed())
			for i := range claims {
				Eventually(func(g Gomega) {
					ready := readyOf(getClaim(ctx, refused, fmt.Sprintf("c%02d", i)))
					g.Expect(ready.Status).To(Equal(metav1.ConditionTrue), ready.Message)
				}).WithTimeout(framework.LongTimeout).Should(Succeed()) // the manager retries periodically
			}
			Eventually(func() int64 { return statusOf(ctx, pool).AllocatedIPs }).Should(BeEquivalentTo(claims + 2))
			Eventually(func() int { return len(statusOf(ctx, pool).Allocator.InFlight) }).Should(BeZero())
			expectNothingWrong(ctx, refused)
			granted := map[string]bool{}
			for _, ns := range []string{refused, served} {
				for _, a := range objects(ctx, ns).Addresses {
					granted[a.Spec.Address] = true
				}
			}
			Expect(granted).To(HaveLen(claims+2), "the two namespaces share no address")
			Expect(m.Stop()).To(Succeed())
		},
		Entry("of a ResourceQuota", 0, quotaOf, "exceeded quota"),
		Entry("of an admission policy", 1, policyOf, "no addresses for this namespace"),
	)
})
