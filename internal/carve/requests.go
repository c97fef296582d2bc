package carve

import (
	"iter"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Verb is the action of a request for a block.
type Verb string

const (
	// CreateBlock creates an IPAllocation that requests one more block.
	CreateBlock Verb = "asking for"
	// GetBlock reads the block from the API server.
	GetBlock Verb = "reading"
	// AddBlockFinalizer adds our finalizer to the block.
	AddBlockFinalizer Verb = "protecting"
	// DeleteBlock deletes the block, which is drained and recorded as draining.
	DeleteBlock Verb = "deleting"
	// RemoveBlockFinalizer removes our finalizer from the block, which is being deleted and no longer recorded as
	// open.
	RemoveBlockFinalizer Verb = "releasing"
)

// ForExisting returns the requests for existing blocks that follow from a decision, with the name of each block.
func (d Decision) ForExisting() iter.Seq2[Verb, string] {
	return func(yield func(Verb, string) bool) {
		for _, on := range []struct {
			verb  Verb
			names []string
		}{{GetBlock, d.Verify}, {AddBlockFinalizer, d.Protect}, {DeleteBlock, d.Delete}, {RemoveBlockFinalizer, d.Release}} {
			for _, name := range on.names {
				if !yield(on.verb, name) {
					return
				}
			}
		}
	}
}

// NameConflictTimeout is how long no block is requested under a name that another object has. After that the name is
// tried again, because the request of a lost block that is replaced depends on it.
const NameConflictTimeout = 5 * time.Minute

// Requests are the requests for the blocks of one pool, or of one Cluster, that are under way or have failed, and the
// names that no block can have. The key of a request is the UID of its block, or what the caller retries as one. The
// zero value is ready for use.
type Requests struct {
	byKey      map[string]*term.Retry
	takenNames map[string]time.Time
}

// Progress returns the progress of the requests with a key.
func (r *Requests) Progress(key string) term.Retry {
	if item := r.byKey[key]; item != nil {
		return *item
	}
	return term.Retry{}
}

// Begin records that a request is under way.
func (r *Requests) Begin(key string) {
	if r.byKey == nil {
		r.byKey = map[string]*term.Retry{}
	}
	if r.byKey[key] == nil {
		r.byKey[key] = &term.Retry{}
	}
	r.byKey[key].Begin()
}

// End records the result of a request. It returns when the request is retried, or the zero time if it succeeded or its
// block is gone.
func (r *Requests) End(key string, err error, now time.Time) time.Time {
	item := r.byKey[key]
	if item == nil {
		return time.Time{}
	}
	item.End()
	if err == nil {
		item.Reset()
		return time.Time{}
	}
	item.Fail(now, err)
	return item.RetryAt
}

// Forget drops the requests with a key, as their block is gone.
func (r *Requests) Forget(key string) { delete(r.byKey, key) }

// MarkNameTaken records that another object has a name.
func (r *Requests) MarkNameTaken(name string, now time.Time) {
	for old := range r.takenNames {
		if !r.IsNameTaken(old, now) {
			delete(r.takenNames, old)
		}
	}
	if r.takenNames == nil {
		r.takenNames = map[string]time.Time{}
	}
	r.takenNames[name] = now.Add(NameConflictTimeout)
}

// IsNameTaken reports whether another object has a name, as far as is known.
func (r *Requests) IsNameTaken(name string, now time.Time) bool { return r.takenNames[name].After(now) }

// NextName returns the first name of a block that no other object has. inUse reports whether a block has a name, or a
// request is to create one.
func (r *Requests) NextName(prefix string, now time.Time, inUse func(name string) bool) string {
	for n := 1; ; n++ {
		if name := BlockName(prefix, n); !r.IsNameTaken(name, now) && !inUse(name) {
			return name
		}
	}
}
