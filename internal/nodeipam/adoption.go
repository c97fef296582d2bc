package nodeipam

import (
	"time"
)

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
