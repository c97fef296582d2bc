package nodeipam

import (
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// K30: a write that fails is due again, for ever, after pauses that double up to half a minute, with others that
// failed about when it did. The grant stays as it is.
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
		if later := term.Later(now, want).Sub(now); len(due) > 0 || wait != later {
			t.Fatalf("try %d: the next is due in %v, want %v, with others that failed about when it did", try, wait, later)
		}
		now = now.Add(wait)
	}
}
