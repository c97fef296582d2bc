package term

import (
	"errors"
	"testing"
	"time"
)

// TestConcurrentFailuresAreRetriedTogether checks that many objects that fail within a moment are retried within a
// moment too, as each retry time costs a reconcile.
func TestConcurrentFailuresAreRetriedTogether(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for failures := range int32(12) {
		delay := RetryDelay(failures)
		moments := map[time.Time]int{}
		const n, interval = 100, time.Millisecond
		for i := range n {
			now := noon.Add(time.Duration(i) * interval)
			at := NextRetryTime(now, failures, 0, errors.New("timed out"))
			if wait := at.Sub(now); wait < delay || wait > delay+batchInterval {
				t.Errorf("one that failed %d times waits %v, its delay is %v", failures, wait, delay)
			}
			moments[at]++
		}
		if most := 1 + int(n*interval/delay) + 1; len(moments) > most {
			t.Errorf("%d that failed %d times within %v are tried again at %d moments, want %d at most", n, failures, n*interval, len(moments), most)
		}
	}
}

// TestLaterFailuresAreRetriedSeparately checks that objects get retry times of their own while others of their kind
// fail, so that they are not all retried at once.
func TestLaterFailuresAreRetriedSeparately(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	was := noon
	for others := range 5 {
		at := NextRetryTime(noon, 6, others, errors.New("timed out"))
		if at.Sub(was) < time.Second {
			t.Errorf("with %d others one is tried at %v, with one less at %v", others, at, was)
		}
		was = at
	}
}

// TestMinWait checks that a wait that is over, or that is none, shortens no other.
func TestMinWait(t *testing.T) {
	for _, c := range []struct{ a, b, want time.Duration }{
		{0, 0, 0}, {time.Second, 0, time.Second}, {0, time.Second, time.Second}, {time.Second, time.Minute, time.Second}, {time.Minute, time.Second, time.Second},
		{time.Second, -time.Minute, time.Second}, {-time.Minute, time.Second, time.Second}, {0, -time.Minute, 0}, {-time.Minute, 0, 0},
	} {
		if got := MinWait(c.a, c.b); got != c.want {
			t.Errorf("of %v and %v it is %v, not %v", c.a, c.b, got, c.want)
		}
	}
}
