package grants

import (
	"net/netip"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
)

// BlockVerb is what a request for a block does.
type BlockVerb string

const (
	// AskForBlock asks the parent for one more.
	AskForBlock BlockVerb = "asking for"
	// LookAtBlock reads it live.
	LookAtBlock BlockVerb = "reading"
	// ProtectBlock puts our finalizer on it.
	ProtectBlock BlockVerb = "protecting"
	// DeleteBlock deletes it: it is drained, and on record as that.
	DeleteBlock BlockVerb = "deleting"
	// ReleaseBlock takes our finalizer off: it is deleted, and on record as open no more.
	ReleaseBlock BlockVerb = "releasing"
)

// BlockRequest is a request for a block. It was decided on the block as it was then.
type BlockRequest struct {
	Verb BlockVerb
	Name string
	// Block is nil where one is asked for. Pinned is what it is to have, not valid: anything.
	Block  *Block
	Pinned netip.Prefix
	// Term is that in which it was decided.
	Term int64
}

// BlockRequests are the requests that are due, and how long until one is that has to wait. quarantine is how long what was
// sent before a pool was gone may be on its way (R10).
func (m *Memory) BlockRequests(now time.Time, quarantine time.Duration) (out []BlockRequest, wait time.Duration) {
	c := &m.Carved
	if m.Base == nil {
		return m.blocksWithoutPool(now, quarantine)
	}
	if !m.Holder {
		return nil, 0
	}
	out, wait = m.endAbroad(now)
	for _, on := range []struct {
		verb  BlockVerb
		names []string
	}{{LookAtBlock, c.Todo.Look}, {ProtectBlock, c.Todo.Protect}, {DeleteBlock, c.Todo.Delete}, {ReleaseBlock, c.Todo.Release}} {
		for _, name := range on.names {
			out, wait = m.due(out, wait, on.verb, c.Blocks[name], now)
		}
	}
	if c.Todo.Next > 0 {
		wait = Sooner(wait, c.Todo.Next)
	}
	if d := c.askAfter.Sub(now); d > 0 {
		if c.Todo.Ask+len(c.Todo.Again) > 0 {
			wait = Sooner(wait, d)
		}
		return out, wait
	}
	asked := map[string]struct{}{}
	for _, on := range c.Todo.Again {
		name := on
		if m.isTaken(name, now) { // something else has it: the block takes the place of this one under another
			name = m.nextName(asked, now)
		}
		asked[name] = struct{}{}
		out = append(out, BlockRequest{Verb: AskForBlock, Name: name, Pinned: m.rangeOnRecord(on)})
	}
	for range c.Todo.Ask {
		name := m.nextName(asked, now)
		asked[name] = struct{}{}
		out = append(out, BlockRequest{Verb: AskForBlock, Name: name})
	}
	return out, wait
}

// recordsEvery is how often a block is ended that is abroad and has a record alone, which anybody can write: before it goes,
// all that is in use of a global pool is listed.
const recordsEvery = time.Minute

// endAbroad are the requests for the blocks that are in other namespaces and not on record as open. One of those that the
// pool has asked for was made before its manager moved to another namespace, and not opened by then: it goes back.
func (m *Memory) endAbroad(now time.Time) (out []BlockRequest, wait time.Duration) {
	if m.InQuarantine(now) {
		return nil, 0
	}
	for _, b := range m.Carved.abroad {
		recordAlone := !b.Prefix.IsValid() && len(b.Had) > 0
		switch {
		case !b.Protected || m.UsedOf(b) > 0:
		case b.Deleting && recordAlone && m.Carved.recordsAfter.After(now):
			wait = Sooner(wait, m.Carved.recordsAfter.Sub(now))
		case b.Deleting:
			n := len(out)
			if out, wait = m.due(out, wait, ReleaseBlock, b, now); recordAlone && len(out) > n {
				m.Carved.recordsAfter = now.Add(recordsEvery)
			}
		case !b.ByHand:
			out, wait = m.due(out, wait, DeleteBlock, b, now)
		}
	}
	return out, wait
}

// due adds a request for a block that no other is under way for.
func (m *Memory) due(out []BlockRequest, wait time.Duration, verb BlockVerb, b *Block, now time.Time) ([]BlockRequest, time.Duration) {
	switch {
	case b == nil, b.Busy:
		return out, wait
	case b.RetryAt.After(now):
		return out, Sooner(wait, b.RetryAt.Sub(now))
	}
	return append(out, BlockRequest{Verb: verb, Name: b.Name, Block: b, Term: m.Term}), wait
}

// usedFor is how often it is seen whether a block of a pool that does not exist is still in use, whatever the watches show.
const usedFor = time.Minute

