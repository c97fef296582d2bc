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

func full(used int64) grants.View {
	v := grants.View{Key: lab}
	v.Counts.Allocated, v.Counts.Total = used, 100
	return v
}

// world is a history of pools that the test changes.
func world() (h *History, c *clocktesting.FakeClock, pools *[]grants.View) {
	pools = &[]grants.View{}
	c = clocktesting.NewFakeClock(noon)
	return New(c, func() []grants.View { return *pools }), c, pools
}

func TestSamples(t *testing.T) {
	h, c, pools := world()
	at := func(minutes int, used int64) Sample {
		return Sample{noon.Add(time.Duration(minutes) * time.Minute).Unix(), used, 100}
	}
	is := func(reason string, want ...Sample) {
		t.Helper()
		if d := cmp.Diff(want, h.Of(lab)); d != "" {
			t.Errorf("%s, -want +got:\n%s", reason, d)
		}
	}
	for _, used := range []int64{1, 1, 1, 7, 7, 3} {
		*pools = []grants.View{full(used)}
		h.sample()
		c.Step(every)
	}
	is("only what changes is noted", at(0, 1), at(3, 7), at(5, 3))

	c.SetTime(noon.Add(kept + 4*time.Minute))
	h.sample()
	is("what is older than a day is dropped; what held then holds still", at(4, 7), at(5, 3))
	if since, until := h.Span(); !since.Equal(noon.Add(4*time.Minute)) || !until.Equal(c.Now()) {
		t.Errorf("it is from %s to %s", since, until)
	}

	*pools = nil
	h.sample()
	is("a pool that is gone is forgotten")
}

// A pool that changes all the time takes no more than a day's samples.
func TestBounded(t *testing.T) {
	h, c, pools := world()
	for i := range 5000 {
		*pools = []grants.View{full(int64(i))}
		h.sample()
		c.Step(every)
	}
	got := h.Of(lab)
	if want := int(kept/every) + 1; len(got) != want || cap(h.pools[lab]) > 2*want {
		t.Errorf("%d samples in room for %d, want %d", len(got), cap(h.pools[lab]), want)
	}
	if last := got[len(got)-1]; last.Used != 4999 {
		t.Errorf("the last sample is %+v", last)
	}
}

func TestStart(t *testing.T) {
	h, c, pools := world()
	*pools = []grants.View{full(1)}
	looks := make(chan int, 3)
	look, n := h.look, 0
	h.look = func() []grants.View { n++; looks <- n; return look() }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.Start(ctx) }()
	<-looks
	c.Step(every) // the ticker was made before the first look
	<-looks
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if h.NeedLeaderElection() {
		t.Error("it waits to be elected")
	}
}
