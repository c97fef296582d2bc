// Package consumers replays what infrastructure providers do with claims: their names, labels, owners, finalizers,
// API versions, and what they require of the result. The API server, the garbage collector, the manager, and Cluster
// API's admission and conversion are real; the consumers are not.
package consumers

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1beta1 "sigs.k8s.io/cluster-api/api/ipam/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/coreapi"
)

var (
	cp      *framework.ControlPlane
	k8s     client.WithWatch
	manager *framework.Manager
	names   atomic.Int64
)

func TestConsumers(t *testing.T) {
	if testing.Short() {
		t.Skip("it plays eight consumers through, which takes minutes: make test-all")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(framework.EventTimeout)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RunSpecs(t, "Consumers")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	cp, err = framework.StartControlPlane(framework.Options{APIServerArgs: map[string]string{
		// As on OpenShift: a user that blocks the deletion of an owner must have the permission to (C33).
		"enable-admission-plugins": "OwnerReferencesPermissionEnforcement",
	}})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })

	stop, err := coreapi.ServeWebhooks(ctx, cp)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(stop()).To(Succeed()) })

	scheme, err := framework.NewScheme()
	Expect(err).NotTo(HaveOccurred())
	Expect(ipamv1beta1.AddToScheme(scheme)).To(Succeed())
	k8s, err = client.NewWithWatch(cp.Config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	_, err = envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{Paths: []string{"testdata/owners.yaml"}})
	Expect(err).NotTo(HaveOccurred())
	Expect(cp.InstallMetal3Pools(ctx)).To(Succeed())
	// The collector starts after the CRDs are installed: it searches for new kinds only every half minute.
	stopCollector, err := cp.StartControllerManager()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(stopCollector()).To(Succeed()) })

	startManager(ctx)
	DeferCleanup(func() { Expect(manager.Stop()).To(Succeed()) })
})

// startManager starts the manager of all specs, with the rights of config/rbac for claims and failure domains and no
// others.
func startManager(ctx context.Context) {
	GinkgoHelper()
	kubeconfig, err := cp.FailureDomainsManagerKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	manager, err = framework.StartManager(ctx, framework.ManagerOptions{Kubeconfig: kubeconfig, Args: []string{"--failure-domains"}})
	Expect(err).NotTo(HaveOccurred())
}

var _ = AfterEach(func() {
	if CurrentSpecReport().Failed() {
		GinkgoWriter.Println(manager.LogTail(40))
	}
})

// newNamespace creates a namespace for one spec.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("spec-%d", names.Add(1))}}
	Expect(k8s.Create(ctx, ns)).To(Succeed())
	return ns.Name
}

// makePool returns a builder of a pool in a network of its own, one per namespace: specs use the same addresses.
func makePool(namespace, name string) *framework.PoolBuilder {
	return framework.MakePool(name).Namespace(namespace).Network(namespace)
}

func create(ctx context.Context, objs ...client.Object) {
	GinkgoHelper()
	for _, obj := range objs {
		Expect(k8s.Create(ctx, obj)).To(Succeed())
	}
}
