// Package carve decides which blocks a carved pool has: which ones it requests from its parent, and which ones it
// opens, drains, closes and releases. It reads and writes nothing. The rule that it implements is R13 (a block is
// open on record) in docs/design.md.
package carve

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// maxRequestedBlocks is the maximum number of blocks that a pool requests at once.
const maxRequestedBlocks = 8

// Block is a block of a carved pool: an IPAllocation, an entry of status.blocks, or both.
type Block struct {
	Name string
	// Exists reports whether the IPAllocation exists; Deleting reports whether it is being deleted; Protected reports
	// whether the pool's finalizer is on it.
	Exists, Deleting, Protected bool
	// Granted reports whether it has its addresses, and no other claimant has any of them. Verified reports whether a
	// read that began in the current term of this manager has shown the state of this block.
	Granted, Verified bool
	// UserCreated reports whether a user created it; it then stays until a user deletes it, or the pool.
	UserCreated bool
	// FromOtherParent reports whether it belongs to another parent, which a pool of this name was carved from earlier
	// and which deletes it.
	FromOtherParent bool
	// CannotOpen reports whether it can never be opened: a user created or paused it, and it has no addresses; or the
	// addresses that it had before were refused; or another claimant has some of them.
	CannotOpen bool
	// Refused reports whether it requests certain addresses and does not get them. It then does not count as a block
	// of the pool.
	Refused bool
	// ReplacesLost reports whether it is meant to have the addresses of an open block whose IPAllocation is gone, and
	// those addresses are in use.
	ReplacesLost bool
	// Outdated reports whether it has no addresses yet, and requests another size than the pool wants now.
	Outdated bool
	// Open and Draining are the state in status.blocks. Replaced reports whether another block has its addresses and
	// will be opened in its place; NameTaken reports whether an IPAllocation with other addresses has its name;
	// Requested reports whether an IPAllocation that requests its addresses exists.
	Open, Draining, Replaced, NameTaken, Requested bool
	// Used is how many of its addresses are in use or granted, Free is how many can be granted. HasCoolingOrHeld
	// reports whether some are cooling, or held until a user decides.
	Used, Free       int64
	HasCoolingOrHeld bool
	// IdleSince is the time since when nothing of it is in use, zero if that is not on record.
	IdleSince time.Time
}

// Pool is the desired state of a carved pool.
type Pool struct {
	// MinBlocks and MaxBlocks limit the number of its blocks; MaxOpen limits the number of blocks that are on record
	// as open, including those that users created; MinAvailable is the number of addresses to keep available.
	MinBlocks, MaxBlocks int
	MaxOpen              int
	MinAvailable         int64
	// Moved reports whether clusterctl has moved blocks to another cluster, so none is requested in their place.
	Moved bool
	// Deleting reports whether the pool is being deleted. Paused reports whether nothing may be requested or
	// released. Adopting reports whether the addresses in use are not all known yet (R10: a pool without a record of
	// an allocator waits), so no block is closed or released either. NetworkUnknown reports whether the network of
	// the addresses of a block is not known, so none is opened.
	Deleting, Paused, Adopting, NetworkUnknown bool
	// AddressesPerBlock is how many addresses, or prefixes, one block provides to claimants; 0 if that is not known
	// yet.
	AddressesPerBlock int64
	// Shortfall is how many more blocks the waiting claimants need, as far as the last plan has processed them.
	// HasWaiting reports whether any claimant waits, for whatever reason.
	Shortfall  int
	HasWaiting bool
	// IdleGrace is how long a block that is not in use stays.
	IdleGrace time.Duration
}

// Decision contains the next steps, with blocks by name.
type Decision struct {
	// NewBlocks is how many more blocks the pool requests. Recreate are the blocks whose IPAllocation is gone, which
	// are requested again with the addresses that they have.
	NewBlocks int
	Recreate  []string
	// Open, Drain, EndDraining and Close are the changes of status.blocks; EndDraining ends the draining of a block.
	Open, Drain, EndDraining, Close []string
	// Verify are the blocks to read live, Protect are those that need the pool's finalizer, Delete are those to
	// delete, and Release are those to remove the finalizer from. Each takes a request of its own.
	Verify, Protect, Delete, Release []string
	// NextWait is the time until a block has been idle for long enough, 0 if waiting changes nothing.
	NextWait time.Duration
}

// HasWork reports whether there is anything to do now.
func (d Decision) HasWork() bool {
	for _, names := range [][]string{d.Recreate, d.Open, d.Drain, d.EndDraining, d.Close, d.Verify, d.Protect, d.Delete, d.Release} {
		if len(names) > 0 {
			return true
		}
	}
	return d.NewBlocks > 0
}

