package tenant

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func TestRequeueDelay(t *testing.T) {
	for name, c := range map[string]struct{ got, want requeueDelay }{
		"no result":       {requeueDelay(0).minWait(0), 0},
		"one says":        {requeueDelay(0).minWait(newRequeueDelay(time.Second)), requeueDelay(time.Second)},
		"the other says":  {newRequeueDelay(time.Second).minWait(0), requeueDelay(time.Second)},
		"the sooner":      {newRequeueDelay(time.Minute).minWait(newRequeueDelay(time.Second)), requeueDelay(time.Second)},
		"or the other":    {newRequeueDelay(time.Second).minWait(newRequeueDelay(time.Minute)), requeueDelay(time.Second)},
		"at once is soon": {newRequeueDelay(time.Second).minWait(newRequeueDelay(0)), requeueAtOnce},
		"it was due":      {newRequeueDelay(-time.Hour), requeueAtOnce},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s", name, time.Duration(c.got))
		}
	}
	now := time.Now()
	l := &scope{now: now}
	if got := l.requeueDelayUntil(now.Add(time.Minute)).minWait(l.requeueDelayUntil(time.Time{})); got != requeueDelay(time.Minute) {
		t.Errorf("until a moment: %s", time.Duration(got))
	}
}

// TestWithReplaced checks that the result of a write replaces what was read, and that what was read stays as it was.
func TestWithReplaced(t *testing.T) {
	a, b := framework.MakeAllocation("ns", "a").Obj(), framework.MakeAllocation("ns", "b").Obj()
	a.UID, b.UID = types.UID("1"), types.UID("2")
	was := allocations{a, b}
	written := b.DeepCopy()
	written.ResourceVersion = "9"
	updated := was.withReplaced(written)
	if updated.findByName("b") != written || updated.findByName("a") != a || was.findByName("b") != b || updated.findByName("c") != nil {
		t.Errorf("%v, then %v", was, updated)
	}
}
