package nodecidr

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// noNodes lists none.
type noNodes struct{}

func (noNodes) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "1", nil
}

// Nodes are deleted while no manager runs, and no other Node waits: a manager without leader election corrects the status that the
// one before it has written.
func TestAStatusOutlivesNoHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
			if err := add(scheme); err != nil {
				t.Fatal(err)
			}
		}
		cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u", Generation: 1}}
		cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16"}
		cc.Status = v1alpha1.ClusterCIDRStatus{ObservedGeneration: 1, Capacity: 256, Allocated: 4, Free: 252}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cc).WithStatusSubresource(cc).Build()
		r := &Reconciler{Client: c, Now: time.Now, written: map[string]time.Time{}, Site: nodeipam.NewSite(nodeipam.Options{
			Client: c, Live: c, Lister: noNodes{}, Objects: nodeipam.ClusterCIDRs{Client: c, Live: c}, ID: "second",
			Workers: workers.New[nodeipam.Key](1), Wake: func(nodeipam.Key) {}, Now: time.Now,
		})}
		for began := time.Now(); ; {
			result, err := r.Reconcile(t.Context(), nodeipam.Key{})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(cc), cc); err != nil {
				t.Fatal(err)
			}
			if cc.Status.Allocated == 0 {
				break
			}
			if time.Since(began) > 2*outdatedFor {
				t.Fatalf("%v later it counts %d Nodes", time.Since(began), cc.Status.Allocated)
			}
			<-time.After(result.RequeueAfter)
		}
		if cc.Status.Free != 256 {
			t.Errorf("%d are free", cc.Status.Free)
		}
	})
}
