package process

import (
	"net/http"
	"sync"
	"time"
)

// slowAnswer is how long a request may last whose answer still says what time it is: what is older says what time it was.
const slowAnswer = time.Second

// wavers is by how much a Date is behind at most when it is read: it has no fractions, and may be of the moment when the
// answer began.
const wavers = slowAnswer + time.Second

// APIClock knows what time it is by the clock of the API server, from the Date of its answers. Managers that follow each
// other have clocks of their own; what one writes down for the next one is by this one.
type APIClock struct {
	// now is the clock of this machine; nil: time.Now.
	now func() time.Time

	mu sync.Mutex
	// there and here are one moment by both clocks; zero: there was no answer.
	there, here time.Time
}

// At is a moment of the clock of this machine by that of the API server; the same moment before its first answer.
func (c *APIClock) At(here time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.there.IsZero() {
		return here
	}
	return c.there.Add(here.Sub(c.here))
}

// Watch has the clock read the answers to the requests that go through a transport.
func (c *APIClock) Watch(over http.RoundTripper) http.RoundTripper { return watched{over, c} }

// watched is a transport whose answers set a clock.
type watched struct {
	http.RoundTripper
	clock *APIClock
}

// RoundTrip sends a request and reads the Date of its answer.
func (w watched) RoundTrip(req *http.Request) (*http.Response, error) {
	begun := w.clock.local()
	answer, err := w.RoundTripper.RoundTrip(req)
	// What a load balancer answers in the place of the API server has a clock of its own.
	if err == nil && answer.StatusCode < http.StatusInternalServerError {
		w.clock.note(answer.Header.Get("Date"), begun)
	}
	return answer, err
}

// WrappedRoundTripper is how client-go finds the transport inside.
func (w watched) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }

// note sets the clock by the Date of an answer to a request that was sent at a moment. A Date is never ahead, so of those
// that may speak of one clock the one that is ahead of the others is the best.
func (c *APIClock) note(date string, begun time.Time) {
	there, err := http.ParseTime(date)
	here := c.local()
	if err != nil || here.Sub(begun) > slowAnswer {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.there.IsZero() {
		is := c.there.Add(here.Sub(c.here))
		if ahead := is.Sub(there); ahead >= 0 && ahead <= wavers {
			return
		}
	}
	c.there, c.here = there, here
}

func (c *APIClock) local() time.Time {
	if c.now == nil {
		return time.Now()
	}
	return c.now()
}
