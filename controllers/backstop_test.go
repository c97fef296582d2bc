package controllers

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Tests that wait as long as a backstop takes would not see a wake-up that is lost.
func TestTestsWaitLessThanTheBackstops(t *testing.T) {
	if shortest := min(backstop, waitingBackstop); framework.Soon >= shortest {
		t.Errorf("tests wait for %s, and after %s everything is looked at anyway", framework.Soon, shortest)
	}
}

// store is a fake: only when to come back is tested with it. What is done is, on a real API server.
func store(t *testing.T, objs ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, ipamv1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).WithStatusSubresource(
		&v1alpha1.NetworkPool{}, &v1alpha1.IPAllocation{}, &clusterv1.Cluster{}).Build()
}

// nothing lists what is not there.
type nothing struct{}

func (nothing) Claims(context.Context, string, func(*ipamv1.IPAddressClaim)) (string, error) {
	return "1", nil
}
func (nothing) Addresses(context.Context, string, func(*ipamv1.IPAddress)) (string, error) {
	return "1", nil
}
func (nothing) Allocations(context.Context, string, func(*v1alpha1.IPAllocation)) (string, error) {
	return "1", nil
}

// B18, B19, B29: whatever the watches miss, a pool is looked at once a minute, and with it all that wait for it: what
// has failed needs no timer of its own (ADR 10). Events are what serves it; that is shown on a real API server.
func TestPoolsAreLookedAtEveryMinute(t *testing.T) {
	g := NewWithT(t)
	pool := framework.MakePool("p").Namespace("ns").CIDR("10.0.0.0/24").Obj()
	pool.Generation = 1 // as an API server has it
	large := framework.MakeAllocation("ns", "large").Count(300).Obj()
	large.UID = "u"
	c := store(t, pool, large)
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(large), large)).To(Succeed())
	alloc := allocator.New(allocator.Options{
		Client: c, Live: c, Lists: nothing{}, Recorder: events.NewFakeRecorder(10), ID: "me", Elected: true,
	})
	r := &NetworkPoolReconciler{Client: c, Live: c, Allocator: alloc}
	key := pools.KeyOf(pool)
	alloc.ObserveAllocation(large)
	phase := func() v1alpha1.AllocationPhase {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(large), large)).To(Succeed())
		return large.Status.Phase
	}
	look := func() time.Duration {
		result, err := r.Reconcile(t.Context(), key)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
		return result.RequeueAfter
	}
	// It takes the pool over, tells of it, refuses the block; then nothing is due before the backstop.
	g.Eventually(func() v1alpha1.AllocationPhase { look(); return phase() }).Should(Equal(v1alpha1.AllocationFailed))
	g.Eventually(look).Should(Equal(time.Minute))
	g.Consistently(look, "200ms").Should(Equal(time.Minute))
}

// B20: a Cluster that waits is looked at every 30 s, one that is served every five minutes, whatever its age (ADR 10).
func TestClustersAreLookedAtNowAndThen(t *testing.T) {
	g := NewWithT(t)
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name, cluster.UID = "ns", "tenant", "u"
	cluster.Labels = map[string]string{v1alpha1.ProviderConfigLabel: "config"}
	ns := &corev1.Namespace{}
	ns.Name = "ns"
	config := &v1alpha1.ProviderConfig{}
	config.Namespace, config.Name = "ns", "config"
	config.Spec.Network = &v1alpha1.ProviderNetwork{
		Mode: v1alpha1.IPAMMode, PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Name: "p"}}},
	}
	c := store(t, cluster, ns, config, framework.MakePool("p").Namespace("ns").CIDR("10.0.0.0/24").Obj())
	r := &ClusterReconciler{Client: c, Live: c, Recorder: events.NewFakeRecorder(10), QuotaChanged: func(client.ObjectKey) {}, Blocks: &Blocks{}}
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}
	settle := func() reconcile.Result {
		var result reconcile.Result
		for range 5 { // the finalizer, the allocation, the condition
			var err error
			result, err = r.Reconcile(t.Context(), request)
			g.Expect(err).NotTo(HaveOccurred())
		}
		return result
	}
	g.Expect(settle().RequeueAfter).To(Equal(30 * time.Second))
	list := &v1alpha1.IPAllocationList{}
	g.Expect(c.List(t.Context(), list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	o := &list.Items[0]
	o.Status = v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationAllocated, StartAddress: "10.0.0.1", EndAddress: "10.0.0.8", AllocatedCount: 8}
	g.Expect(c.Status().Update(t.Context(), o)).To(Succeed())
	g.Expect(settle().RequeueAfter).To(Equal(5 * time.Minute))
}
