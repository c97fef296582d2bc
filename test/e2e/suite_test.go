// Package e2e runs the manager against a management and a workload cluster: a kube-apiserver, an etcd
// and a kube-controller-manager each, and in the workload cluster the controller of MetalLB.
package e2e

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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// cluster is a control plane with its controllers, and a client with the rights of an administrator.
type cluster struct {
	*framework.ControlPlane
	client.WithWatch
}

var (
	management, workload cluster
	metalLB              *framework.MetalLB
	binary               string
	names                atomic.Int64
)

func TestE2E(t *testing.T) {
	if testing.Short() {
		t.Skip("its specs wait for MetalLB and for what drains, which takes minutes: make test-all")
	}
	RegisterFailHandler(Fail)
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(framework.EventTimeout)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	suite, reporter := GinkgoConfiguration()
	RunSpecs(t, "E2E", suite, reporter)
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	binary, err = framework.BuildManager(ctx, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	management, workload = startCluster(framework.Options{}), startCluster(twoFamilies)
	Expect(workload.InstallMetalLB(ctx)).To(Succeed())
	metalLB, err = workload.StartMetalLB(ctx)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(metalLB.Kill()).To(Succeed()) })
})

var _ = AfterEach(func() {
	if CurrentSpecReport().Failed() {
		GinkgoWriter.Println(metalLB.LogTail(40))
	}
})

// twoFamilies are the options of a cluster whose Services may have addresses of both IP families.
var twoFamilies = framework.Options{APIServerArgs: map[string]string{"service-cluster-ip-range": "10.0.0.0/16,fd00:10:96::/112"}}

// startCluster starts a cluster that runs until the suite, or the container, ends.
func startCluster(o framework.Options) cluster {
	GinkgoHelper()
	cp, err := framework.StartControlPlane(o)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })
	stop, err := cp.StartControllerManager()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(stop()).To(Succeed()) })
	admin, err := cp.NewClient()
	Expect(err).NotTo(HaveOccurred())
	return cluster{ControlPlane: cp, WithWatch: admin}
}

// mostPerSecond is how often a manager that rests does anything of one kind: the reconcile of a Cluster, and what is
// periodic. It is not zero, as a manager probes its workload clusters.
const mostPerSecond = 2

// expectRestMeanwhile expects that a manager is nearly idle while something blocks its work: that there is a second
// with few retries.
func expectRestMeanwhile(ctx context.Context, m *framework.Manager) { // W30
	GinkgoHelper()
	Eventually(framework.NewRestCheck(mostPerSecond, m)).WithContext(ctx).WithTimeout(framework.EventTimeout).WithPolling(time.Second).Should(Succeed())
}

// expectRest waits until a manager is nearly idle for a second: whatever a spec leaves behind, its manager comes to
// rest. It skips a manager that the spec has ended.
func expectRest(ctx context.Context, m *framework.Manager) {
	GinkgoHelper()
	select {
	case <-m.Done():
		return
	default:
	}
	if CurrentSpecReport().Failed() {
		return
	}
	Eventually(framework.NewRestCheck(mostPerSecond, m)).WithContext(ctx).WithTimeout(framework.LongTimeout).WithPolling(time.Second).Should(Succeed())
}

// startManager starts a manager of the management cluster that runs until the spec, or the container, ends.
func startManager(ctx context.Context, args ...string) *framework.Manager {
	GinkgoHelper()
	m, err := framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: management.Kubeconfig, Args: append(framework.ComponentFlags(), args...)})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(m.LogTail(40))
		}
		Expect(m.Kill()).To(Succeed()) // no effect if the spec has ended it
	})
	DeferCleanup(expectRest, m)
	return m
}

// newNamespace creates a namespace for one spec.
func (c cluster) newNamespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("spec-%d", names.Add(1))}}
	Expect(c.Create(ctx, ns)).To(Succeed())
	return ns.Name
}
