package usage

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

var (
	noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	lab  = pools.Key{Kind: "NetworkPool", Namespace: "ns", Name: "lab"}
)

func full(used int64) grants.PoolView {
	v := grants.PoolView{Key: lab}
	v.Counts.Allocated, v.Counts.Total = used, 100
	return v
}

// world returns a history, its clock, and the pools, which the test may change.
func world() (h *History, c *clocktesting.FakeClock, pools *[]grants.PoolView) {
	pools = &[]grants.PoolView{}
	c = clocktesting.NewFakeClock(noon)
	return NewHistory(c, func() []grants.PoolView { return *pools }), c, pools
}

func TestTakeSamples(t *testing.T) {
	h, c, pools := world()
	at := func(minutes int, used int64) Sample {
		return Sample{noon.Add(time.Duration(minutes) * time.Minute).Unix(), used, 100}
	}
	expectSamples := func(reason string, want ...Sample) {
		t.Helper()
		if d := cmp.Diff(want, h.SamplesForPool(lab)); d != "" {
			t.Errorf("%s, -want +got:\n%s", reason, d)
		}
	}
	for _, used := range []int64{1, 1, 1, 7, 7, 3} {
		*pools = []grants.PoolView{full(used)}
		h.takeSamples()
		c.Step(sampleInterval)
	}
	expectSamples("only what changes is noted", at(0, 1), at(3, 7), at(5, 3))

	c.SetTime(noon.Add(sampleRetention + 4*time.Minute))
	h.takeSamples()
	expectSamples("what is older than a day is dropped; what held then holds still", at(4, 7), at(5, 3))
	if since, until := h.TimeSpan(); !since.Equal(noon.Add(4*time.Minute)) || !until.Equal(c.Now()) {
		t.Errorf("it is from %s to %s", since, until)
	}

	*pools = nil
	h.takeSamples()
	expectSamples("a pool that is gone is forgotten")
}

// TestSamplesAreBounded checks that a pool that changes all the time has no more than the samples of a day.
func TestSamplesAreBounded(t *testing.T) {
	h, c, pools := world()
	for i := range 5000 {
		*pools = []grants.PoolView{full(int64(i))}
		h.takeSamples()
		c.Step(sampleInterval)
	}
	got := h.SamplesForPool(lab)
	if want := int(sampleRetention/sampleInterval) + 1; len(got) != want || cap(h.samples[lab]) > 2*want {
		t.Errorf("%d samples in room for %d, want %d", len(got), cap(h.samples[lab]), want)
	}
	if last := got[len(got)-1]; last.Used != 4999 {
		t.Errorf("the last sample is %+v", last)
	}
}

func TestStartSamplesUntilCancelled(t *testing.T) {
	h, c, pools := world()
	*pools = []grants.PoolView{full(1)}
	lists := make(chan int, 3)
	listViews, n := h.listViews, 0
	h.listViews = func() []grants.PoolView { n++; lists <- n; return listViews() }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.Start(ctx) }()
	<-lists
	c.Step(sampleInterval) // the ticker was created before the first sample
	<-lists
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if h.NeedLeaderElection() {
		t.Error("it waits to be elected")
	}
}
