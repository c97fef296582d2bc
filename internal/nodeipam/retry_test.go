package nodeipam

import (
	"testing"
	"time"
)

// K30: a write that fails is due again, for ever, after pauses that double up to half a minute. The grant stays as it is.
func TestAFailedWriteIsRepeatedForEver(t *testing.T) {
	m := holding(t, "10.0.0.0/24", aNode("a"))
	m.grantAll(t)
	now, last := noon, time.Duration(0)
	for try := range 100 {
		due, _ := m.due(now)
		if len(due) != 1 || due[0] != m.grants["a"] {
			t.Fatalf("try %d: %d writes are due", try, len(due))
		}
		m.begin(due[0])
		m.wrote(due[0], timeout, now)
		due, wait := m.due(now)
		if want := min(max(2*last, 50*time.Millisecond), 30*time.Second); len(due) > 0 || wait != want {
			t.Fatalf("try %d: the next is due in %v, want %v", try, wait, want)
		}
		now, last = now.Add(wait), wait
	}
}
