package nodeipam

import (
	"time"
)

// adoptionPeriod is how long nothing is granted where another allocator, or a manager whose state was lost, may still
// write: longer than any request lasts (R10).
const adoptionPeriod = 75 * time.Second

// adoptionState is the wait for the last writes of an allocator, or of a manager whose state was lost (R10). Nothing is
// granted before until, and no object is marked as no longer in use while the state on record adopts.
type adoptionState struct {
	// adopting reports whether the state on record adopts. until is when the first grant may be made; zero means at
	// once.
	adopting bool
	until    time.Time
	// start is the beginning of the adoption as it is on record; seenAt is when this manager first saw that.
	start, seenAt time.Time
}

// beginTerm records whether the state on record adopts at the beginning of a term; a nil since means that it does not.
//
// The wait counts by this manager's clock alone, as the clock of the manager that began may be ahead or behind. It
// counts since this manager first saw the adoption: otherwise two managers that take over from each other would start
// it again each time.
func (as *adoptionState) beginTerm(since *time.Time, now time.Time) {
	as.adopting, as.until = since != nil, time.Time{}
	if since == nil {
		return
	}
	if !as.start.Equal(*since) {
		as.start, as.seenAt = *since, now
	}
	as.until = as.seenAt.Add(adoptionPeriod)
}
