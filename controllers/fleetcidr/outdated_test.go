package fleetcidr

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// noNodes lists none.
type noNodes struct{}

func (noNodes) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "1", nil
}

// Nodes of a Cluster are deleted while no manager runs, and no other Node waits: a manager without leader election corrects the
// entry that the one before it has written.
func TestAnEntryOutlivesNoHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
			if err := add(scheme); err != nil {
				t.Fatal(err)
			}
		}
		key, has := types.NamespacedName{Namespace: "team", Name: "prod"}, labels.Set{v1alpha1.NodeCIDRsLabel: ""}
		cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u", Generation: 1}}
		cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16", ClusterSelector: &metav1.LabelSelector{}}
		cc.Status.Clusters = []v1alpha1.ClusterUse{{Namespace: key.Namespace, Name: key.Name, Mark: "m", Nodes: 7, Free: 249}}
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: has}}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cc, cluster).WithStatusSubresource(cc, cluster).Build()
		r := &Reconciler{Client: c, Live: c, Now: time.Now}
		s := &site{Site: nodeipam.NewSite(nodeipam.Options{
			Key: key, Client: c, Live: c, Lister: noNodes{}, Objects: nodeipam.Entries{ClusterCIDRs: nodeipam.ClusterCIDRs{Client: c, Live: c}, Cluster: key},
			ID: "second", Workers: workers.New[nodeipam.Key](1), Wake: func(nodeipam.Key) {}, Now: time.Now,
		})}
		for began := time.Now(); cc.Status.Clusters[0].Nodes > 0; <-time.After(time.Second) {
			if time.Since(began) > 2*outdatedFor {
				t.Fatalf("%v later it counts %d Nodes", time.Since(began), cc.Status.Clusters[0].Nodes)
			}
			all := []v1alpha1.ClusterCIDR{*cc}
			s.SetObjects(objectsFor(all, key, has))
			if _, err := s.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := r.report(t.Context(), cluster, s, true, all); err != nil {
				t.Fatal(err)
			}
			if _, err := r.reconcileRange(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cc)}); err != nil {
				t.Fatal(err)
			}
			for _, o := range []client.Object{cc, cluster} {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
					t.Fatal(err)
				}
			}
		}
		if e := cc.Status.Clusters[0]; e.Free != 256 {
			t.Errorf("%d are free", e.Free)
		}
	})
}
