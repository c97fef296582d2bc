// Package term has what all managers have in common that hold something for a term, until another one takes it over:
// what became of a write without an answer, what is refused for good, and how long to wait before the next try. It
// writes nothing.
package term

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Verdict is what became of a write of the object that names the holder, of which no answer says so (R4).
type Verdict int

const (
	// MayLand means that it is not there, and may be on its way still: it is sent again as it is, or not at all.
	MayLand Verdict = iota
	// HasLanded means that it is there.
	HasLanded
	// NeverLands means that the object was changed by another hand, which left the grants as they were. The write was
	// made on an older one.
	NeverLands
	// Lost means that another manager has written the object, or it is another object.
	Lost
)

// Sighting is what a live read shows of the object that was written.
type Sighting struct {
	// SameObject: it has the UID of what the write was made on. SameVersion: its resource version too.
	SameObject, SameVersion bool
	// There: it has what was sent. AsBefore: it has the term and the grants that the write was made on.
	There, AsBefore bool
}

// Verdict says what became of a write.
func (s Sighting) Verdict() Verdict {
	switch {
	case !s.SameObject:
		return Lost
	case s.SameVersion:
		return MayLand
	case s.There:
		return HasLanded
	case s.AsBefore:
		return NeverLands
	}
	return Lost
}

// RefusedForGood reports whether the answer to a write says that it was not, and will not be, carried out as it is: by
// a quota, a policy, a schema, or because it is too large for etcd, which the API server calls an internal error. A
// conflict, a lack of patience or of rights for the moment, and whatever may have been carried out all the same, is
// none.
func RefusedForGood(err error) bool {
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
