package tenant

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func TestWait(t *testing.T) {
	for name, c := range map[string]struct{ got, want wait }{
		"nobody says":     {wait(0).or(0), 0},
		"one says":        {wait(0).or(in(time.Second)), wait(time.Second)},
		"the other says":  {in(time.Second).or(0), wait(time.Second)},
		"the sooner":      {in(time.Minute).or(in(time.Second)), wait(time.Second)},
		"or the other":    {in(time.Second).or(in(time.Minute)), wait(time.Second)},
		"at once is soon": {in(time.Second).or(in(0)), atOnce},
		"it was due":      {in(-time.Hour), atOnce},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s", name, time.Duration(c.got))
		}
	}
	now := time.Now()
	l := &look{now: now}
	if got := l.until(now.Add(time.Minute)).or(l.until(time.Time{})); got != wait(time.Minute) {
		t.Errorf("until a moment: %s", time.Duration(got))
	}
}

// A write that came back is in the place of what was read, and what was read stays as it was.
func TestAllocationsWith(t *testing.T) {
	a, b := framework.MakeAllocation("ns", "a").Obj(), framework.MakeAllocation("ns", "b").Obj()
	a.UID, b.UID = types.UID("1"), types.UID("2")
	was := allocations{a, b}
	written := b.DeepCopy()
	written.ResourceVersion = "9"
	is := was.with(written)
	if is.named("b") != written || is.named("a") != a || was.named("b") != b || is.named("c") != nil {
		t.Errorf("%v, then %v", was, is)
	}
}
