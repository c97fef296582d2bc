package term

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestWriteAttempt(t *testing.T) {
	timeout, unread := apierrors.NewTimeoutError("the answer was lost", 1), errors.New("connection refused")
	conflict := apierrors.NewConflict(schema.GroupResource{}, "pool", errors.New("changed"))
	forbidden, gone := apierrors.NewForbidden(schema.GroupResource{}, "pool", nil), apierrors.NewNotFound(schema.GroupResource{}, "pool")
	mine := ReadBack{SameObject: true, Written: true}
	for name, c := range map[string]struct {
		unknown   bool
		sendErr   error
		shown     ReadBack
		readErr   error
		want      WriteOutcome
		reads     int
		unknownAt bool
	}{
		"is applied":                                {want: WriteApplied},
		"is refused":                                {sendErr: forbidden, want: WriteRefused},
		"is refused after its answer was lost":      {unknown: true, sendErr: forbidden, shown: mine, want: WriteApplied, reads: 1, unknownAt: true},
		"has landed without an answer":              {sendErr: timeout, shown: mine, want: WriteApplied, reads: 1, unknownAt: true},
		"has not landed yet":                        {sendErr: timeout, shown: ReadBack{SameObject: true, SameVersion: true, Unchanged: true}, want: WritePending, reads: 1, unknownAt: true},
		"cannot be read back":                       {sendErr: timeout, readErr: unread, want: WritePending, reads: 1, unknownAt: true},
		"meets a change that leaves the grants":     {sendErr: conflict, shown: ReadBack{SameObject: true, Unchanged: true}, want: WriteConflicted, reads: 1, unknownAt: true},
		"meets another holder":                      {sendErr: conflict, shown: ReadBack{SameObject: true}, want: TermLost, reads: 1, unknownAt: true},
		"meets another object of the same name":     {sendErr: conflict, shown: ReadBack{Written: true}, want: TermLost, reads: 1, unknownAt: true},
		"is of an object that is gone":              {sendErr: gone, readErr: gone, want: ObjectGone, reads: 1, unknownAt: true},
		"is repeated, and the repetition lands":     {unknown: true, want: WriteApplied, unknownAt: true},
		"is repeated, and the first one has landed": {unknown: true, sendErr: conflict, shown: mine, want: WriteApplied, reads: 1, unknownAt: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, reads := &Write{outcomeUnknown: c.unknown}, 0
			got, err := w.Attempt(func() error { return c.sendErr }, func() (ReadBack, error) { reads++; return c.shown, c.readErr })
			if got != c.want || reads != c.reads || w.outcomeUnknown != c.unknownAt {
				t.Errorf("outcome %d after %d reads, unknown %t; want %d, %d, %t", got, reads, w.outcomeUnknown, c.want, c.reads, c.unknownAt)
			}
			if (err == nil) != (got == WriteApplied) || (c.readErr != nil && c.want == WritePending && !errors.Is(err, c.readErr)) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