// blocksWithoutPool are the requests for the blocks of a pool that does not exist: those that are being deleted go, when
// what was granted from the pool can be on its way no more.
func (m *Memory) blocksWithoutPool(now time.Time, quarantine time.Duration) (out []BlockRequest, wait time.Duration) {
	if m.Carved.Count() == 0 {
		return nil, 0
	}
	if m.Carved.without.IsZero() {
		m.Carved.without = now
	}
	if wait := m.Carved.without.Add(quarantine).Sub(now); wait > 0 {
		return nil, wait
	}
	for _, b := range m.Carved.all() {
		switch {
		case !b.Deleting || !b.Protected:
		case m.UsedOf(b) > 0: // the end of the use wakes the pool
			wait = Sooner(wait, usedFor)
		default:
			out, wait = m.due(out, wait, ReleaseBlock, b, now)
		}
	}
	return out, wait
}

// rangeOnRecord is the block that status.blocks has under a name.
func (m *Memory) rangeOnRecord(name string) netip.Prefix {
	for _, on := range m.Base.PoolStatus().Blocks {
		if on.Allocation == name {
			p, _ := netip.ParsePrefix(on.Range)
			return p
		}
	}
	return netip.Prefix{}
}

// nextName is the next name for a block: nothing else has it, as far as is known.
func (m *Memory) nextName(asked map[string]struct{}, at time.Time) string {
	for n := 1; ; n++ {
		name := carve.Name(m.Key.Name, n)
		_, exists := m.Carved.Blocks[name]
		_, now := asked[name]
		if !exists && !now && !m.isTaken(name, at) && !m.isAsking(name) && !m.IsOpen(name) {
			return name
		}
	}
}

// BeginBlock notes that a request is under way.
func (m *Memory) BeginBlock(r BlockRequest) {
	if r.Verb == AskForBlock {
		if m.Carved.asking == nil {
			m.Carved.asking = map[string]netip.Prefix{}
		}
		m.Carved.asking[r.Name] = r.Pinned
	} else if b := m.known(r.Block); b != nil {
		b.Busy = true
	}
}

// EndBlock notes how a request went. It returns when it is made again, if it failed; zero: it did not.
func (m *Memory) EndBlock(r BlockRequest, err error, now time.Time, retry func(failures int) time.Duration) (again time.Time) {
	c := &m.Carved
	if r.Verb == AskForBlock {
		delete(c.asking, r.Name)
		if err == nil {
			c.askFailures, c.askAfter, c.askErr = 0, time.Time{}, ""
			return again
		}
		c.askAfter, c.askErr = now.Add(retry(c.askFailures)), err.Error()
		c.askFailures++
		return c.askAfter
	}
	b := m.known(r.Block)
	if b == nil {
		return again
	}
	if b.Busy = false; err == nil {
		b.Failures, b.RetryAt = 0, time.Time{}
		return again
	}
	b.RetryAt = now.Add(retry(b.Failures))
	b.Failures++
	return b.RetryAt
}

// takenFor is how long a name is not asked for that something else has.
const takenFor = 5 * time.Minute

func (m *Memory) isAsking(name string) bool {
	_, is := m.Carved.asking[name]
	return is
}

// askedFor reports whether a block is there, or being created, that is to have just these addresses.
func (m *Memory) askedFor(p netip.Prefix) bool {
	for _, pinned := range m.Carved.asking {
		if pinned == p {
			return true
		}
	}
	for _, b := range m.Carved.Blocks {
		if b.Pinned == p && !b.Deleting {
			return true
		}
	}
	return false
}

// TakenBlock notes that something else has the name of a block.
func (m *Memory) TakenBlock(name string, now time.Time) {
	if m.Carved.taken == nil {
		m.Carved.taken = map[string]time.Time{}
	}
	m.Carved.taken[name] = now.Add(takenFor)
}

func (m *Memory) isTaken(name string, now time.Time) bool { return m.Carved.taken[name].After(now) }

// IsOpenIn reports whether a block is open in a status, under its name or, where that may be another's, as what it is.
func (b *Block) IsOpenIn(s *v1alpha1.NetworkPoolStatus) bool {
	return slices.ContainsFunc(s.Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Allocation == b.Name && (!b.Abroad || on.UID == string(b.UID))
	})
}

// OpenIn reports whether a block is open in a status.
func OpenIn(s *v1alpha1.NetworkPoolStatus, name string) bool {
	return slices.ContainsFunc(s.Blocks, func(b v1alpha1.CarvedBlock) bool { return b.Allocation == name })
}

// HasBlocks reports whether a carved pool has something to give back before it may go.
func (m *Memory) HasBlocks() bool {
	if !m.isCarved() {
		return false
	}
	if len(m.Base.PoolStatus().Blocks) > 0 {
		return true
	}
	for _, b := range m.Carved.Blocks {
		if b.Protected {
			return true
		}
	}
	return len(m.Carved.asking) > 0
}
