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

// A write that failed wakes the site for what is due before it is looked at again, and after a look that did not come for what is due
// within a second.
func TestWhatAFailedWriteWakesTheSiteFor(t *testing.T) {
	for name, c := range map[string]struct {
		nextLook time.Time
		failures int
		wakes    bool
	}{
		"no look is known, soon":             {wakes: true},
		"no look is known, late":             {failures: 9, wakes: true},
		"the look is later":                  {nextLook: noon.Add(time.Minute), failures: 8, wakes: true},
		"the look is before":                 {nextLook: noon.Add(time.Second), failures: 8},
		"the look did not come, soon":        {nextLook: noon.Add(-time.Second), wakes: true},
		"the look did not come, late":        {nextLook: noon.Add(-time.Second), failures: 8},
		"the site has just failed, and soon": {nextLook: noon, wakes: true},
	} {
		m := holding(t, "10.0.0.0/22", aNode("a"), aNode("b"))
		m.grantAll(t)
		m.nextLook = c.nextLook
		for _, g := range m.grants { // that of b stays under way: the end of the last wakes the site anyway
			g.failures = c.failures
			m.begin(g)
		}
		if wakes := m.wrote(m.grants["a"], timeout, noon); wakes != c.wakes {
			t.Errorf("%s: %v", name, wakes)
		}
	}
}
