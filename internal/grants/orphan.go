package grants

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Orphan is an address object without a known claimant.
type Orphan struct {
	*Address
	// OrphanedSince is when a live read first showed that the object has no claimant.
	OrphanedSince time.Time
	// Conflicts reports whether a claimant of another pool needs the name of the object.
	Conflicts bool
	// NeverPublished reports whether the claim of the object ended before its status named the object, so that no
	// consumer can use the address.
	NeverPublished bool
	// ProvenOrphan reports whether it is proven that the object has no claimant and has to be removed.
	ProvenOrphan bool
	Busy         bool
	// Failures is the number of consecutive errors. No job starts before RetryAt.
	Failures int
	RetryAt  time.Time
}

// orphanRetryOffset is added to the failures of an orphan when its retry delay is computed, because orphans are not
// urgent.
const orphanRetryOffset = 4

// RecordAttempt records an attempt to remove or adopt an orphan that is still there: the attempt has failed, or a
// finalizer of another controller keeps the object.
func (s *Orphan) RecordAttempt(err error, now time.Time) {
	s.RetryAt = term.NextRetryTime(now, s.Failures+orphanRetryOffset, 0, err)
	s.Failures++
}
