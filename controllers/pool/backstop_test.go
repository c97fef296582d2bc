package pool

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestTestsWaitLessThanTheBackstop checks that tests do not wait as long as a backstop takes: they would not notice a
// wake-up that is lost.
func TestTestsWaitLessThanTheBackstop(t *testing.T) {
	if framework.EventTimeout >= resyncPeriod {
		t.Errorf("tests wait for %s, and after %s everything is reconciled anyway", framework.EventTimeout, resyncPeriod)
	}
}

// emptyLister lists nothing.
type emptyLister struct{}

func (emptyLister) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "1", nil
}

// TestPoolsAreReconciledEveryMinute checks B18, B19, B29: whatever the watches miss, a pool is reconciled once a
// minute, and with it all that wait for it: what has failed needs no timer of its own (ADR 10). Events are what
// normally serves it; a test with a real API server shows that.
func TestPoolsAreReconciledEveryMinute(t *testing.T) {
	g := NewWithT(t)
	pool := framework.MakePool("p").Namespace("ns").CIDR("10.0.0.0/24").Obj()
	pool.Generation = 1 // as an API server has it
	large := framework.MakeAllocation("ns", "large").Count(300).Obj()
	large.UID = "u"
	c := framework.NewFakeClient(t, pool, large)
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(large), large)).To(Succeed())
	alloc := allocator.New(allocator.Options{
		Client: c, Live: c, Lister: emptyLister{}, Recorder: events.NewFakeRecorder(10), ManagerID: "me", Elected: true,
	})
	r := &Reconciler{Client: c, Live: c, Allocator: alloc}
	key := pools.KeyForPool(pool)
	alloc.ObserveObject(large)
	phase := func() v1alpha1.AllocationPhase {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(large), large)).To(Succeed())
		return large.Status.Phase
	}
	reconcile := func() time.Duration {
		result, err := r.Reconcile(t.Context(), key)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
		return result.RequeueAfter
	}
	// It takes the pool over, reports on it, refuses the block; then nothing is due before the backstop.
	g.Eventually(func() v1alpha1.AllocationPhase { reconcile(); return phase() }).Should(Equal(v1alpha1.AllocationFailed))
	g.Eventually(reconcile).Should(Equal(time.Minute))
	g.Consistently(reconcile, "200ms").Should(Equal(time.Minute))
}
