package nodeipam

import (
	"testing"
	"time"
)

// K30: a write that fails is due again, for ever, after pauses that double up to half a minute, with others of the
// same second. The grant stays as it is.
func TestAFailedWriteIsRepeatedForEver(t *testing.T) {
	m := holding(t, "10.0.0.0/24", aNode("a"))
	m.grantAll(t)
	now, want := noon, time.Duration(0)
	for try := range 100 {
		due, _ := m.due(now)
		if len(due) != 1 || due[0] != m.grants["a"] {
			t.Fatalf("try %d: %d writes are due", try, len(due))
		}
		m.begin(due[0])
		m.wrote(due[0], timeout, now)
		due, wait := m.due(now)
		want = min(max(2*want, 50*time.Millisecond), 30*time.Second)
		if more := wait - want; len(due) > 0 || more < 0 || more >= slowly || (want < slowly && more > 0) {
			t.Fatalf("try %d: the next is due in %v, want %v, or with others of the same second", try, wait, want)
		}
		now = now.Add(wait)
	}
}
