package workloads

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestSlowClustersAreForgotten checks what is kept of slow Clusters: a slot is free again after each reconcile,
// whatever its result, and a Cluster is forgotten that answers in time, or that is gone.
func TestSlowClustersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &SlowClusters{}
		run := func(n int, takes time.Duration, fails error) (time.Duration, error) {
			return p.RunBounded(t.Context(), client.ObjectKey{Name: fmt.Sprint(n)}, func(ctx context.Context) (time.Duration, error) {
				select {
				case <-ctx.Done():
					return 0, ctx.Err()
				case <-time.After(takes):
					return time.Second, fails
				}
			})
		}
		expectCounts := func(when string, known, taken int) {
			t.Helper()
			if len(p.slowClusters) != known || p.slotsInUse != taken {
				t.Errorf("%s: %d are known, and %d places are taken; want %d and %d", when, len(p.slowClusters), p.slotsInUse, known, taken)
			}
		}
		failed := errors.New("refused")

		if _, err := run(0, time.Millisecond, failed); !errors.Is(err, failed) || errors.Is(err, ErrSlowCluster) {
			t.Errorf("a look that fails at once ends with %v", err)
		}
		expectCounts("after a look that fails at once", 0, 0)
		for n := range MaxSlowClusters + 1 {
			if _, err := run(n, time.Hour, nil); !errors.Is(err, ErrSlowCluster) {
				t.Errorf("a look that hangs ends with %v", err)
			}
		}
		expectCounts("after looks that hang", MaxSlowClusters+1, 0)

		for n := range MaxSlowClusters { // all slots are taken
			go func() { _, _ = run(n, time.Hour, nil) }()
		}
		synctest.Wait()
		expectCounts("while they hang again", MaxSlowClusters+1, MaxSlowClusters)
		if next, err := run(MaxSlowClusters, 0, nil); next != SlowRetryDelay || err != nil {
			t.Errorf("without a place it is tried after %v, %v", next, err)
		}
		<-time.After(SlowTimeout)
		synctest.Wait()
		expectCounts("after they hung again", MaxSlowClusters+1, 0)

		if next, err := run(0, NormalTimeout+time.Second, nil); next != time.Second || err != nil {
			t.Errorf("a slow one has more time, and ends with %v, %v", next, err)
		}
		expectCounts("after one that is slow and ends", MaxSlowClusters+1, 0)
		if _, err := run(0, time.Millisecond, failed); !errors.Is(err, failed) {
			t.Errorf("a slow one that fails at once ends with %v", err)
		}
		expectCounts("after one that answers in time again", MaxSlowClusters, 0)
		p.ForgetCluster(client.ObjectKey{Name: "1"})
		expectCounts("after one is gone", MaxSlowClusters-1, 0)
	})
}