// NeedsCommit reports whether status.blocks must change, or a block must be read for that.
func (d Decision) NeedsCommit() bool {
	return len(d.Open)+len(d.Drain)+len(d.EndDraining)+len(d.Close)+len(d.Verify) > 0
}

// DecideBlocks decides on the blocks of a pool, given in any order. It sorts blocks in place. What depends on
// status.blocks is decided on what is on record: a block is deleted only after it is on record as draining, and
// released only after it is no longer on record.
func DecideBlocks(p Pool, blocks []Block, now time.Time) Decision {
	slices.SortFunc(blocks, func(a, b Block) int { return cmp.Or(len(a.Name)-len(b.Name), cmp.Compare(a.Name, b.Name)) })
	d := settleBlocks(p, blocks)
	open := 0
	for _, b := range blocks {
		if b.Open && !b.Replaced {
			open++
		}
	}
	room := max(p.MaxOpen-open, 0)
	if p.NetworkUnknown {
		room = 0
	}
	d.Open = firstNames(d.Open, room)
	d.Verify = firstNames(d.Verify, room-len(d.Open)) // blocks that cannot be opened need not be verified
	if p.Adopting {
		d.Close, d.Release = nil, nil
	}
	if p.Paused || p.Moved {
		d.Recreate = nil
	}
	if p.Paused || p.Adopting {
		return d
	}
	if p.Deleting {
		d.releaseUnusedBlocks(p, blocks)
		return d
	}
	n := d.countBlocks(p, blocks)
	shortfall := p.Shortfall
	if short := p.MinAvailable - n.available; short > 0 {
		shortfall = max(shortfall, blocksForAddresses(short, p.AddressesPerBlock))
	}
	if ask := min(max(shortfall-n.opening, p.MinBlocks-n.owned), p.MaxBlocks-n.owned-n.leaving, maxRequestedBlocks); ask > 0 {
		d.NewBlocks = ask
	}
	if d.NewBlocks == 0 && shortfall == 0 {
		d.releaseIdleBlocks(p, blocks, n, now)
	}
	return d
}

// LostBlocks returns the open blocks from which a pool must grant nothing more, whatever the pool wants: the
// IPAllocation is gone or is being deleted, or does not show that the block belongs to the pool alone.
func LostBlocks(p Pool, blocks []Block) []string {
	d := settleBlocks(p, blocks)
	return slices.Concat(d.Drain, d.Close)
}

func settleBlocks(p Pool, blocks []Block) (d Decision) {
	for _, b := range blocks {
		d.settleBlock(p, b)
	}
	return d
}

// blockCounts counts the blocks that a pool has (owned), those of them that are not open yet (opening), other blocks
// that are open and on their way out (leaving), and the addresses that can be granted (available).
type blockCounts struct {
	owned, opening, leaving int
	available               int64
}

// countBlocks counts blocks, and deletes those that are of no use whatever the pool wants: the draining of an unused
// block was decided earlier, and its delete may be in flight.
func (d *Decision) countBlocks(p Pool, blocks []Block) (n blockCounts) {
	for _, b := range blocks {
		switch {
		case b.FromOtherParent:
		case b.Deleting, !b.Exists:
			if b.Open {
				n.leaving++
			}
		case b.Outdated:
			d.Delete = append(d.Delete, b.Name)
		case b.Open && b.Draining && !b.UserCreated && p.isUnused(b):
			d.Delete = append(d.Delete, b.Name)
			n.leaving++
		case b.CannotOpen && (b.UserCreated || b.Refused):
		default:
			n.owned++
			switch {
			case !b.Open && !b.CannotOpen:
				n.opening++
			case b.Open && !b.Draining:
				n.available = addSaturating(n.available, b.Free)
			}
		}
	}
	return n
}

// isUnused reports whether nothing of a block is needed. Cooling and held addresses must be kept as long as the pool
// exists.
func (p Pool) isUnused(b Block) bool { return b.Used == 0 && (p.Deleting || !b.HasCoolingOrHeld) }

