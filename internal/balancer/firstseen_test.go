package balancer

import (
	"testing"
	"time"
)

// TestConfirm checks that two reads confirm a fact if the second one begins some time after the first one has ended,
// however long each takes.
func TestConfirm(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var seen FirstSeen[string]
	for _, step := range []struct {
		fact         string
		began, ended time.Duration
		forget       bool
		wait         time.Duration
	}{
		{fact: "a", began: 0, ended: 3 * time.Second, wait: 5 * time.Second},
		{fact: "a", began: 3 * time.Second, ended: 6 * time.Second, wait: 2 * time.Second},
		{fact: "b", began: 4 * time.Second, ended: 4 * time.Second, wait: 2 * time.Second},
		{fact: "a", began: 5*time.Second - time.Millisecond, ended: 7 * time.Second, wait: time.Millisecond},
		{fact: "a", began: 5 * time.Second, ended: 9 * time.Second, wait: 0},
		{fact: "b", began: 9 * time.Second, ended: 9 * time.Second, wait: -3 * time.Second},
		{fact: "a", began: 9 * time.Second, ended: 9 * time.Second, forget: true, wait: 2 * time.Second},
	} {
		if step.forget {
			delete(seen, step.fact)
		}
		if wait := seen.Confirm(step.fact, noon.Add(step.began), noon.Add(step.ended)); wait != step.wait {
			t.Errorf("%s, read from %s to %s: wait %s, want %s", step.fact, step.began, step.ended, wait, step.wait)
		}
	}
}

// TestRecord checks that a fact is observed since it was recorded first.
func TestRecord(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var seen FirstSeen[string]
	for _, at := range []time.Time{noon, noon.Add(time.Hour)} {
		if since := seen.Record("a", at); !since.Equal(noon) {
			t.Errorf("since %s", since)
		}
	}
}
