package endpoints

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var (
	cp                *framework.ControlPlane
	k8s               client.WithWatch
	root              string
	binary            string
	kubeconfig, certs string
	managers          *service
	ca                []byte
	hooks             framework.HooksClient
	names             atomic.Int64
)

func TestEndpoints(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole system")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(framework.EventTimeout)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RunSpecs(t, "Endpoints")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	root, err = framework.FindRepoRoot()
	Expect(err).NotTo(HaveOccurred())
	cp, err = framework.StartControlPlane(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })
	k8s, err = cp.NewClient()
	Expect(err).NotTo(HaveOccurred())
	Expect(cp.InstallClusterAPI(ctx)).To(Succeed())
	stop, err := cp.StartControllerManager()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(stop()).To(Succeed()) })

	binary, err = framework.BuildManager(ctx, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	kubeconfig, err = cp.EndpointsManagerKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	certs = GinkgoT().TempDir()
	ca, err = framework.WriteServingCerts(certs)
	Expect(err).NotTo(HaveOccurred())
	port, err := framework.FreePort()
	Expect(err).NotTo(HaveOccurred())
	managers, err = newService(port)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(managers.listener.Close)
	hooks = framework.NewHooksClient(port, ca, false)

	core, err := cp.StartCoreManager(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(core.LogTail(60))
		}
		Expect(core.Kill()).To(Succeed())
	})
	register(ctx)
})

// register applies the ExtensionConfig of the component, with the certificate in the Secret where cert-manager stores
// it, and with the service of this test instead of that of a cluster.
func register(ctx context.Context) {
	GinkgoHelper()
	create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "butler-ipam-system"}}, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "butler-ipam-system", Name: "butler-ipam-webhook-service-cert"}, Data: map[string][]byte{"ca.crt": ca},
	})
	text, err := os.ReadFile(filepath.Join(root, "config", "components", "control-plane-endpoints", "component.yaml"))
	Expect(err).NotTo(HaveOccurred())
	docs, err := framework.ParseManifests(text)
	Expect(err).NotTo(HaveOccurred())
	config := docs[len(docs)-1]
	Expect(config.GetKind()).To(Equal("ExtensionConfig"))
	Expect(unstructured.SetNestedMap(config.Object, map[string]any{"url": hooks.URL}, "spec", "clientConfig")).To(Succeed())
	create(ctx, config)
}

// expectDiscovered waits until Cluster API has discovered the hooks.
func expectDiscovered(ctx context.Context) {
	GinkgoHelper()
	config := &unstructured.Unstructured{}
	config.SetAPIVersion("runtime.cluster.x-k8s.io/v1beta2")
	config.SetKind("ExtensionConfig")
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKey{Name: "butler-ipam"}, config)).To(Succeed())
		handlers, _, _ := unstructured.NestedSlice(config.Object, "status", "handlers")
		g.Expect(handlers).To(HaveLen(2), "%v", config.Object["status"])
	}).WithTimeout(framework.LongTimeout).Should(Succeed()) // discovery is retried with growing backoff
}

// launch starts a manager with the rights of the component, and returns it with its port.
func launch(ctx context.Context) (*framework.Manager, int) {
	GinkgoHelper()
	port, err := framework.FreePort()
	Expect(err).NotTo(HaveOccurred())
	m, err := framework.StartManager(ctx, framework.ManagerOptions{
		Binary: binary, Kubeconfig: kubeconfig, WebhookPort: port, WebhookCertDir: certs, Args: []string{"--control-plane-endpoints", "--v=2"},
	})
	Expect(err).NotTo(HaveOccurred())
	managers.add(port)
	return m, port
}

// startManager starts a manager that runs until the spec ends.
func startManager(ctx context.Context) *framework.Manager {
	GinkgoHelper()
	m, port := launch(ctx)
	DeferCleanup(func() {
		managers.remove(port)
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(m.LogTail(60))
		}
		Expect(m.Kill()).To(Succeed())
	})
	expectDiscovered(ctx)
	return m
}

func create(ctx context.Context, objs ...client.Object) {
	GinkgoHelper()
	for _, obj := range objs {
		Expect(k8s.Create(ctx, obj)).To(Succeed())
	}
}

// newNamespace creates a namespace for one spec.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("spec-%d", names.Add(1))}}
	create(ctx, ns)
	DeferCleanup(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			show(ctx, ns.Name)
		}
		// Cluster API must not reconcile these Clusters during the next spec.
		Eventually(func(g Gomega) {
			// Retried on failure: the API server gives up a deletion of many objects after a minute, with Cluster
			// API's webhook in each.
			g.Expect(k8s.DeleteAllOf(ctx, &clusterv1.Cluster{}, client.InNamespace(ns.Name))).To(Succeed())
			list := &clusterv1.ClusterList{}
			g.Expect(k8s.List(ctx, list, client.InNamespace(ns.Name))).To(Succeed())
			g.Expect(list.Items).To(BeEmpty())
		}).WithTimeout(framework.LongTimeout).Should(Succeed())
	})
	return ns.Name
}

// show prints the objects that a spec leaves.
func show(ctx context.Context, namespace string) {
	for _, list := range []client.ObjectList{&clusterv1.ClusterList{}, &clusterv1.ClusterClassList{}, &v1alpha1.NetworkPoolList{}, &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}} {
		if err := k8s.List(ctx, list, client.InNamespace(namespace)); err != nil {
			GinkgoWriter.Println(err)
			continue
		}
		_ = meta.EachListItem(list, func(o runtime.Object) error { o.(client.Object).SetManagedFields(nil); return nil })
		text, err := yaml.Marshal(list)
		GinkgoWriter.Printf("%T: %s%v\n", list, text, err)
	}
}

// isAllowed reports whether a user has a permission in all namespaces.
func isAllowed(ctx context.Context, user, verb, group, resource string) bool {
	GinkgoHelper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource},
	}}
	create(ctx, review)
	return review.Status.Allowed
}
