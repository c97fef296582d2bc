package process

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"
)

// datedTransport is a transport whose responses have a Date, and take a while.
type datedTransport struct {
	date  string
	code  int
	lasts func()
}

func (a datedTransport) RoundTrip(*http.Request) (*http.Response, error) {
	a.lasts()
	return &http.Response{StatusCode: a.code, Header: http.Header{"Date": {a.date}}, Body: http.NoBody}, nil
}

// TestAPIClock checks that what one manager records for the next one is by the clock of the API server, whatever its
// own clock shows (R10).
func TestAPIClock(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		date  string
		code  int
		lasts time.Duration
		want  time.Time
	}{
		"its own clock is ahead":       {date: "Thu, 01 Jan 2026 11:50:00 GMT", want: noon.Add(-9 * time.Minute)},
		"its own clock is behind":      {date: "Thu, 01 Jan 2026 12:10:00 GMT", want: noon.Add(11 * time.Minute)},
		"an answer without a Date":     {want: noon.Add(time.Minute)},
		"what is no Date":              {date: "noon", want: noon.Add(time.Minute)},
		"an answer that is old by now": {date: "Thu, 01 Jan 2026 12:10:00 GMT", lasts: time.Hour, want: noon.Add(time.Minute)},
		"one of a load balancer":       {date: "Thu, 01 Jan 2026 12:10:00 GMT", code: http.StatusBadGateway, want: noon.Add(time.Minute)},
		"a refusal":                    {date: "Thu, 01 Jan 2026 12:10:00 GMT", code: http.StatusConflict, want: noon.Add(11 * time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			now := noon
			clock := &APIClock{now: func() time.Time { return now }}
			transport := clock.WrapTransport(datedTransport{tc.date, cmp.Or(tc.code, http.StatusOK), func() { now = now.Add(tc.lasts) }})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if err := answer.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if got := clock.ToServerTime(noon.Add(time.Minute)); !got.Equal(tc.want) {
				t.Errorf("a minute past noon is %v there, not %v", got, tc.want)
			}
		})
	}
}

// TestAPIClockWavers checks that the clock, although a Date has no fractions and is that of some moment of the
// response, is at most two seconds behind, less with each response, and follows a server clock that is set to another
// time.
func TestAPIClockWavers(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := noon
	clock := &APIClock{now: func() time.Time { return now }}
	chance := rand.New(rand.NewPCG(1, 2))
	answer := func(ahead time.Duration) (wrong time.Duration) {
		begun := now.Add(time.Duration(chance.Int64N(int64(time.Second))))
		dated := begun.Add(time.Duration(chance.Int64N(int64(time.Second))))
		now = begun.Add(maxResponseTime)
		clock.updateFromDate(dated.Add(ahead).Truncate(time.Second).Format(http.TimeFormat), begun)
		return clock.ToServerTime(now).Sub(now.Add(ahead))
	}
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 0, 10 * time.Second} {
		last := -2 * time.Second
		for range 200 {
			wrong := answer(ahead)
			if wrong < last || wrong > 0 {
				t.Fatalf("%v ahead: it is wrong by %v, after %v", ahead, wrong, last)
			}
			last = wrong
		}
		if last < -time.Second/2 {
			t.Errorf("%v ahead: after many answers it is wrong by %v", ahead, last)
		}
	}
}
