package term

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Write is a write of the object that names the holder, with the resourceVersion that it is based on (R3). It stays
// pending until its outcome is known (R4): nothing else may be written to the object before that.
type Write struct {
	// outcomeUnknown reports whether the write was sent and its answer is lost.
	outcomeUnknown bool
}

// Attempt sends the write, which may be a repetition, and determines its outcome: by the answer, or by a live read
// where the answer does not decide. send sends it; readBack returns what a live read shows, or its error. The error
// is nil if the write is applied; it says why the API server refuses it, or why it is still pending. At most two
// requests.
func (w *Write) Attempt(send func() error, readBack func() (ReadBack, error)) (WriteOutcome, error) {
	err := send()
	if err == nil {
		return WriteApplied, nil
	}
	if IsPermanentRefusal(err) && !w.outcomeUnknown {
		return WriteRefused, err
	}
	w.outcomeUnknown = true
	live, readErr := readBack()
	switch {
	case apierrors.IsNotFound(readErr):
		return ObjectGone, err
	case readErr != nil:
		return WritePending, fmt.Errorf("%w (reading it back: %w)", err, readErr)
	}
	if outcome := live.Outcome(); outcome != WriteApplied {
		return outcome, err
	}
	return WriteApplied, nil
}
