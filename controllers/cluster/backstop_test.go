package cluster

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestTestsWaitLessThanTheBackstop checks that tests do not wait as long as a backstop takes: they would not notice a
// wake-up that is lost.
func TestTestsWaitLessThanTheBackstop(t *testing.T) {
	if framework.EventTimeout >= guard.WaitingResyncPeriod {
		t.Errorf("tests wait for %s, and after %s everything is reconciled anyway", framework.EventTimeout, guard.WaitingResyncPeriod)
	}
}

// TestClustersAreReconciledPeriodically checks B20: a Cluster that waits is reconciled every 30 s, one that is served
// every five minutes, whatever its age (ADR 10).
func TestClustersAreReconciledPeriodically(t *testing.T) {
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
	c := framework.NewFakeClient(t, cluster, ns, config, framework.MakePool("p").Namespace("ns").CIDR("10.0.0.0/24").Obj())
	r := &Reconciler{Client: c, Live: c, Recorder: events.NewFakeRecorder(10), LoadBalancers: true, Blocks: &index.BlockIndex{}}
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
