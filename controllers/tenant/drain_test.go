package tenant

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// countingLists is a client that counts the lists that it reads.
type countingLists struct {
	client.Client
	lists int
}

func (c *countingLists) List(ctx context.Context, all client.ObjectList, opts ...client.ListOption) error {
	c.lists++
	return c.Client.List(ctx, all, opts...)
}

// TestLongDrainCostsLittle checks the cost of blocks that stay in use for long, here because another pool has
// their addresses: each reconcile reads each kind once from the API server of the Cluster, however many blocks there
// are, and the reconciles become rare.
func TestLongDrainCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cached := withMetalLB(t)
		foreign := &metallbv1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "theirs"}}
		foreign.Spec.Addresses = []string{"10.0.0.0/16"}
		if err := cached.Create(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
		live := &countingLists{Client: cached}
		r, c := newRefusedManager(t, refusingConnections{live: live, cached: cached}, "https://127.0.0.1:1")
		r.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return filledCache{client: cached}, nil }
		t.Cleanup(func() { r.balancerCaches.removeCluster(clusterKey) })
		for i := range 30 {
			block := framework.MakeAllocation(namespace, fmt.Sprintf("b%d", i)).Cluster(clusterKey.Namespace, clusterKey.Name).Obj()
			block.UID, block.Finalizers = types.UID(block.Name), []string{v1alpha1.TenantPoolFinalizer, v1alpha1.IPAllocationFinalizer}
			address := fmt.Sprintf("10.0.1.%d", i)
			block.Status = v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationAllocated, CIDR: address, StartAddress: address, EndAddress: address}
			metav1.SetMetaDataAnnotation(&block.ObjectMeta, v1alpha1.AddressAnnotation, address)
			setDrainingCondition(metav1.ConditionTrue, v1alpha1.ConfirmingReason, "it is taken away")(&block.Status.Conditions)
			if err := c.Create(t.Context(), block); err != nil {
				t.Fatal(err)
			}
		}
		reconciles := 0
		for end := time.Now().Add(time.Hour); time.Now().Before(end); reconciles++ {
			<-time.After(observeAndReconcile(t, r).RequeueAfter) // virtual time: the Cluster is reconciled when it was requeued
		}
		if condition := conditionOf(t, c, "b7", v1alpha1.DrainingCondition); condition == nil || condition.Message != "IPAddressPool theirs still has 10.0.1.7/32" {
			t.Fatalf("it says %+v", condition)
		}
		if reconciles > 500 || live.lists > 2*reconciles {
			t.Errorf("%d looks in an hour, and %d lists", reconciles, live.lists)
		}
	})
}
