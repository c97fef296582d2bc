package process

import (
	"net/http"
	"testing"
	"time"
)

// answers is a transport whose answers have a Date, and last for a while.
type answers struct {
	date  string
	lasts func()
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	a.lasts()
	return &http.Response{Header: http.Header{"Date": {a.date}}, Body: http.NoBody}, nil
}

// R10: what one manager writes down for the next one is by the clock of the API server, whatever its own clock says.
func TestAPIClock(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		date  string
		lasts time.Duration
		want  time.Time
	}{
		"its own clock is ahead":       {date: "Thu, 01 Jan 2026 11:50:00 GMT", want: noon.Add(-9 * time.Minute)},
		"its own clock is behind":      {date: "Thu, 01 Jan 2026 12:10:00 GMT", want: noon.Add(11 * time.Minute)},
		"an answer without a Date":     {want: noon.Add(time.Minute)},
		"what is no Date":              {date: "noon", want: noon.Add(time.Minute)},
		"an answer that is old by now": {date: "Thu, 01 Jan 2026 12:10:00 GMT", lasts: time.Hour, want: noon.Add(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			now := noon
			clock := &APIClock{now: func() time.Time { return now }}
			transport := clock.Watch(answers{tc.date, func() { now = now.Add(tc.lasts) }})
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
			if is := clock.At(noon.Add(time.Minute)); !is.Equal(tc.want) {
				t.Errorf("a minute past noon is %v there, not %v", is, tc.want)
			}
		})
	}
}
