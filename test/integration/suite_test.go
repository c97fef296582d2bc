// Package integration runs the manager, as a process, against a real kube-apiserver and etcd.
package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var (
	cp     *framework.ControlPlane
	k8s    client.WithWatch
	binary string
	names  atomic.Int64
)

func TestIntegration(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(framework.EventTimeout)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RunSpecs(t, "Integration")
}

// The first process builds the manager for all processes that share the specs. Each process has an API server of its
// own.
var _ = SynchronizedBeforeSuite(func(ctx SpecContext) []byte {
	built, err := framework.BuildManager(ctx, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	return []byte(built)
}, func(_ SpecContext, built []byte) {
	binary = string(built)
	var err error
	cp, err = framework.StartControlPlane(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })
	k8s, err = cp.NewClient()
	Expect(err).NotTo(HaveOccurred())
})

// startsEarly is for the containers whose specs take the longest together, or wait the longest: where some processes
// share the specs, the others do not wait in the end for one that has just begun with them.
const startsEarly = SpecPriority(1)

// startManager starts a manager process that runs until the spec, or the container, ends.
func startManager(ctx context.Context, args ...string) *framework.Manager {
	GinkgoHelper()
	return startManagerAs(ctx, cp.Kubeconfig, append(framework.ComponentFlags(), args...)...)
}

// startManagerAs is startManager with no more rights than those of a kubeconfig.
func startManagerAs(ctx context.Context, kubeconfig string, args ...string) *framework.Manager {
	GinkgoHelper()
	m, err := framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: kubeconfig, Args: args})
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

// expectRest waits until a manager sends no request and reconciles nothing for a second: whatever a spec leaves
// behind, its manager becomes idle. It skips a manager that the spec has ended or stopped, and -short, as it takes a
// second in each spec.
func expectRest(ctx context.Context, m *framework.Manager) {
	GinkgoHelper()
	if ended(m) || CurrentSpecReport().Failed() || testing.Short() {
		return
	}
	comesToRest(ctx, m)
}

// comesToRest waits until a manager sends no request and reconciles nothing for a second, with -short too.
func comesToRest(ctx context.Context, m *framework.Manager) {
	GinkgoHelper()
	Eventually(framework.NewRestCheck(0, m)).WithContext(ctx).WithTimeout(framework.LongTimeout).WithPolling(time.Second).Should(Succeed())
}

// expectRestMeanwhile expects that managers are nearly idle while something blocks their work: a second in which each
// of the given number of pools, sites or namespaces is tried once at most. Earlier work may go on for a moment.
func expectRestMeanwhile(ctx context.Context, things int, managers ...*framework.Manager) {
	GinkgoHelper()
	// Each pool is reconciled once a minute anyway, and each Cluster twice.
	backstops := 0.0
	for _, list := range []client.ObjectList{&v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}, &clusterv1.ClusterList{}} {
		Expect(k8s.List(ctx, list)).To(Succeed())
		backstops += float64(meta.LenList(list)) / 30
	}
	most := float64(things) + backstops
	Eventually(framework.NewRestCheck(most, managers...)).WithContext(ctx).WithTimeout(framework.EventTimeout).WithPolling(time.Second).Should(Succeed())
}

func ended(m *framework.Manager) bool {
	select {
	case <-m.Done():
		return true
	default:
		return false
	}
}

// newNamespace creates a namespace for one spec.
func newNamespace(ctx context.Context, labels map[string]string) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("spec-%d", names.Add(1)), Labels: labels}}
	Expect(k8s.Create(ctx, ns)).To(Succeed())
	DeferCleanup(showFailed, ns.Name)
	return ns.Name
}

