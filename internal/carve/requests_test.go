package carve

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

var errSlow = errors.New("etcd is slow")

// TestFailedRequestWaits checks that a request that has failed waits as any write does, that one that is under way is
// not due, and that a success ends both.
func TestFailedRequestWaits(t *testing.T) {
	var r Requests
	for failures := range int32(8) {
		r.Begin("uid")
		if past := r.Progress("uid"); past.IsDue(noon.Add(time.Hour)) {
			t.Fatal("a second request is due while the first is under way")
		}
		want := term.NextRetryTime(noon, failures, 0, errSlow)
		if got := r.End("uid", errSlow, noon); !got.Equal(want) {
			t.Errorf("after %d failures it is retried at %v, not %v", failures+1, got, want)
		}
		if past := r.Progress("uid"); past.IsDue(want.Add(-time.Nanosecond)) || !past.IsDue(want) {
			t.Errorf("after %d failures it is not due at %v", failures+1, want)
		}
	}
	if other := r.Progress("other"); !other.IsDue(noon) {
		t.Error("the request for another block waits too")
	}
	r.Begin("uid")
	if again := r.End("uid", nil, noon); !again.IsZero() {
		t.Errorf("after a success it is retried at %v", again)
	}
	if past := r.Progress("uid"); !past.IsDue(noon) || past.Failures != 0 {
		t.Errorf("after a success it is %+v", past)
	}
}

// TestConcurrentRequestsOfOneKey checks that the failure of one request delays the next ones also where another one
// with the same key has succeeded since both began: the blocks of a pool are created together.
func TestConcurrentRequestsOfOneKey(t *testing.T) {
	var r Requests
	r.Begin("")
	r.Begin("")
	r.End("", nil, noon)
	if again := r.End("", errSlow, noon); again.IsZero() {
		t.Error("the failed one is retried at once")
	}
}

// TestForgottenRequestIsNotRetried checks that the request for a block that is gone is not retried.
func TestForgottenRequestIsNotRetried(t *testing.T) {
	var r Requests
	r.Begin("uid")
	r.Forget("uid")
	if again := r.End("uid", errSlow, noon); !again.IsZero() {
		t.Errorf("it is retried at %v", again)
	}
}

// TestTakenNamesAreAvoided checks that a name that another object has is avoided for as long as documented, and is not
// remembered for longer.
func TestTakenNamesAreAvoided(t *testing.T) {
	var r Requests
	inUse := func(name string) bool { return name == "pool-2" }
	next := func(at time.Time) string { return r.NextName("pool", at, inUse) }
	if got := next(noon); got != "pool-1" {
		t.Errorf("the first name is %s", got)
	}
	r.MarkNameTaken("pool-1", noon)
	for after, want := range map[time.Duration]string{0: "pool-3", NameConflictTimeout - time.Second: "pool-3", NameConflictTimeout: "pool-1"} {
		if got := next(noon.Add(after)); got != want {
			t.Errorf("after %v the name is %s, not %s", after, got, want)
		}
	}
	r.MarkNameTaken("pool-4", noon.Add(NameConflictTimeout))
	if len(r.takenNames) != 1 {
		t.Errorf("it remembers %v", r.takenNames)
	}
}

// TestRequestsForExisting checks the order of the requests that follow from a decision, which ends where the caller
// stops.
func TestRequestsForExisting(t *testing.T) {
	d := Decision{Verify: []string{"a"}, Protect: []string{"b"}, Delete: []string{"c"}, Release: []string{"d", "e"}, Recreate: []string{"f"}, NewBlocks: 1}
	var got []string
	for verb, name := range d.ForExisting() {
		got = append(got, string(verb)+" "+name)
		if name == "d" {
			break
		}
	}
	if want := []string{"reading a", "protecting b", "deleting c", "releasing d"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
