package tenant

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// countingLists is a client that counts the lists that it reads. Each takes some time.
type countingLists struct {
	client.Client
	lists    int
	duration time.Duration
}

func (c *countingLists) List(ctx context.Context, all client.ObjectList, opts ...client.ListOption) error {
	c.lists++
	<-time.After(c.duration)
	return c.Client.List(ctx, all, opts...)
}

// createDrainingBlocks creates blocks of one address each, which drain.
func createDrainingBlocks(t *testing.T, c client.Client, n int) {
	t.Helper()
	for i := range n {
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
		createDrainingBlocks(t, c, 30)
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

// TestSlowReadsConfirmNothingEarly checks that a block is returned only if a read that began two seconds after the end of
// an earlier one shows it released, however long the reads take.
func TestSlowReadsConfirmNothingEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cached := withMetalLB(t)
		live := &countingLists{Client: cached, duration: time.Second}
		r, c := newRefusedManager(t, refusingConnections{live: live, cached: cached}, "https://127.0.0.1:1")
		r.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return filledCache{client: cached}, nil }
		t.Cleanup(func() { r.balancerCaches.removeCluster(clusterKey) })
		createDrainingBlocks(t, c, 1)
		user := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"}}
		user.Spec.Type = corev1.ServiceTypeLoadBalancer
		user.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.1.0"}}
		if err := cached.Create(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		for start := time.Now(); time.Since(start) < time.Minute; { // its drain has lasted long enough, and it is in use
			observeAndReconcile(t, r)
			<-time.After(10 * time.Millisecond)
		}
		if condition := conditionOf(t, c, "b0", v1alpha1.DrainingCondition); condition == nil || condition.Message != "Service default/user has 10.0.1.0" {
			t.Fatalf("it says %+v", condition)
		}
		if err := cached.Delete(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		observeAndReconcile(t, r)
		shown := time.Now()
		for key := (client.ObjectKey{Namespace: namespace, Name: "b0"}); ; { // something enqueues the Cluster all the time
			began := time.Now()
			observeAndReconcile(t, r)
			<-time.After(10 * time.Millisecond)
			block := &v1alpha1.IPAllocation{}
			if err := c.Get(t.Context(), key, block); err != nil {
				t.Fatal(err)
			}
			switch gone := !slices.Contains(block.Finalizers, v1alpha1.TenantPoolFinalizer); {
			case gone && began.Sub(shown) < balancer.ConfirmationInterval:
				t.Errorf("returned by a check that began %v after the first one had ended", began.Sub(shown))
				return
			case gone:
				return
			case began.Sub(shown) > time.Minute:
				t.Error("not returned within a minute")
				return
			}
		}
	})
}
