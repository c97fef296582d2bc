package integration

import (
	"context"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// tenantClient returns a client of a user who may write claims, IPAllocations, IPLeases and Services of a namespace,
// and nothing else.
func tenantClient(ctx context.Context, ns string) client.Client {
	GinkgoHelper()
	create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tenant"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{ipamv1.GroupVersion.Group, v1alpha1.GroupVersion.Group}, Resources: []string{"ipaddressclaims", "ipallocations", "ipleases"},
			Verbs: []string{"get", "create", "update", "patch", "delete"},
		}, {
			APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "create", "update"},
		}},
	}, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: ns}},
	})
	kubeconfig, err := cp.NewUserKubeconfig(ns)
	Expect(err).NotTo(HaveOccurred())
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	c, err := client.New(config, client.Options{Scheme: k8s.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return c
}

var _ = Describe("The admission policy for records", func() {
	It("lets only the manager and administrators write them", func(ctx SpecContext) {
		for _, o := range applyPolicy(ctx, k8s, "records.yaml") {
			DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
		}
		ns := newNamespace(ctx, nil)
		tenant, m := tenantClient(ctx, ns), namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.151.0.0/29").Obj())
		record := func(o client.Object) client.Object {
			o.SetAnnotations(map[string]string{v1alpha1.AddressAnnotation: "10.151.0.2"})
			return o
		}

		// The policy takes a moment to become effective.
		Eventually(func() error {
			return tenant.Create(ctx, record(framework.MakeClaim(ns, "liar").Pool("p").Obj()), client.DryRunAll)
		}).Should(And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring("requested-address"))))
		Expect(tenant.Create(ctx, record(framework.MakeAllocation(ns, "liar").Pool("p").Cluster(ns, "t").Count(1).Obj()))).
			To(Satisfy(apierrors.IsForbidden))

		Expect(tenant.Create(ctx, framework.MakeClaim(ns, "honest").Pool("p").RequestAddress("10.151.0.3").Obj())).To(Succeed())
		Expect(addressOf(ctx, ns, "honest").Spec.Address).To(Equal("10.151.0.3"))
		had := getClaim(ctx, ns, "honest")
		for _, change := range []func(){
			func() { had.Annotations[v1alpha1.AddressAnnotation] = "10.151.0.4" },
			func() { delete(had.Annotations, v1alpha1.AddressAnnotation) },
			func() {
				had = getClaim(ctx, ns, "honest")
				had.Annotations[v1alpha1.DeleteForMoveAnnotation] = ""
			},
		} {
			change()
			Expect(tenant.Update(ctx, had)).To(Satisfy(apierrors.IsForbidden))
		}
		had = getClaim(ctx, ns, "honest")
		had.Labels = map[string]string{"mine": "yes"}
		Expect(tenant.Update(ctx, had)).To(Succeed())

		block := framework.MakeAllocation(ns, "block").Pool("p").Cluster(ns, "t").Count(1).Obj()
		Expect(tenant.Create(ctx, block)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(block), block)).To(Succeed())
			g.Expect(block.Finalizers).To(ContainElement(v1alpha1.IPAllocationFinalizer))
			block.Finalizers = append(block.Finalizers, "example.com/mine")
			g.Expect(tenant.Update(ctx, block)).To(Succeed())
			block.Finalizers = slices.DeleteFunc(block.Finalizers, func(f string) bool { return f == "example.com/mine" })
			g.Expect(tenant.Update(ctx, block)).To(Succeed())
			block.Finalizers = nil
			g.Expect(tenant.Update(ctx, block)).To(Satisfy(apierrors.IsForbidden))
		}).Should(Succeed())
		Expect(tenant.Delete(ctx, block)).To(Succeed())
		Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(block), block) }).Should(Satisfy(apierrors.IsNotFound)) // the manager removes its own

		create(ctx, record(framework.MakeClaim(ns, "restored").Pool("p").Obj()))
		Expect(addressOf(ctx, ns, "restored").Spec.Address).To(Equal("10.151.0.2"))
		Expect(m.Stop()).To(Succeed())
	})
})

var _ = Describe("The admission policy for Services", func() {
	It("lets only the manager and administrators give a Service the label by which MetalLB gives it a lease", func(ctx SpecContext) {
		for _, o := range applyPolicy(ctx, k8s, "services.yaml") {
			DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
		}
		ns := newNamespace(ctx, nil)
		tenant := tenantClient(ctx, ns)
		service := func(name string, labels map[string]string) *corev1.Service {
			return &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 25}}},
			}
		}
		label := map[string]string{v1alpha1.LeasedLabel: "true"}
		// The policy takes a moment to become effective.
		Eventually(func() error { return tenant.Create(ctx, service("thief", label), client.DryRunAll) }).
			Should(And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring(v1alpha1.LeaseAnnotation))))
		s := service("web", nil)
		s.Annotations = map[string]string{v1alpha1.LeaseAnnotation: "mine"}
		Expect(tenant.Create(ctx, s)).To(Succeed(), "as the refusal says")
		s.Labels = label
		Expect(tenant.Update(ctx, s)).To(Satisfy(apierrors.IsForbidden))
		Expect(k8s.Update(ctx, s)).To(Succeed(), "as the manager does")
		s.Annotations = map[string]string{"mine": "yes"}
		Expect(tenant.Update(ctx, s)).To(Succeed(), "who changes something else")
		s.Labels = map[string]string{v1alpha1.LeasedLabel: "false"}
		Expect(tenant.Update(ctx, s)).To(Satisfy(apierrors.IsForbidden))
		s.Labels = nil
		Expect(tenant.Update(ctx, s)).To(Succeed())
		create(ctx, service("restored", label))
	})
})
