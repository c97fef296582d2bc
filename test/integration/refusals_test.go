package integration

import (
	"fmt"
	"time"

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

var _ = Describe("Four lasting refusals at once", func() {
	const (
		many, few = 25, 5 // of many claims, most wait while some are tried
		watched   = 10 * time.Second
	)

	It("cause little work, are reported, and delay no other namespace", func(ctx SpecContext) {
		kept, mute, served := newNamespace(ctx, nil), newNamespace(ctx, nil), newNamespace(ctx, nil)
		full := []string{newNamespace(ctx, nil), newNamespace(ctx, nil), newNamespace(ctx, nil)}
		shared, own := framework.MakeGlobalPool(served).CIDR("10.154.0.0/24").Obj(), framework.MakePool("p").Namespace(mute).CIDR("10.154.1.0/24").Obj()
		create(ctx, shared, own)
		m := startManager(ctx)
		create(ctx, framework.MakeClaim(kept, "first").GlobalPool(served).Obj(), framework.MakeClaim(mute, "first").Pool("p").Obj())
		addressOf(ctx, kept, "first")
		addressOf(ctx, mute, "first")
		Eventually(func() []v1alpha1.Grant { return statusOf(ctx, own).Allocator.InFlight }).Should(BeEmpty())

		By("refusing writes to claims, to IPAddresses in three namespaces, and to the status of pools")
		obstacles := []client.Object{
			refuse(ctx, kept, "no claim is changed here", admissionv1.Update, ipamv1.GroupVersion.Group, "ipaddressclaims"),
			refuse(ctx, mute, "no pool says anything here", admissionv1.Update, v1alpha1.GroupVersion.Group, "networkpools/status"),
		}
		for _, ns := range full {
			obstacles = append(obstacles, quotaOf(ctx, ns))
		}
		tries := map[string]func() error{
			"no claim is changed here": func() error {
				claim := getClaim(ctx, kept, "first")
				claim.Labels = map[string]string{"tried": ""}
				return k8s.Update(ctx, claim, client.DryRunAll)
			},
			"no pool says anything here": func() error {
				statusOf(ctx, own)
				own.Status.ObservedGeneration = 0
				return k8s.Status().Update(ctx, own, client.DryRunAll)
			},
		}
		for why, try := range tries { // the policies take a moment to become effective
			Eventually(try).Should(MatchError(ContainSubstring(why)))
		}
		for _, ns := range full {
			Eventually(func() error {
				return k8s.Create(ctx, madeAddress(ns, "tried", "10.153.0.1", 24), client.DryRunAll)
			}).Should(MatchError(ContainSubstring("exceeded quota")))
		}

		type waiting struct{ namespace, name, why string }
		var all []waiting
		ask := func(n int, ns, name, why string, claim func(*framework.ClaimBuilder)) {
			for i := range n {
				b := framework.MakeClaim(ns, fmt.Sprintf("%s-%02d", name, i))
				claim(b)
				create(ctx, b.Obj())
				all = append(all, waiting{ns, b.Obj().Name, why})
			}
		}
		ofShared := func(b *framework.ClaimBuilder) { b.GlobalPool(served) }
		ask(few, kept, "c", "no claim is changed here", ofShared)
		ask(few, mute, "c", "no pool says anything here", func(b *framework.ClaimBuilder) { b.Pool("p") })
		create(ctx, framework.MakePool("new").Namespace(mute).CIDR("10.154.2.0/24").Obj())
		ask(few, mute, "new", "no pool says anything here", func(b *framework.ClaimBuilder) { b.Pool("new") })
		ask(many, full[0], "c", "exceeded quota", ofShared)
		ask(many, full[1], "c", "exceeded quota", ofShared)
		// As many claims as are tried at once: none waits for the others.
		create(ctx, framework.MakePool("p").Namespace(full[2]).CIDR("10.154.3.0/24").Obj())
		ask(term.SerialRetryThreshold, full[2], "c", "exceeded quota", func(b *framework.ClaimBuilder) { b.Pool("p") })
		deleteClaim(ctx, kept, "first")
		deleteClaim(ctx, mute, "first")
		for _, w := range all {
			Eventually(func(g Gomega) {
				ready := readyOf(getClaim(ctx, w.namespace, w.name))
				g.Expect(ready.Status).To(Equal(metav1.ConditionFalse))
				g.Expect(ready.Message).To(ContainSubstring(w.why))
			}).WithTimeout(framework.LongTimeout).Should(Succeed(), "%s/%s", w.namespace, w.name)
		}

		// Each pool, and each namespace in which writes are retried.
		expectRestMeanwhile(ctx, 4+len(full), m)
		activity := func() framework.Activity {
			GinkgoHelper()
			a, err := m.ReadActivity(ctx)
			Expect(err).NotTo(HaveOccurred())
			return a
		}
		By("measuring the work that they cause")
		began, spent := time.Now(), activity()
		Consistently(m.Done()).WithTimeout(watched).ShouldNot(BeClosed())
		meanwhile := activity().Since(spent)
		AddReportEntry("rest", fmt.Sprintf("in %v: %+v", time.Since(began), meanwhile))
		Expect(meanwhile.Reconciles).To(BeNumerically("<", 200))
		Expect(meanwhile.Requests).To(BeNumerically("<", 400))

		By("serving another namespace")
		spent = activity()
		create(ctx, framework.MakeClaim(served, "next").GlobalPool(served).Obj())
		addressOf(ctx, served, "next")
		rest := activity().Since(spent)
		AddReportEntry("a neighbour", fmt.Sprintf("%+v", rest))
		Expect(rest.Reconciles).To(BeNumerically("<", 40))
		for _, ns := range append(full, kept, mute, served) {
			expectNothingWrong(ctx, ns)
		}

		By("ending the refusals")
		for _, o := range obstacles {
			Expect(k8s.Delete(ctx, o)).To(Succeed())
		}
		for _, w := range all {
			Eventually(func() metav1.ConditionStatus { return readyOf(getClaim(ctx, w.namespace, w.name)).Status }).
				WithTimeout(framework.LongTimeout).Should(Equal(metav1.ConditionTrue), "%s/%s", w.namespace, w.name)
		}
		for _, ns := range append(full, kept, mute, served) {
			expectNothingWrong(ctx, ns)
		}
		Expect(m.Stop()).To(Succeed())
	})
})
