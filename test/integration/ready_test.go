package integration

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// withoutRight removes a permission from the role of the manager, and returns a function that restores it.
func withoutRight(ctx context.Context, resource, verb string) (restore func()) {
	GinkgoHelper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "butler-ipam-manager"}}
	Expect(k8s.Get(ctx, keyOf(role), role)).To(Succeed())
	whole := role.DeepCopy()
	modify(ctx, role, func(r *rbacv1.ClusterRole) {
		for i := range r.Rules {
			if rule := &r.Rules[i]; slices.Contains(rule.Resources, resource) {
				rule.Verbs = slices.DeleteFunc(rule.Verbs, func(v string) bool { return v == verb })
			}
		}
		Expect(r.Rules).NotTo(Equal(whole.Rules))
	})
	give := func(ctx context.Context) { modify(ctx, role, func(r *rbacv1.ClusterRole) { r.Rules = whole.Rules }) }
	DeferCleanup(give)
	return func() { give(ctx) }
}

var _ = Describe("A manager that loses a right", func() {
	It("reports the refusal on claims, is at rest, and serves the claims when it has the right again", func(ctx SpecContext) { // W30
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.20.2.0/24").Obj(), framework.MakeClaim(ns, "first").Pool("p").Obj())
		kubeconfig, err := cp.ManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		m := startManagerAs(ctx, kubeconfig, "--namespace="+ns)
		addressOf(ctx, ns, "first")
		restore := withoutRight(ctx, "ipaddresses", "create")
		Eventually(mayDo).WithArguments(ctx, kubeconfig).Should(HaveKeyWithValue("ipaddresses.ipam.cluster.x-k8s.io", Not(ContainSubstring("create"))))
		const n = 20
		for i := range n {
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%02d", i)).Pool("p").Obj())
		}
		for i := range n {
			Expect(refusalOf(ctx, ns, fmt.Sprintf("c%02d", i), v1alpha1.WriteFailedReason)).To(ContainSubstring("the API server refuses"))
		}
		expectRestMeanwhile(ctx, 2, m)
		restore()
		for i := range n {
			Eventually(func() metav1.ConditionStatus { return readyOf(getClaim(ctx, ns, fmt.Sprintf("c%02d", i))).Status }).
				WithTimeout(framework.LongTimeout).Should(Equal(metav1.ConditionTrue))
		}
		Expect(m.Stop()).To(Succeed())
	})
})

var _ = Describe("A manager's probes", func() {
	It("report that it is not ready before it knows the granted addresses, and ready afterwards", func(ctx SpecContext) { // style 11
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.20.0.0/24").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		kubeconfig, err := cp.ManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		restore := withoutRight(ctx, "ipaddresses", "list") // so it cannot know which addresses are granted
		m, err := framework.LaunchManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: kubeconfig, Args: []string{"--namespace=" + ns}})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() {
			if CurrentSpecReport().Failed() {
				GinkgoWriter.Println(m.LogTail(40))
			}
			Expect(m.Kill()).To(Succeed())
		})
		probe := func(endpoint string) func() int {
			return func() int {
				code, text, err := m.ProbeEndpoint(ctx, endpoint)
				if err != nil {
					return 0 // it does not listen yet
				}
				GinkgoWriter.Println(text)
				return code
			}
		}
		Eventually(probe("healthz")).Should(Equal(http.StatusOK))
		Eventually(probe("readyz")).Should(Equal(http.StatusInternalServerError))
		expectRestMeanwhile(ctx, 1, m)
		Expect(probe("readyz")()).To(Equal(http.StatusInternalServerError))
		Expect(probe("healthz")()).To(Equal(http.StatusOK))
		expectUntouched(ctx, ns, "c")

		restore()
		Eventually(probe("readyz")).Should(Equal(http.StatusOK))
		addressOf(ctx, ns, "c") // with the permissions of its role and no others
		Expect(m.Stop()).To(Succeed())
	})

	It("report that it is ready while it waits to be elected and does nothing", func(ctx SpecContext) { // HA
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.20.1.0/24").Obj()
		create(ctx, pool)
		options := framework.ManagerOptions{Binary: binary, Kubeconfig: cp.Kubeconfig, LeaderElect: true, Args: []string{
			"--namespace=" + ns, "--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms",
		}}
		start := func() *framework.Manager {
			m, err := framework.StartManager(ctx, options)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { Expect(m.Kill()).To(Succeed()) })
			return m
		}
		first := start()
		create(ctx, framework.MakeClaim(ns, "a").Pool("p").Obj())
		addressOf(ctx, ns, "a")
		second := start()
		create(ctx, framework.MakeClaim(ns, "b").Pool("p").Obj())
		addressOf(ctx, ns, "b")
		Expect(statusOf(ctx, pool).Allocator).To(HaveValue(HaveField("Term", int64(1))))
		Expect(first.Kill()).To(Succeed())
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		Expect(statusOf(ctx, pool).Allocator).To(HaveValue(HaveField("Term", int64(2))))
		expectAtRest(ctx, ns, 3)
		Expect(second.Stop()).To(Succeed())
	})
})
