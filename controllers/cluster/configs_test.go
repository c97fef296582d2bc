package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// fleet is a management cluster with one Cluster, which names a ProviderConfig of another namespace.
type fleet struct {
	client.Client

	t *testing.T
	r *Reconciler
}

var prod = client.ObjectKey{Namespace: "team", Name: "prod"}

// newFleet creates ProviderConfigs, each given as namespace/name, each with a pool in its namespace. The Cluster names
// the first of them.
func newFleet(t *testing.T, configs ...string) *fleet {
	t.Helper()
	_, first, _ := strings.Cut(configs[0], "/")
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: prod.Namespace, Name: prod.Name, UID: "u", Labels: map[string]string{v1alpha1.ProviderConfigLabel: first}}}
	objs := []client.Object{cluster, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prod.Namespace}}}
	for _, config := range configs {
		namespace, name, _ := strings.Cut(config, "/")
		objs = append(objs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, framework.MakePool("p").Namespace(namespace).CIDR("10.0.0.0/24").Obj(), configFor(namespace, name))
	}
	c := framework.NewFakeClient(t, objs...)
	return &fleet{c, t, &Reconciler{Client: c, Live: c, Recorder: events.NewFakeRecorder(100), LoadBalancers: true, Blocks: &index.BlockIndex{}}}
}

// configFor returns a ProviderConfig that serves all namespaces.
func configFor(namespace, name string) *v1alpha1.ProviderConfig {
	out := &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	out.Spec.NamespaceSelector = &metav1.LabelSelector{}
	out.Spec.Network = &v1alpha1.ProviderNetwork{
		Mode: v1alpha1.IPAMMode, PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Name: "p"}}},
		LoadBalancer: &v1alpha1.LoadBalancerPool{DefaultPoolSize: ptr.To[int32](8)},
	}
	return out
}

// reconcileUntilSettled reconciles until everything is done, and returns the Cluster. Blocks are granted if the pools
// have room.
func (f *fleet) reconcileUntilSettled(room bool) *clusterv1.Cluster {
	f.t.Helper()
	for range 6 {
		if _, err := f.r.Reconcile(f.t.Context(), reconcile.Request{NamespacedName: prod}); err != nil {
			f.t.Fatal(err)
		}
		for _, a := range f.blocks() {
			if a.Status.Phase == "" && room {
				a.Status = v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationAllocated, StartAddress: "10.0.0.1", EndAddress: "10.0.0.8", AllocatedCount: 8}
				if err := f.Status().Update(f.t.Context(), &a); err != nil {
					f.t.Fatal(err)
				}
			}
		}
	}
	cluster := &clusterv1.Cluster{}
	if err := f.Get(f.t.Context(), prod, cluster); err != nil {
		f.t.Fatal(err)
	}
	return cluster
}

func (f *fleet) blocks() []v1alpha1.IPAllocation {
	f.t.Helper()
	list := &v1alpha1.IPAllocationList{}
	if err := f.List(f.t.Context(), list); err != nil {
		f.t.Fatal(err)
	}
	return list.Items
}

// TestChangedProviderConfigKeepsFirstBlock checks that a Cluster that is changed to name a ProviderConfig of another
// namespace keeps the first block that it has, and gets no other: two would be more than either allows. A block that
// was not granted yet is deleted.
func TestChangedProviderConfigKeepsFirstBlock(t *testing.T) {
	for name, room := range map[string]bool{"granted": true, "not granted": false} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "one/first", "two/second")
			cluster := f.reconcileUntilSettled(room)
			cluster.Labels[v1alpha1.ProviderConfigLabel] = "second"
			if err := f.Update(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
			cluster = f.reconcileUntilSettled(room)
			blocks, ready := f.blocks(), conditions.Get(cluster, v1alpha1.NetworkReadyCondition)
			want := map[bool]string{true: "one", false: "two"}[room]
			if len(blocks) != 1 || blocks[0].Namespace != want {
				t.Errorf("%d first blocks, the first of namespace %s", len(blocks), blocks[0].Namespace)
			}
			if room && (ready.Status != metav1.ConditionTrue || !strings.Contains(ready.Message, "gets one of ProviderConfig two/second when you delete that")) {
				t.Errorf("it says %s: %s", ready.Status, ready.Message)
			}
			if !room {
				return
			}
			// Following the message works.
			if err := f.Delete(t.Context(), &blocks[0]); err != nil {
				t.Fatal(err)
			}
			f.reconcileUntilSettled(room)
			if blocks = f.blocks(); len(blocks) != 1 || blocks[0].Namespace != "two" {
				t.Errorf("with the earlier one deleted it has %d", len(blocks))
			}
		})
	}
}

// TestProviderConfigOfSameNameTakesNoBlocks checks that a ProviderConfig of the same name that others create for all
// namespaces takes nothing from the Clusters that have blocks.
func TestProviderConfigOfSameNameTakesNoBlocks(t *testing.T) {
	f := newFleet(t, "platform/lab")
	f.reconcileUntilSettled(true)
	if err := f.Create(t.Context(), configFor("stranger", "lab")); err != nil {
		t.Fatal(err)
	}
	if ready := conditions.Get(f.reconcileUntilSettled(true), v1alpha1.NetworkReadyCondition); ready.Status != metav1.ConditionTrue || len(f.blocks()) != 1 {
		t.Errorf("it is %s: %s", ready.Status, ready.Message)
	}
}
