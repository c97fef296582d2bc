package process

import (
	"net/http"
	"sync"
	"time"
)

// maxResponseTime is the maximum duration of a request whose response still shows the current time. The Date of a
// slower response may be in the past.
const maxResponseTime = time.Second

// dateTolerance is by how much a Date may lag behind when it is read: it has no fractions, and may be that of the
// moment when the response began.
const dateTolerance = maxResponseTime + time.Second

// APIClock tracks the clock of the API server, from the Date header of its responses. Managers that follow each other
// have different clocks, so what one records for the next one uses this clock.
type APIClock struct {
	// now returns the time of this machine; nil means time.Now.
	now func() time.Time

	mu sync.Mutex
	// serverTime and localTime are the same moment on both clocks; zero before the first response.
	serverTime, localTime time.Time
}

// ToServerTime converts a time of this machine to the clock of the API server. Before the first response it returns
// the time unchanged.
func (c *APIClock) ToServerTime(here time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serverTime.IsZero() {
		return here
	}
	return c.serverTime.Add(here.Sub(c.localTime))
}

// WrapTransport returns a transport that updates the clock from the responses to its requests.
func (c *APIClock) WrapTransport(over http.RoundTripper) http.RoundTripper {
	return clockTransport{over, c}
}

// clockTransport is a transport whose responses update a clock.
type clockTransport struct {
	http.RoundTripper
	clock *APIClock
}

// RoundTrip sends a request and reads the Date of the response.
func (w clockTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	begun := w.clock.localNow()
	answer, err := w.RoundTripper.RoundTrip(req)
	// A load balancer that responds in place of the API server has a clock of its own.
	if err == nil && answer.StatusCode < http.StatusInternalServerError {
		w.clock.updateFromDate(answer.Header.Get("Date"), begun)
	}
	return answer, err
}

// WrappedRoundTripper returns the wrapped transport, which client-go looks up by this method.
func (w clockTransport) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }

// updateFromDate sets the clock by the Date of the response to a request that was sent at begun. A Date is never
// ahead, so of the Dates that may come from the same clock the most advanced one is the most accurate.
func (c *APIClock) updateFromDate(date string, begun time.Time) {
	there, err := http.ParseTime(date)
	here := c.localNow()
	if err != nil || here.Sub(begun) > maxResponseTime {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.serverTime.IsZero() {
		estimated := c.serverTime.Add(here.Sub(c.localTime))
		if ahead := estimated.Sub(there); ahead >= 0 && ahead <= dateTolerance {
			return
		}
	}
	c.serverTime, c.localTime = there, here
}

func (c *APIClock) localNow() time.Time {
	if c.now == nil {
		return time.Now()
	}
	return c.now()
}