// settleBlock decides on a block what does not depend on what the pool wants.
func (d *Decision) settleBlock(p Pool, b Block) {
	if b.Open && b.Exists && !b.Deleting && !b.Protected { // another writer overwrote our finalizer
		d.Protect = append(d.Protect, b.Name)
	}
	switch {
	case b.Open && !b.Exists:
		d.drainOrClose(p, b)
		if b.Draining && b.Used > 0 && !b.Replaced && !b.NameTaken && !b.Requested {
			d.Recreate = append(d.Recreate, b.Name)
		}
	case b.Open && b.Deleting:
		d.drainOrClose(p, b)
	case b.Open && !b.Granted:
		if !b.Draining {
			d.Drain = append(d.Drain, b.Name)
		}
	case b.Open:
		// It drained for a while because it was not granted. A block that the pool releases is empty, and is deleted.
		if b.Draining && !p.Deleting && (b.Used > 0 || b.UserCreated) {
			d.EndDraining = append(d.EndDraining, b.Name)
		}
	case !b.Exists:
	case b.Deleting:
		if b.Protected && p.isUnused(b) {
			d.Release = append(d.Release, b.Name)
		}
	case !b.Granted:
	case !b.Protected:
		d.Protect = append(d.Protect, b.Name)
	case !b.Verified:
		d.Verify = append(d.Verify, b.Name)
	default:
		d.Open = append(d.Open, b.Name)
	}
}

// drainOrClose takes the next step towards closing a block: drain it, then close it when it is unused.
func (d *Decision) drainOrClose(p Pool, b Block) {
	switch {
	case !b.Draining:
		d.Drain = append(d.Drain, b.Name)
	case p.isUnused(b):
		d.Close = append(d.Close, b.Name)
	}
}

// releaseUnusedBlocks releases every unused block. A replacement of a lost block is opened in its place, and released
// with it.
func (d *Decision) releaseUnusedBlocks(p Pool, blocks []Block) {
	opens := d.Open
	d.Open = nil
	for _, b := range blocks {
		if b.ReplacesLost && slices.Contains(opens, b.Name) {
			d.Open = append(d.Open, b.Name)
		}
		switch {
		case !b.Exists, b.Deleting, b.ReplacesLost:
		case b.Open && !b.Draining:
			d.Drain = append(d.Drain, b.Name)
		case p.isUnused(b):
			d.Delete = append(d.Delete, b.Name)
		}
	}
}

// releaseIdleBlocks releases blocks that have not been used for the grace period, as long as the pool keeps its
// minimum. A block is drained first, and deleted when that is on record.
func (d *Decision) releaseIdleBlocks(p Pool, blocks []Block, n blockCounts, now time.Time) {
	for _, b := range slices.Backward(blocks) {
		if p.HasWaiting && !b.Open { // it may be what they wait for: it would be requested and released for ever
			continue
		}
		if b.Deleting || b.Draining || b.Outdated || b.UserCreated || b.FromOtherParent || !b.Exists || slices.Contains(d.Open, b.Name) || slices.Contains(d.Drain, b.Name) {
			continue
		}
		if (n.owned <= p.MinBlocks && !b.Refused) || !p.isUnused(b) || b.ReplacesLost || b.IdleSince.IsZero() {
			continue
		}
		if b.Open && n.available-b.Free < p.MinAvailable {
			continue
		}
		if wait := b.IdleSince.Add(p.IdleGrace).Sub(now); wait > 0 {
			if d.NextWait == 0 || wait < d.NextWait {
				d.NextWait = wait
			}
			continue
		}
		if !b.Refused { // it does not count as one of the pool's
			n.owned--
		}
		if b.Open {
			n.available -= b.Free
			d.Drain = append(d.Drain, b.Name)
		} else {
			d.Delete = append(d.Delete, b.Name)
		}
	}
}

// blocksForAddresses returns how many blocks hold n addresses; 1 if the size of a block is not known yet.
func blocksForAddresses(n, perBlock int64) int {
	if perBlock <= 0 {
		return 1
	}
	return int(min((n-1)/perBlock+1, math.MaxInt32))
}

// firstNames returns the first n names.
func firstNames(names []string, n int) []string {
	if n == 0 {
		return nil
	}
	return names[:min(len(names), n)]
}

func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Shortfall counts how many blocks the waiting claimants need. Each claimant requests a number of contiguous
// addresses: they are laid into blocks one after the other, so the count is never too small. The zero value is that
// of no claimant.
type Shortfall struct {
	Blocks    int
	remaining int64
}

// Add adds a claimant that waits for n addresses from blocks of perBlock addresses. It ignores a claimant that
// requests more than a block holds.
func (l *Shortfall) Add(n, perBlock int64) {
	switch {
	case n > perBlock:
	case n <= l.remaining:
		l.remaining -= n
	default:
		l.Blocks, l.remaining = l.Blocks+1, perBlock-n
	}
}
