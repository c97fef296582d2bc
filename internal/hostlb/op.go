package hostlb

import (
	"errors"
	"net/netip"
	"time"
)

// OpKind is the kind of an Op.
type OpKind int

// The operations of a host. Those up to WriteReport are writes to the API server: their answers may be late or lost.
const (
	// WriteHeartbeat writes the heartbeat.
	WriteHeartbeat OpKind = iota
	// AcquireLock takes a lock. Where DeadHost is set, the heartbeat of that host must still have the version
	// DeadHostVersion when it is read just before the write. After the write the lease is read from the API server,
	// unless it is being deleted.
	AcquireLock
	// ReleaseUnconfirmed and ReleaseConfirmed write a lock without a holder. The former records that the address was not
	// probed.
	ReleaseUnconfirmed
	ReleaseConfirmed
	// WriteReport writes the report into a lock of this host.
	WriteReport
	// ProbeAddress asks the wire whether a machine answers for the address (ARP or NDP).
	ProbeAddress
	// AddAddress, RefreshAddress and RemoveAddress change the interface. The first two are skipped when they are late
	// (IsLate).
	AddAddress
	RefreshAddress
	RemoveAddress
	// AnnounceAddress announces on the wire that this host has the address, AnnounceCount times.
	AnnounceAddress
)

func (k OpKind) String() string {
	return [...]string{"heartbeat", "acquire", "release-unconfirmed", "release-confirmed", "report", "probe", "add", "refresh", "remove", "announce"}[k]
}

// Op is one operation of a host.
type Op struct {
	Kind    OpKind
	Address netip.Addr
	// PlannedAt is when the operation was decided.
	PlannedAt time.Time
	// Lock is the lock as it was read; a write is based on it.
	Lock Lock
	// DeadHost is the host whose lock is taken, and DeadHostVersion the version of its heartbeat, empty if it has none.
	DeadHost, DeadHostVersion string
	// LeaseUID is the lease that the address is for; LeaseDeleting reports whether that lease is being deleted.
	LeaseUID      string
	LeaseDeleting bool
	// Report is the report to write.
	Report *Report
	// Host is the content of the heartbeat.
	Host Host
	// AnnounceCount is how often the address is announced.
	AnnounceCount int
	// ValidUntil is when an address that is added or refreshed must be gone if this host sends nothing any more: a
	// lifetime after the last heartbeat that was answered. It is zero where the heartbeat is not current, as other hosts
	// do not count on this host then.
	ValidUntil time.Time

	heartbeatLapses int
}

// IsLate reports whether the address must not be added or refreshed any more, as much may have changed since the
// operation was decided.
func (o *Op) IsLate(now time.Time, t Timing) bool { return now.Sub(o.PlannedAt) >= t.RetryInterval }

// AddressLifetime returns the lifetime with which an address is added or refreshed, in whole seconds, as the kernel
// counts.
func (o *Op) AddressLifetime(now time.Time, t Timing) time.Duration {
	if o.ValidUntil.IsZero() {
		return t.Lifetime
	}
	return min(max(o.ValidUntil.Sub(now).Truncate(time.Second), time.Second), t.Lifetime)
}

// The known failures of an Op. After any other error its outcome is unknown.
var (
	// ErrLockChanged means that the lock is not as it was read, so it was not written.
	ErrLockChanged = errors.New("the lock has changed meanwhile")
	// ErrHolderAlive means that the holder of the lock is alive, so the lock was not written.
	ErrHolderAlive = errors.New("the holder of the lock is alive")
	// ErrOpTooLate means that the operation was not run, as too much time had passed since it was decided.
	ErrOpTooLate = errors.New("too much time has passed since the decision")
	// ErrLeaseGone means that the lock was taken, and that the lease did not exist any more after that.
	ErrLeaseGone = errors.New("the lease no longer exists")
)

// OpResult is the outcome of an Op.
type OpResult struct {
	Err error
	// LockVersion is the version of the lock that was written; it is empty if the lock was not written.
	LockVersion string
	// ObservedLock is the lock as it was read where it has changed and was thought to be ours; it is nil if it was not
	// read.
	ObservedLock *ObservedLock
	// ReplyMAC is the MAC that replied to a probe; it is empty if none did.
	ReplyMAC string
}
