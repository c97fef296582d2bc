package hostlb

import (
	"errors"
	"net/netip"
	"time"
)

// Kind is what an Op does.
type Kind int

// What a host does. Those up to Tell are writes to the API server: their answers may be late, or lost.
const (
	// Beat writes the heartbeat.
	Beat Kind = iota
	// Take takes a lock: where Dead is set, its heartbeat is to be of that version still when it is read just before. Then the
	// lease is read, as the API server has it, if it is not one that ends.
	Take
	// Leave and Empty write that nobody holds a lock: Leave, that the wire was not asked.
	Leave
	Empty
	// Tell writes the report into a lock that is ours.
	Tell
	// Probe asks the wire.
	Probe
	// Add, Refresh and Remove change the interface. The first two are not to be done when they are late (Late).
	Add
	Refresh
	Remove
	// Announce says on the wire that this host has an address, so many Times.
	Announce
)

func (k Kind) String() string {
	return [...]string{"beat", "take", "leave", "empty", "tell", "probe", "add", "refresh", "remove", "announce"}[k]
}

// Op is something to do.
type Op struct {
	Kind    Kind
	Address netip.Addr
	// At is when it was decided.
	At time.Time
	// Lock is as it was read, and what a write is made on.
	Lock Lock
	// Dead is the host whose lock is taken, by its heartbeat of a version; without one it has none.
	Dead, DeadVersion string
	// Lease is the one that the address is for, Ends that it is being deleted.
	Lease string
	Ends  bool
	// Report is what to tell.
	Report *Report
	// Host is what the heartbeat says.
	Host Host
	// Times is how often the wire is told.
	Times int
	// Until is when an address that is added or refreshed is to be gone, if nothing is heard of this host any more: a lifetime
	// after the last heartbeat that was answered. Zero: others know nothing of this host anyway.
	Until time.Time

	lapses int
}

// Late reports whether an address is not to be added or refreshed any more, as much may have changed since that was decided.
func (o *Op) Late(now time.Time, t Timing) bool { return now.Sub(o.At) >= t.Again }

// LifetimeOf is the lifetime that an address is added or refreshed with: whole seconds, as the kernel counts.
func (o *Op) LifetimeOf(now time.Time, t Timing) time.Duration {
	if o.Until.IsZero() {
		return t.Lifetime
	}
	return min(max(o.Until.Sub(now).Truncate(time.Second), time.Second), t.Lifetime)
}

// What becomes of an Op, beside other errors, of which nobody knows.
var (
	// ErrChanged: the lock is not what it was read as, so it was not written.
	ErrChanged = errors.New("the lock has changed meanwhile")
	// ErrAlive: who has the lock lives, so it was not written.
	ErrAlive = errors.New("who has the lock lives")
	// ErrLate: so much time has passed since it was decided that it was not done.
	ErrLate = errors.New("it took too long since that was decided")
	// ErrGone: the lock was taken, and then the lease was not there any more.
	ErrGone = errors.New("the lease is not there any more")
)

// Result is what became of an Op.
type Result struct {
	Err error
	// Version is that of the lock which was written, empty if it was not.
	Version string
	// Read is the lock as it was read where it has changed, and was thought to be ours; nil: it was not read.
	Read *ReadLock
	// MAC is who has answered, empty: nobody.
	MAC string
}
