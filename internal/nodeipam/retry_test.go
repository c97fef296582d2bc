package nodeipam

import (
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// TestFailedWriteIsRetriedForever checks K30: a write that fails is due again, forever, after pauses that double up
// to half a minute, together with others that failed at about the same time. The grant stays as it is.
func TestFailedWriteIsRetriedForever(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/24", newTestNode("a"))
	m.grantAll(t)
	now, want := noon, time.Duration(0)
	for try := range 100 {
		due, _ := m.writes.collectDueGrants(now)
		if len(due) != 1 || due[0] != m.grants.byNode["a"] {
			t.Fatalf("try %d: %d writes are due", try, len(due))
		}
		m.writes.beginWrite(due[0])
		m.writes.recordWrite(due[0], timeout, now)
		due, wait := m.writes.collectDueGrants(now)
		want = min(max(2*want, 50*time.Millisecond), 30*time.Second)
		if later := term.RetryTimeAfter(now, want).Sub(now); len(due) > 0 || wait != later {
			t.Fatalf("try %d: the next is due in %v, want %v, with others that failed about when it did", try, wait, later)
		}
		now = now.Add(wait)
	}
}

// TestFailedWriteEnqueuesCluster checks that a write that failed enqueues the cluster for a retry that is due
// before the next reconcile, and, after a reconcile that did not happen, for one that is due within a second.
func TestFailedWriteEnqueuesCluster(t *testing.T) {
	for name, c := range map[string]struct {
		nextReconcile time.Time
		failures      int32
		wakes         bool
	}{
		"no look is known, soon":             {wakes: true},
		"no look is known, late":             {failures: 9, wakes: true},
		"the look is later":                  {nextReconcile: noon.Add(time.Minute), failures: 8, wakes: true},
		"the look is before":                 {nextReconcile: noon.Add(time.Second), failures: 8},
		"the look did not come, soon":        {nextReconcile: noon.Add(-time.Second), wakes: true},
		"the look did not come, late":        {nextReconcile: noon.Add(-time.Second), failures: 8},
		"the site has just failed, and soon": {nextReconcile: noon, wakes: true},
	} {
		m := newHolderState(t, "10.0.0.0/22", newTestNode("a"), newTestNode("b"))
		m.grantAll(t)
		m.writes.nextReconcile = c.nextReconcile
		for _, g := range m.grants.byNode { // the write of b stays under way, as the end of the last one enqueues the cluster anyway
			g.Failures = c.failures
			m.writes.beginWrite(g)
		}
		if wakes := m.writes.recordWrite(m.grants.byNode["a"], timeout, noon); wakes != c.wakes {
			t.Errorf("%s: %v", name, wakes)
		}
	}
}
