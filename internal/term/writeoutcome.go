// Package term has what all managers share that hold an object for a term, until another one takes it over: the outcome
// of a write without an answer, which refusals are permanent, and how long to wait before the next try. It writes
// nothing.
package term

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// WriteOutcome is the outcome of a write of the object that names the holder. Where the answer is lost, a live read
// decides (R4).
type WriteOutcome int

const (
	// WritePending means that the write is not visible and may still land: it is sent again as it is, or not at all.
	WritePending WriteOutcome = iota
	// WriteApplied means that the object has what was written.
	WriteApplied
	// WriteConflicted means that another writer changed the object and left the grants as they were. The write was made
	// on an older version.
	WriteConflicted
	// TermLost means that another manager has written the object, or that another object has its name.
	TermLost
	// WriteRefused means that the API server refuses the write permanently: it is not sent again as it is.
	WriteRefused
	// ObjectGone means that the object no longer exists: nothing lands on it.
	ObjectGone
)

// ReadBack is what a live read shows of the object that was written.
type ReadBack struct {
	// SameObject reports whether the object has the UID that the write was based on; SameVersion reports whether it has
	// that resource version too.
	SameObject, SameVersion bool
	// Written reports whether the object has what was sent; Unchanged reports whether it has the term and the grants
	// that the write was based on.
	Written, Unchanged bool
}

// Outcome returns the outcome of the write.
func (rb ReadBack) Outcome() WriteOutcome {
	switch {
	case !rb.SameObject:
		return TermLost
	case rb.SameVersion:
		return WritePending
	case rb.Written:
		return WriteApplied
	case rb.Unchanged:
		return WriteConflicted
	}
	return TermLost
}

// IsPermanentRefusal reports whether the answer to a write means that the write was not, and will not be, applied as it
// is: it was refused by a quota, a policy or a schema, or it is too large for etcd, which the API server reports as an
// internal error. Conflicts, missing objects, timeouts, throttling, missing credentials and writes that may have been
// applied all the same are no permanent refusals.
func IsPermanentRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	case http.StatusInternalServerError:
		return strings.Contains(status.Status().Message, "request is too large")
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}