// showFailed prints the objects that a failed spec leaves in its namespace: a failure that does not repeat must be
// explained by its first output.
func showFailed(ctx context.Context, namespace string) {
	if !CurrentSpecReport().Failed() {
		return
	}
	for _, list := range []client.ObjectList{
		&v1alpha1.NetworkPoolList{}, &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}, &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}, &corev1.EventList{},
	} {
		if err := k8s.List(ctx, list, client.InNamespace(namespace)); err != nil {
			GinkgoWriter.Println(err)
			continue
		}
		text, err := yaml.Marshal(list)
		GinkgoWriter.Printf("%T: %s%v\n", list, text, err)
	}
}

func create(ctx context.Context, objs ...client.Object) {
	GinkgoHelper()
	for _, obj := range objs {
		Expect(k8s.Create(ctx, obj)).To(Succeed())
	}
}

// getClaim reads a claim again.
func getClaim(ctx context.Context, namespace, name string) *ipamv1.IPAddressClaim {
	GinkgoHelper()
	claim := &ipamv1.IPAddressClaim{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)).To(Succeed())
	return claim
}

func readyOf(claim *ipamv1.IPAddressClaim) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition), metav1.Condition{})
}

// addressOf waits for a claim's address, and returns the IPAddress.
func addressOf(ctx context.Context, namespace, name string) *ipamv1.IPAddress {
	GinkgoHelper()
	address := &ipamv1.IPAddress{}
	Eventually(func(g Gomega) {
		claim := getClaim(ctx, namespace, name)
		g.Expect(readyOf(claim).Status).To(Equal(metav1.ConditionTrue), readyOf(claim).Message)
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: claim.Status.AddressRef.Name}, address)).To(Succeed())
	}).Should(Succeed())
	return address
}

// refusalOf waits for a claim to be refused for a reason, and returns the message.
func refusalOf(ctx context.Context, namespace, name, reason string) string {
	GinkgoHelper()
	var ready metav1.Condition
	Eventually(func(g Gomega) {
		ready = readyOf(getClaim(ctx, namespace, name))
		g.Expect(ready.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(ready.Reason).To(Equal(reason))
	}).Should(Succeed())
	return ready.Message
}

// deleteClaims deletes all claims of a namespace. A busy API server may not finish that within one request, so it is
// retried.
func deleteClaims(ctx context.Context, namespace string) {
	GinkgoHelper()
	Eventually(func() error {
		return k8s.DeleteAllOf(ctx, &ipamv1.IPAddressClaim{}, client.InNamespace(namespace))
	}).WithTimeout(framework.LongTimeout).Should(Succeed())
}

func deleteClaim(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	Expect(k8s.Delete(ctx, &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})).To(Succeed())
}

func expectGone(ctx context.Context, obj client.Object) {
	GinkgoHelper()
	Eventually(func() error {
		return client.IgnoreNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj))
	}).Should(Succeed())
	Eventually(func() bool { return k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj) != nil }).Should(BeTrue())
}

// objects reads the objects that the invariants are about, in a namespace.
func objects(ctx context.Context, namespace string) pools.Objects {
	GinkgoHelper()
	var o pools.Objects
	claims, addresses, locals := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}, &v1alpha1.NetworkPoolList{}
	allocations, leases := &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}
	// Addresses first: a claim is gone only after its address, so an address in the first list has its claim in the
	// second one unless it is an orphan.
	Expect(k8s.List(ctx, addresses, client.InNamespace(namespace))).To(Succeed())
	Expect(k8s.List(ctx, claims, client.InNamespace(namespace))).To(Succeed())
	Expect(k8s.List(ctx, allocations, client.InNamespace(namespace))).To(Succeed())
	Expect(k8s.List(ctx, leases, client.InNamespace(namespace))).To(Succeed())
	Expect(k8s.List(ctx, locals, client.InNamespace(namespace))).To(Succeed())
	for i := range locals.Items {
		o.Pools = append(o.Pools, &locals.Items[i])
	}
	o.Claims, o.Addresses, o.Allocations, o.Leases = claims.Items, addresses.Items, allocations.Items, leases.Items
	return o
}
