package tenant

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

const (
	wanting, misled = 200, 100
	liars           = "liars"
)

// nonsense is as large as an annotation may be, and contains control sequences for terminals.
var nonsense = strings.Repeat("x\x1b[2J\n", 40_000)

func refuses(message string) func(*world) {
	return func(w *world) {
		_ = faults.EditStatus(w.work, faults.Ref{Kind: faults.MetalLBStates, Namespace: metallb.Namespace, Name: "controller"}, func(s *metallbv1beta1.ConfigurationState) {
			s.Status.Conditions = nil
			if message != "" {
				s.Status.Conditions = []metav1.Condition{{Type: "poolReconcilerValid", Status: metav1.ConditionFalse, Message: message}}
			}
		})
	}
}

// lyingCluster makes the workload cluster request what its quota does not allow, by Services that do not exist, some of
// them with nonsense in their annotations, and report nonsense about its MetalLB.
var lyingCluster = sim.NewAction("the workload cluster lies", func(w *world) {
	w.lb.currentMood().frozen = true
	refuses(nonsense)(w)
	for i := range wanting + misled {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: liars, Name: fmt.Sprintf("s%d", i)},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: int32(-i)}}},
		}
		if i >= wanting {
			s.Annotations = map[string]string{"metallb.io/address-pool": nonsense}
		}
		w.CreateObject(w.work, s)
	}
})

// lyingPools adds pools that cannot be read, so that it is unknown what the Services have of them: the Cluster is given
// nothing for them.
var lyingPools = sim.NewAction("its pools are nonsense", func(w *world) {
	w.lb.currentMood().frozen = true
	for i := range 50 {
		w.CreateObject(w.work, &metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: metallb.Namespace, Name: fmt.Sprintf("%s-%d", liars, i)},
			Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{nonsense, "fe80::1%eth0-fe80::2%eth0", "::ffff:10.0.0.0/100", "10.0.0.9-10.0.0.1"}},
		})
	}
})

// hasBlocks checks that the Cluster has so many blocks, requested or granted.
func hasBlocks(n int) action {
	return sim.NewAction("its blocks are counted", func(w *world) {
		if all := w.allocations(); len(all) != n {
			w.Failf("there are %d blocks and not %d", len(all), n)
		}
	})
}

func expectMessage(message string) action {
	return sim.NewAction("what is said of it is read", func(w *world) { checkMessages(w, message) })
}

func checkMessages(w *world, message string) {
	reasons := ""
	for _, a := range w.allocations() {
		for _, c := range a.Status.Conditions {
			reasons += " " + c.Reason
			if text.SanitizeMessage(c.Message) != c.Message {
				w.Failf("%s of %s says %d bytes", c.Type, a.Name, len(c.Message))
			}
		}
	}
	if !strings.Contains(reasons, message) {
		w.Failf("the blocks say%s", reasons)
	}
	n := 0
	for _, o := range w.work.List(faults.Events) {
		if strings.HasPrefix(o.GetName(), "s") {
			n++
		}
	}
	if n != misled {
		w.Failf("%d Services have an event that reports why they have no address", n)
	}
}

var truthfulCluster = sim.NewAction("it says how things are", func(w *world) {
	refuses("")(w)
	for _, kind := range []faults.Kind{faults.Services, faults.MetalLBPools} {
		for _, o := range w.work.List(kind) {
			if o.GetNamespace() == liars || strings.HasPrefix(o.GetName(), liars) {
				w.deleteObject(w.work, faults.RefForObject(o))
			}
		}
	}
	w.lb.currentMood().frozen = false
})

// TestTenantLies checks that a workload cluster that lies makes its own Cluster grow to its quota, and nothing else. At
// every write the world checks that the quota holds; at the end, that every Service that can be served is, and that
// unused growth was released.
func TestTenantLies(t *testing.T) {
	scenario{name: "lies", initial: 1, increment: 1, quota: 5, script: []action{add("a"), lyingCluster, later(time.Minute, expectMessage(v1alpha1.QuotaReachedReason)), lyingPools, later(time.Minute, expectMessage(v1alpha1.NotPlacedReason)), truthfulCluster}}.run(t, func(*world) {})
}

// TestTenantLiesOfItsPools checks that a Cluster that is far below its quota gets nothing more while its pools cannot
// be read, whatever its Services request.
func TestTenantLiesOfItsPools(t *testing.T) { // B36
	scenario{name: "lies of its pools", initial: 1, increment: 1, quota: 5, script: []action{add("a"), lyingPools, lyingCluster, later(time.Minute, expectMessage(v1alpha1.NotPlacedReason)), hasBlocks(1), truthfulCluster}}.run(t, func(*world) {})
}
