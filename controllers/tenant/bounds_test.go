package tenant

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// oneCluster is a management cluster with one Cluster, which must not be written.
type oneCluster struct{ client.Client }

func (oneCluster) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	c, ok := o.(*clusterv1.Cluster)
	if !ok {
		return errors.New("there is a Cluster, and nothing else")
	}
	*c = clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	return nil
}

// List finds nothing: there are no pools.
func (oneCluster) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// connectingCluster is how a workload cluster answers the attempt to connect.
type connectingCluster struct {
	clustercache.ClusterCache
	connect func(context.Context) error
}

func (c connectingCluster) GetClient(ctx context.Context, _ client.ObjectKey) (client.Client, error) {
	return nil, c.connect(ctx)
}

func (connectingCluster) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{}
}

// reconcileDisconnected is one reconcile of a Cluster that was shown a block, in virtual time: its result, and how long
// it takes.
func reconcileDisconnected(t *testing.T, connect func(context.Context) error) (result reconcile.Result, took time.Duration, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		block := framework.MakeAllocation(namespace, "b").Cluster(clusterKey.Namespace, clusterKey.Name).Obj()
		block.UID, block.ResourceVersion, block.Finalizers = "u", "1", []string{v1alpha1.TenantPoolFinalizer}
		r := &Reconciler{
			Client: oneCluster{}, Blocks: &index.BlockIndex{}, Synced: func() bool { return true }, Clock: clock.RealClock{},
			Clusters: connectingCluster{connect: connect},
		}
		r.Blocks.ObserveBlock(block)
		begin := time.Now()
		result, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: clusterKey})
		took = time.Since(begin)
	})
	return result, took, err
}

// TestUnresponsiveTenant checks B57: what a workload cluster does not answer is requested again, with a growing
// delay, and blocks a worker for a bounded time.
func TestUnresponsiveTenant(t *testing.T) {
	t.Run("hangs", func(t *testing.T) {
		result, took, err := reconcileDisconnected(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, context.DeadlineExceeded) || result != (reconcile.Result{}) {
			t.Errorf("%+v, %v: the queue backs off by errors alone", result, err)
		}
		if took > workloads.NormalTimeout {
			t.Errorf("a worker was held up for %v", took)
		}
	})
	t.Run("refuses", func(t *testing.T) {
		broken := errors.New("certificate signed by unknown authority")
		result, _, err := reconcileDisconnected(t, func(context.Context) error { return broken })
		if !errors.Is(err, broken) || result != (reconcile.Result{}) {
			t.Errorf("%+v, %v: the queue backs off by errors alone", result, err)
		}
	})
	t.Run("is not connected", func(t *testing.T) {
		result, took, err := reconcileDisconnected(t, func(context.Context) error { return clustercache.ErrClusterNotConnected })
		if err != nil || result.RequeueAfter != guard.WaitingResyncPeriod || took != 0 {
			t.Errorf("%+v after %v, %v: the connection wakes us, and tries to connect by itself", result, took, err)
		}
	})
}

// TestHangingTenantsLeaveWorkers checks that Clusters that hang, as many as there are workers and more, leave workers
// to those that answer.
func TestHangingTenantsLeaveWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reconciler{Client: oneCluster{}, Blocks: &index.BlockIndex{}, Synced: func() bool { return true }, Clock: clock.RealClock{}}
		answers := false
		r.Clusters = connectingCluster{connect: func(ctx context.Context) error {
			if answers {
				return clustercache.ErrClusterNotConnected
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		keys := make([]client.ObjectKey, 2*workloads.MaxConcurrentClusters)
		for i := range keys {
			keys[i] = client.ObjectKey{Namespace: clusterKey.Namespace, Name: fmt.Sprintf("hangs-%d", i)}
			block := framework.MakeAllocation(namespace, keys[i].Name).Cluster(keys[i].Namespace, keys[i].Name).Obj()
			block.UID, block.ResourceVersion, block.Finalizers = types.UID(keys[i].Name), "1", []string{v1alpha1.TenantPoolFinalizer}
			r.Blocks.ObserveBlock(block)
		}
		// Each Cluster is reconciled by a worker of its own. round returns how many workers are blocked, when none
		// moves any more.
		round := func() (held, put int, ended *sync.WaitGroup) {
			ended = &sync.WaitGroup{}
			var working, paused atomic.Int64
			for _, key := range keys {
				working.Add(1)
				ended.Go(func() {
					defer working.Add(-1)
					if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err == nil && result.RequeueAfter == workloads.SlowRetryDelay {
						paused.Add(1)
					}
				})
			}
			synctest.Wait()
			return int(working.Load()), int(paused.Load()), ended
		}
		begin := time.Now()
		_, _, first := round()
		first.Wait()
		if took := time.Since(begin); took > workloads.NormalTimeout {
			t.Errorf("workers were held for %v by Clusters of which nothing is known", took)
		}
		for range 2 {
			held, put, next := round()
			if held != workloads.MaxSlowClusters || put != len(keys)-workloads.MaxSlowClusters {
				t.Errorf("%d workers are held, and %d Clusters wait for a place, of %d", held, put, len(keys))
			}
			begin = time.Now()
			next.Wait()
			if took := time.Since(begin); took != workloads.SlowTimeout {
				t.Errorf("a Cluster that is slow had %v", took)
			}
		}
		answers = true
		for range len(keys) / workloads.MaxSlowClusters {
			for _, key := range keys {
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if held, put, end := round(); held != 0 || put != 0 {
			end.Wait()
			t.Errorf("%d workers held, %d waiting, once all answer", held, put)
		}
	})
}
