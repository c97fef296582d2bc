package tenant

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

const (
	wanting, misled = 200, 100
	liars           = "liars"
)

// nonsense is as large as an annotation may be, and does things to terminals.
var nonsense = strings.Repeat("x\x1b[2J\n", 40_000)

func refuses(message string) func(*world) {
	return func(w *world) {
		_ = w.work.EditStatus(faults.Ref{Kind: faults.MetalLBStates, Namespace: metallb.Namespace, Name: "controller"}, func(o client.Object) {
			if s, is := o.(*metallbv1beta1.ConfigurationState); is {
				s.Status.Conditions = nil
				if message != "" {
					s.Status.Conditions = []metav1.Condition{{Type: "poolReconcilerValid", Status: metav1.ConditionFalse, Message: message}}
				}
			}
		})
	}
}

// The workload cluster asks for what its quota does not allow, by Services that are not there, some of them with
// nonsense on them, and says nonsense of its MetalLB.
var lie = action{text: "the workload cluster lies", do: func(w *world) {
	w.lb.is().frozen = true
	refuses(nonsense)(w)
	for i := range wanting + misled {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: liars, Name: fmt.Sprintf("s%d", i)},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: int32(-i)}}},
		}
		if i >= wanting {
			s.Annotations = map[string]string{"metallb.io/address-pool": nonsense}
		}
		w.make(w.work, s)
	}
}}

// With pools that cannot be read it is unknown what the Services have of them: the Cluster is given nothing for them.
var lieOfPools = action{text: "its pools are nonsense", do: func(w *world) {
	w.lb.is().frozen = true
	for i := range 50 {
		w.make(w.work, &metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: metallb.Namespace, Name: fmt.Sprintf("%s-%d", liars, i)},
			Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{nonsense, "fe80::1%eth0-fe80::2%eth0", "::ffff:10.0.0.0/100", "10.0.0.9-10.0.0.1"}},
		})
	}
}}

// hasBlocks has the Cluster have so many blocks, asked for or granted.
func hasBlocks(n int) action {
	return action{text: "its blocks are counted", do: func(w *world) {
		if all := w.allocations(); len(all) != n {
			w.Wrongf("there are %d blocks and not %d", len(all), n)
		}
	}}
}

func isSaid(what string) action {
	return action{text: "what is said of it is read", do: func(w *world) { readIt(w, what) }}
}

func readIt(w *world, what string) {
	said := ""
	for _, a := range w.allocations() {
		for _, c := range a.Status.Conditions {
			said += " " + c.Reason
			if text.Message(c.Message) != c.Message {
				w.Wrongf("%s of %s says %d bytes", c.Type, a.Name, len(c.Message))
			}
		}
	}
	if !strings.Contains(said, what) {
		w.Wrongf("the blocks say%s", said)
	}
	n := 0
	for _, o := range w.work.List(faults.Events) {
		if strings.HasPrefix(o.GetName(), "s") {
			n++
		}
	}
	if n != misled {
		w.Wrongf("%d Services were told why they have no address", n)
	}
}

var truth = action{text: "it says how things are", do: func(w *world) {
	refuses("")(w)
	for _, kind := range []faults.Kind{faults.Services, faults.MetalLBPools} {
		for _, o := range w.work.List(kind) {
			if o.GetNamespace() == liars || strings.HasPrefix(o.GetName(), liars) {
				w.drop(w.work, faults.RefOf(o))
			}
		}
	}
	w.lb.is().frozen = false
}}

// A workload cluster that lies has its own Cluster grow to its quota, and nothing else. At every write the world checks
// that the quota holds; at the end, that whoever can be served is, and that what was grown for nobody was given back.
func TestTenantLies(t *testing.T) {
	scenario{name: "lies", initial: 1, increment: 1, quota: 5, script: []action{add("a"), lie, later(time.Minute, isSaid(v1alpha1.QuotaReachedReason)), lieOfPools, later(time.Minute, isSaid(v1alpha1.NotPlacedReason)), truth}}.run(t, func(*world) {})
}

// While its pools cannot be read, a Cluster that is far below its quota gets nothing more, whatever its Services want.
func TestTenantLiesOfItsPools(t *testing.T) { // B36
	scenario{name: "lies of its pools", initial: 1, increment: 1, quota: 5, script: []action{add("a"), lieOfPools, lie, later(time.Minute, isSaid(v1alpha1.NotPlacedReason)), hasBlocks(1), truth}}.run(t, func(*world) {})
}
