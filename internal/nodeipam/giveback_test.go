package nodeipam

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
)

// TestBlockIsDeletedAtDecidedVersion checks that a block is deleted as it was when that was decided (R3). A block that
// has changed since is read, and decided on again.
func TestBlockIsDeletedAtDecidedVersion(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	key := ClusterKey{Namespace: "ns", Name: "prod"}
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "block", UID: "u"}}
	o.Spec.Type, o.Spec.TenantClusterRef = v1alpha1.PodsAllocation, v1alpha1.ClusterReference{Namespace: key.Namespace, Name: key.Name}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).Build()
	s := NewClusterAllocator(Options{ClusterKey: key, BlockClient: IPAllocationClient{Client: c, Live: c, ClusterKey: key}, Now: time.Now})
	current := &v1alpha1.IPAllocation{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), current); err != nil {
		t.Fatal(err)
	}
	was, _ := BlockFromAllocation(current)
	current.Annotations = map[string]string{"kept": "by a user"}
	if err := c.Update(t.Context(), current); err != nil {
		t.Fatal(err)
	}
	changed, err := s.blocks.runBlockRequest(t.Context(), blockRequest{verb: carve.DeleteBlock, name: was.Name, block: was})
	if err != nil || !changed {
		t.Errorf("news %v, %v: it has changed", changed, err)
	}
	now := s.state.blocks.byName[was.Name]
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), current); err != nil || now.ResourceVersion != current.ResourceVersion {
		t.Fatalf("%v: it is known in version %q, and is there in version %q", err, now.ResourceVersion, current.ResourceVersion)
	}
	if changed, err := s.blocks.runBlockRequest(t.Context(), blockRequest{verb: carve.DeleteBlock, name: was.Name, block: now}); err != nil || changed {
		t.Errorf("news %v, %v", changed, err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), current); !apierrors.IsNotFound(err) {
		t.Errorf("it is there still: %v", err)
	}
}
