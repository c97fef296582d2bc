package fleetcidr

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// emptyLister lists no objects.
type emptyLister struct{}

func (emptyLister) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "1", nil
}

// outdatedWorld is a Cluster, a ClusterCIDR for it, and managers without leader election.
type outdatedWorld struct {
	client   client.Client
	cc       *v1alpha1.ClusterCIDR
	cluster  *clusterv1.Cluster
	managers []*Reconciler
	sites    []*connectedCluster
}

func newOutdatedWorld(t *testing.T, cidr string, managers int) *outdatedWorld {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	key := types.NamespacedName{Namespace: "team", Name: "prod"}
	w := &outdatedWorld{
		cc:      &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u", Generation: 1}},
		cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}},
	}
	w.cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: cidr, ClusterSelector: &metav1.LabelSelector{}}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(w.cc, w.cluster).WithStatusSubresource(w.cc, w.cluster).Build()
	for i := range managers {
		w.managers = append(w.managers, &Reconciler{Client: w.client, Live: w.client, Now: time.Now})
		w.sites = append(w.sites, &connectedCluster{ClusterAllocator: nodeipam.NewClusterAllocator(nodeipam.Options{
			ClusterKey: key, Client: w.client, Live: w.client, Lister: emptyLister{},
			ObjectProtector: nodeipam.EntryProtector{ClusterCIDRProtector: nodeipam.ClusterCIDRProtector{Client: w.client, Live: w.client}, ClusterKey: key},
			ManagerID:       fmt.Sprint("manager-", i), Workers: workers.New[nodeipam.ClusterKey](1), Enqueue: func(nodeipam.ClusterKey) {}, Now: time.Now,
		})})
	}
	return w
}

// writePreviousStatus writes the statuses of an earlier manager.
func (w *outdatedWorld) writePreviousStatus(t *testing.T, entry v1alpha1.ClusterUse, of *metav1.Condition, on *metav1.Condition) {
	t.Helper()
	entry.Namespace, entry.Name, entry.Mark = "team", "prod", "m"
	w.cc.Status.Clusters = []v1alpha1.ClusterUse{entry}
	nodeipam.ApplyFleetStatus(w.cc, nil, true, time.Now())
	if on != nil {
		on.LastTransitionTime = metav1.Now()
		meta.SetStatusCondition(&w.cc.Status.Conditions, *on)
	}
	condition := metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason}
	if of != nil {
		condition = *of
	}
	conditions.Set(w.cluster, condition)
	for _, o := range []client.Object{w.cc, w.cluster} {
		if err := w.client.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// reconcileManager does one reconcile of one manager.
func (w *outdatedWorld) reconcileManager(t *testing.T, i int) {
	t.Helper()
	r, s, key := w.managers[i], w.sites[i], client.ObjectKeyFromObject(w.cluster)
	all := []v1alpha1.ClusterCIDR{*w.cc}
	s.SetRangeObjects(rangeObjectsForCluster(all, key, w.cluster.Labels))
	if _, err := s.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.reportStatus(t.Context(), w.cluster, s, true, all); err != nil {
		t.Fatal(err)
	}
	if _, err := r.reconcileRange(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cc)}); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{w.cc, w.cluster} {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEntryOfFormerHolderIsCorrected checks that a manager without leader election corrects what another one has
// written about a Cluster, or it itself while it did not hold the Nodes, where that becomes outdated while no manager
// holds them, and no Node waits for CIDRs that it can have.
func TestEntryOfFormerHolderIsCorrected(t *testing.T) {
	unreachable := newUnreachableCondition("")
	full := metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ExhaustedReason, Message: "3 of 9 Nodes wait for a pod CIDR: a, b, c"}
	for name, tc := range map[string]struct {
		entry  v1alpha1.ClusterUse
		of, on *metav1.Condition
	}{
		"its Nodes are gone":             {entry: v1alpha1.ClusterUse{Nodes: 7, Free: 249}},
		"what is free":                   {entry: v1alpha1.ClusterUse{Free: 249}},
		"it was away":                    {entry: v1alpha1.ClusterUse{Free: 256}, of: &unreachable},
		"Nodes that waited are gone":     {entry: v1alpha1.ClusterUse{Free: 256}, of: &full},
		"its Nodes could not be read":    {entry: v1alpha1.ClusterUse{Free: 256}, on: &metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NodesRefusedReason, Message: "in Cluster team/prod: forbidden"}},
		"another ClusterCIDR overlapped": {entry: v1alpha1.ClusterUse{Free: 256}, on: &metav1.Condition{Type: v1alpha1.OverlapCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.SharedRangeReason, Message: "in Cluster team/prod: d share some of the addresses"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newOutdatedWorld(t, "10.0.0.0/16", 1)
				w.writePreviousStatus(t, tc.entry, tc.of, tc.on)
				right := func() bool {
					e, of := w.cc.Status.Clusters[0], conditions.Get(w.cluster, v1alpha1.PodCIDRsReadyCondition)
					return e.Nodes == 0 && e.Free == 256 && of.Status == metav1.ConditionTrue && meta.IsStatusConditionTrue(w.cc.Status.Conditions, v1alpha1.ReadyCondition) &&
						meta.IsStatusConditionFalse(w.cc.Status.Conditions, v1alpha1.OverlapCondition)
				}
				for began := time.Now(); !right(); <-time.After(time.Second) {
					if w.reconcileManager(t, 0); time.Since(began) > 3*outdatedTimeout {
						t.Fatalf("%v later: %+v, and %+v", time.Since(began), w.cc.Status, w.cluster.Status.Conditions)
					}
				}
			})
		})
	}
}

// TestManagersDoNotAlternateForEntry checks that, of two managers without leader election that see the same Nodes, and
// refuse some of them, one takes the Cluster over, and the other one leaves it to the first.
func TestManagersDoNotAlternateForEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newOutdatedWorld(t, "10.0.0.0/24", 2)
		w.writePreviousStatus(t, v1alpha1.ClusterUse{Free: 1}, nil, nil)
		nodes := &listedNodes{}
		for _, s := range w.sites {
			s.Lister, s.Recorder = nodes, events.NewFakeRecorder(1000)
		}
		changes := 0
		for i := range 60 * 60 {
			if i == 0 || i == 20*60 {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("n", i)), ResourceVersion: "1"}}
				if i == 0 {
					n.Spec.PodCIDRs = []string{"10.0.0.0/24"}
				}
				nodes.all = append(nodes.all, n)
			}
			for j, s := range w.sites {
				if j > 0 && i < 5*60 {
					continue // it is started later
				}
				for _, n := range nodes.all {
					s.ObserveObject(n)
				}
				held := s.IsHolder()
				if w.reconcileManager(t, j); s.IsHolder() && !held {
					changes++
				}
				s.EmitEvents()
			}
			<-time.After(time.Second)
		}
		if of := conditions.Get(w.cluster, v1alpha1.PodCIDRsReadyCondition); changes != 1 || of.Reason != v1alpha1.ExhaustedReason {
			t.Errorf("it was taken over %d times, and says %+v", changes, of)
		}
	})
}

// listedNodes lists fixed Nodes.
type listedNodes struct{ all []*corev1.Node }

func (l *listedNodes) List(_ context.Context, _ client.Object, _ string, visit func(client.Object)) (string, error) {
	for _, n := range l.all {
		visit(n.DeepCopy())
	}
	return "1", nil
}
