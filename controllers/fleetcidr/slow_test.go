package fleetcidr

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
)

// hangingConnections are connections that exist but do not answer until answers is true.
type hangingConnections struct {
	clustercache.ClusterCache
	answers *bool
}

func (h hangingConnections) GetUncachedClient(ctx context.Context, _ client.ObjectKey) (client.Client, error) {
	if *h.answers {
		return nil, clustercache.ErrClusterNotConnected
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangingConnections) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{}
}

// TestHangingClustersLeaveWorkers checks that Clusters that hang, twice as many as there are workers, occupy at most
// half of the workers: the others are for Clusters that answer.
func TestHangingClustersLeaveWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme} {
			if err := add(scheme); err != nil {
				t.Fatal(err)
			}
		}
		var clusters []client.Object
		for i := range 2 * workloads.MaxConcurrentClusters {
			clusters = append(clusters, &clusterv1.Cluster{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("hangs-%d", i), Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}},
			})
		}
		answers := false
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(clusters...).Build()
		r := &Reconciler{
			Client: c, Live: c, Clusters: hangingConnections{answers: &answers}, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Now: time.Now, ctx: t.Context(),
		}
		// round reconciles each Cluster in a worker of its own. It returns how many workers are occupied, and how many
		// Clusters wait.
		round := func() (held, waiting int) {
			var working, paused atomic.Int64
			var all sync.WaitGroup
			for _, o := range clusters {
				working.Add(1)
				all.Go(func() {
					defer working.Add(-1)
					result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
					if err == nil && result.RequeueAfter == workloads.SlowRetryDelay {
						paused.Add(1)
					}
				})
			}
			synctest.Wait()
			held, waiting = int(working.Load()), int(paused.Load())
			all.Wait()
			return held, waiting
		}
		begin := time.Now()
		if round(); time.Since(begin) > workloads.NormalTimeout {
			t.Errorf("workers were held for %v by Clusters of which nothing is known", time.Since(begin))
		}
		for range 2 {
			if held, waiting := round(); held != workloads.MaxSlowClusters || waiting != len(clusters)-held {
				t.Errorf("%d workers are held, and %d Clusters wait for a place, of %d", held, waiting, len(clusters))
			}
		}
		answers = true
		for range len(clusters) / workloads.MaxSlowClusters {
			round()
		}
		if held, waiting := round(); held != 0 || waiting != 0 {
			t.Errorf("%d workers are held, and %d Clusters wait, once all answer", held, waiting)
		}
	})
}
