package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// createRemovalPolicy creates an admission policy that removes a part of the metadata in writes of a resource in a
// namespace, and returns it.
func createRemovalPolicy(ctx context.Context, ns, resource, part string) *admissionv1.MutatingAdmissionPolicy {
	GinkgoHelper()
	writes := admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule:       admissionv1.Rule{APIGroups: []string{ipamv1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}}
	policy := &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{writes}},
			MatchConditions:  []admissionv1.MatchCondition{{Name: "here", Expression: fmt.Sprintf("request.namespace == %q", ns)}},
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{
				Expression: fmt.Sprintf(`has(object.metadata.%s) ? [JSONPatch{op: "remove", path: "/metadata/%s"}] : []`, part, part),
			}}},
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
		},
	}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: ns},
	}
	create(ctx, policy, binding)
	DeferCleanup(func(ctx SpecContext) {
		Expect(k8s.Delete(ctx, binding)).To(Succeed())
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, policy))).To(Succeed())
	})
	return policy
}

// exempt makes a policy ignore the writes of a user.
func exempt(ctx context.Context, policy *admissionv1.MutatingAdmissionPolicy, user string) {
	GinkgoHelper()
	modify(ctx, policy, func(p *admissionv1.MutatingAdmissionPolicy) {
		p.Spec.MatchConditions = append(p.Spec.MatchConditions, admissionv1.MatchCondition{Name: "others", Expression: fmt.Sprintf("request.userInfo.username != %q", user)})
	})
}

// messagesOf returns the messages of the condition Ready of a claim, and of its events.
func messagesOf(ctx context.Context, claim *ipamv1.IPAddressClaim) []string {
	GinkgoHelper()
	out := []string{readyOf(claim).Message}
	list := &eventsv1.EventList{}
	Expect(k8s.List(ctx, list, client.InNamespace(claim.Namespace))).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Regarding.UID == claim.UID {
			out = append(out, list.Items[i].Note)
		}
	}
	return out
}

// removalPolicy is an admission policy that removes a part of the metadata of claims or of IPAddresses in a namespace
// of its own, in which some claims name a pool.
type removalPolicy struct {
	resource, part string

	ns     string
	policy *admissionv1.MutatingAdmissionPolicy
}

// claims returns the claims of the namespace.
func (c *removalPolicy) claims(ctx context.Context) []ipamv1.IPAddressClaim {
	GinkgoHelper()
	list := &ipamv1.IPAddressClaimList{}
	Expect(k8s.List(ctx, list, client.InNamespace(c.ns))).To(Succeed())
	return list.Items
}

// isPartKept reports whether an object that an administrator writes keeps the part.
func (c *removalPolicy) isPartKept(ctx context.Context) (bool, error) {
	var o client.Object = madeAddress(c.ns, "tried", "10.155.9.9", 24, claimOwner("tried", "none"))
	if c.resource == "ipaddressclaims" {
		o = framework.MakeClaim(c.ns, "tried").Pool("p").Obj()
		o.SetFinalizers([]string{v1alpha1.ClaimFinalizer})
		o.SetAnnotations(map[string]string{"tried": ""})
	}
	err := k8s.Create(ctx, o, client.DryRunAll)
	switch c.part {
	case "finalizers":
		return len(o.GetFinalizers()) > 0, err
	case "ownerReferences":
		return len(o.GetOwnerReferences()) > 0, err
	}
	return len(o.GetAnnotations()) > 0, err
}

var _ = Describe("Admission that changes the writes of the manager", startsEarly, func() {
	const each = 5

	// W29, W30: the message suggests that step.
	It("causes little work, is reported, and has no effect left once the manager is exempt from it", func(ctx SpecContext) {
		all := []*removalPolicy{
			{resource: "ipaddresses", part: "finalizers"}, {resource: "ipaddresses", part: "ownerReferences"},
			{resource: "ipaddressclaims", part: "finalizers"}, {resource: "ipaddressclaims", part: "annotations"},
		}
		for i, c := range all {
			c.ns = newNamespace(ctx, nil)
			c.policy = createRemovalPolicy(ctx, c.ns, c.resource, c.part)
			create(ctx, framework.MakePool("p").Namespace(c.ns).CIDR(fmt.Sprintf("10.155.%d.0/24", i)).Obj())
		}
		for _, c := range all {
			Eventually(c.isPartKept).WithContext(ctx).Should(BeFalse()) // the policy takes a moment to become effective
			for j := range each {
				create(ctx, framework.MakeClaim(c.ns, fmt.Sprintf("c%d", j)).Pool("p").Obj())
			}
		}
		kubeconfig, err := cp.ComponentsManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		m := startManagerAs(ctx, kubeconfig, framework.ComponentFlags()...)
		for _, c := range all {
			Eventually(func(g Gomega) {
				for _, claim := range c.claims(ctx) {
					g.Expect(messagesOf(ctx, &claim)).To(ContainElement(And(
						ContainSubstring(claim.Name+" differs from the manager's write"), ContainSubstring("exempt the manager from it"))))
				}
			}).WithTimeout(framework.LongTimeout).Should(Succeed(), "%s of %s", c.part, c.resource)
		}

		expectRestMeanwhile(ctx, len(all), m)
		for _, c := range all {
			expectNothingWrong(ctx, c.ns)
		}

		By("exempting the manager")
		for _, c := range all {
			exempt(ctx, c.policy, "butler-ipam-components-manager")
		}
		for _, c := range all {
			Eventually(func(g Gomega) {
				for _, claim := range c.claims(ctx) {
					address := &ipamv1.IPAddress{}
					g.Expect(readyOf(&claim).Status).To(Equal(metav1.ConditionTrue), readyOf(&claim).Message)
					g.Expect(k8s.Get(ctx, keyOf(&claim), address)).To(Succeed())
					g.Expect(claim.Annotations).To(HaveKeyWithValue(v1alpha1.AddressAnnotation, address.Spec.Address))
					g.Expect(claim.Finalizers).To(ContainElement(v1alpha1.ClaimFinalizer))
					g.Expect(address.Finalizers).To(ContainElement(v1alpha1.AddressFinalizer))
					g.Expect(address.OwnerReferences).To(ContainElement(HaveField("UID", claim.UID)))
				}
			}).WithTimeout(framework.LongTimeout).Should(Succeed(), "%s of %s", c.part, c.resource)
			Expect(c.isPartKept(ctx)).To(BeFalse(), "what others write is changed as before")
			expectNothingWrong(ctx, c.ns)
		}
		comesToRest(ctx, m)
		Expect(m.Stop()).To(Succeed())
	})
})
