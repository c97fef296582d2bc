package grants_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestWaitOfClosedMirrorOutlivesManager checks that a mirror that was closed for another reason when its wait
// begins records since when it waits: the next manager counts from there, and not from when the pool closed.
func TestWaitOfClosedMirrorOutlivesManager(t *testing.T) {
	const quarantine, passed, mayErr = 75 * time.Second, 30 * time.Second, 3 * time.Second
	left := grantstest.WithClosed(v1alpha1.ValidationFailedReason)
	for _, later := range []time.Duration{0, passed} {
		p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.20", left)
		grantstest.ObserveClaim(p, "c", -600, grantstest.WithPoolRef(grantstest.MirroredPoolRef), func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} })
		now := grantstest.Noon.Add(later)
		p.Quarantine.QuarantineAfterOtherProvider(now, quarantine)
		if wait := p.Quarantine.Until.Sub(now); wait != min(quarantine-later+mayErr, quarantine) {
			t.Errorf("after %v it waits %v", later, wait)
		}
		status := p.PrepareCommit(now).Pool.PoolStatus()
		left = func(o *v1alpha1.NetworkPool) { o.Status = *status }
	}
}

// TestWaitCostsNoWrites checks that a pool that waits for hours is not written because the measured difference of
// clocks varies: it is measured from times without fractions, and so differs a little with each answer.
func TestWaitCostsNoWrites(t *testing.T) {
	for seed := range uint64(8) {
		chance := rand.New(rand.NewPCG(seed, 0))
		p := grantstest.NewPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
			o.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: "there"}
		}, grantstest.WithClosed(v1alpha1.MovedReason))
		p.Quarantine.ManagementCluster = "here"
		var off time.Duration
		p.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(off) }
		writes := 0
		for i := range 2000 {
			now := grantstest.Noon.Add(time.Duration(i)*time.Second + time.Duration(chance.Int64N(int64(time.Second))))
			off = time.Hour - time.Duration(chance.Int64N(int64(2*time.Second)))
			if i == 100 {
				grantstest.ObserveClaim(p, "late", 3600+99, grantstest.WithRecordedAddress("10.0.0.11"))
			}
			p.Quarantine.BeginQuarantine(now, 75*time.Second)
			p.Quarantine.ExtendQuarantine(now, 75*time.Second)
			next := p.PrepareCommit(now)
			if differs, _ := next.HasChanges(p.Base.Pool); differs {
				writes++
				p.SetBasePool(asStored(t, next.Pool))
			}
		}
		// The first, the arrival, and each of the up to two seconds by which the clocks waver.
		if writes > 6 {
			t.Errorf("seed %d: the pool is written %d times", seed, writes)
		}
	}
}

// asStored returns a pool as the API server stores it: its times have no fractions.
func asStored(t *testing.T, obj v1alpha1.Pool) v1alpha1.Pool {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	out := &v1alpha1.NetworkPool{}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReportedTimesUseAPIServerClock checks that the times that users read of a pool are by the clock of the API
// server, as the times of its objects are.
func TestReportedTimesUseAPIServerClock(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
		o.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: "there", clusterv1.PausedAnnotation: ""}
	})
	p.Quarantine.ManagementCluster = "here"
	p.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(-time.Hour) }
	p.Quarantine.BeginQuarantine(grantstest.Noon.Add(time.Hour), 75*time.Second)
	status := p.PrepareCommit(grantstest.Noon.Add(time.Hour)).Pool.PoolStatus()
	if message := meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition).Message; !strings.Contains(message, "new grants start at 2030-01-01T12:01:15Z") {
		t.Errorf("it says %q", message)
	}
	for _, c := range status.Conditions {
		if !c.LastTransitionTime.Time.Equal(grantstest.Noon) {
			t.Errorf("%s is so since %v", c.Type, c.LastTransitionTime)
		}
	}
}
