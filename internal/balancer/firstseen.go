package balancer

import "time"

// ConfirmationInterval is the time between two live reads that prove together that a load balancer has released
// something: what it was writing at the first one is visible at the second one.
const ConfirmationInterval = 2 * time.Second

// FirstSeen has since when each of some facts is observed. The caller removes a fact when it may have ended: before
// that, two observations do not confirm each other.
type FirstSeen[K comparable] map[K]time.Time

// Record records that a fact is observed, and returns since when: at, if it was not recorded before.
func (f *FirstSeen[K]) Record(fact K, at time.Time) (since time.Time) {
	if *f == nil {
		*f = FirstSeen[K]{}
	}
	if _, before := (*f)[fact]; !before {
		(*f)[fact] = at
	}
	return (*f)[fact]
}

// Confirm records that a live read shows a fact, and returns how long it takes until another one can confirm it. The
// fact is confirmed if that is not positive: an earlier read ended at least ConfirmationInterval before this one began.
func (f *FirstSeen[K]) Confirm(fact K, began, ended time.Time) (wait time.Duration) {
	return ConfirmationInterval - began.Sub(f.Record(fact, ended))
}
