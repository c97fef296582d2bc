// Package carve decides which blocks a carved pool has: what it asks its parent for, what it opens, drains, closes and
// gives back. It reads and writes nothing; the rule that it keeps is R13 in docs/design.md.
package carve

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// maxAsked is how many blocks a pool asks for at once.
const maxAsked = 8

// Block is a block of a carved pool: an IPAllocation, an entry of status.blocks, or both.
type Block struct {
	Name string
	// Exists: the IPAllocation is there. Deleting: it is being deleted. Protected: the pool's finalizer is on it.
	Exists, Deleting, Protected bool
	// Granted: it has its addresses, and nobody else has any of them. Verified: a read that began when this manager was
	// the holder has shown all that is said here.
	Granted, Verified bool
	// ByHand: a user has made it, and it stays until a user deletes it, or the pool.
	ByHand bool
	// Foreign: a pool of this name was carved from another parent once, which had the block; that parent has it deleted.
	Foreign bool
	// Waits: it may never be opened: a user has made it, or has paused it, and it has nothing; it was refused what it had
	// before; or somebody else has some of it.
	Waits bool
	// Refused: it asks for certain addresses and does not get them, so it is none of those that the pool has.
	Refused bool
	// Replaces: it is to have the addresses of an open block whose IPAllocation is gone, and somebody uses those.
	Replaces bool
	// Outdated: it has nothing yet, and asks for another size than the pool wants by now.
	Outdated bool
	// Open and Draining are as status.blocks has them. Replaced: another block has its addresses, and is to be open instead.
	// Taken: an IPAllocation with other addresses has its name. Asked: one is there that asks for its addresses.
	Open, Draining, Replaced, Taken, Asked bool
	// Used is how many addresses of it are in use or granted, Free how many can be granted. Rests: some are kept for a
	// while, or until a person decides.
	Used, Free int64
	Rests      bool
	// IdleSince is since when nothing of it is in use, zero where that is not on record.
	IdleSince time.Time
}

// Pool is what a carved pool wants.
type Pool struct {
	// Min and Max are how many blocks it has, Limit is how many may be on record as open, whoever made them; MinAvailable
	// is how many addresses it keeps ready.
	Min, Max     int
	Limit        int
	MinAvailable int64
	// Moved: clusterctl has taken blocks to another cluster, so none is asked for in their place.
	Moved bool
	// Deleting: the pool is being deleted. Paused: nothing is asked for and nothing is given back. Adopting: what is in use
	// is not all known yet (R10), so no block is closed or released either. NoNetwork: nobody knows which network the
	// addresses of a block live in, so none is opened.
	Deleting, Paused, Adopting, NoNetwork bool
	// PerBlock is how many addresses, or prefixes, claimants get from one block; 0: not known yet.
	PerBlock int64
	// Lack is how many more blocks those want that wait, as far as the last plan has looked at them. Waiting: some do wait, for
	// whatever reason.
	Lack    int
	Waiting bool
	// Grace is how long a block stays that nothing uses.
	Grace time.Duration
}

// Decision is what is to be done. Blocks are named.
type Decision struct {
	// Ask is how many more blocks the pool asks for; Again are those of which the IPAllocation is gone, which are asked
	// for with the addresses that they have.
	Ask   int
	Again []string
	// Open, Drain, Keep and Close are what status.blocks is to say: Keep ends the draining of a block.
	Open, Drain, Keep, Close []string
	// Look are the blocks to be read live, Protect those that want the pool's finalizer, Delete those to be deleted, and
	// Release those that the finalizer is taken off, each by a request of its own.
	Look, Protect, Delete, Release []string
	// Next is how long until a block has been idle for long enough; 0: no time brings anything.
	Next time.Duration
}

// Something reports whether there is anything to do now.
func (d Decision) Something() bool {
	for _, names := range [][]string{d.Again, d.Open, d.Drain, d.Keep, d.Close, d.Look, d.Protect, d.Delete, d.Release} {
		if len(names) > 0 {
			return true
		}
	}
	return d.Ask > 0
}

// Commits reports whether status.blocks is to say anything else, or a block is to be looked at for that.
func (d Decision) Commits() bool {
	return len(d.Open)+len(d.Drain)+len(d.Keep)+len(d.Close)+len(d.Look) > 0
}

// Decide decides on the blocks of a pool, given in any order. What depends on status.blocks is decided on what is on
// record: a block is deleted only after it is on record as draining, and released only after it is on record no more.
func Decide(p Pool, blocks []Block, now time.Time) Decision {
	slices.SortFunc(blocks, func(a, b Block) int { return cmp.Or(len(a.Name)-len(b.Name), cmp.Compare(a.Name, b.Name)) })
	d := settled(p, blocks)
	open := 0
	for _, b := range blocks {
		if b.Open && !b.Replaced {
			open++
		}
	}
	room := max(p.Limit-open, 0)
	if p.NoNetwork {
		room = 0
	}
	d.Open = first(d.Open, room)
	d.Look = first(d.Look, room-len(d.Open)) // of what is not opened, nothing need be known
	if p.Adopting {
		d.Close, d.Release = nil, nil
	}
	if p.Paused || p.Moved {
		d.Again = nil
	}
	if p.Paused || p.Adopting {
		return d
	}
	if p.Deleting {
		d.giveAllBack(p, blocks)
		return d
	}
	n := d.count(p, blocks)
	lack := p.Lack
	if short := p.MinAvailable - n.available; short > 0 {
		lack = max(lack, blocksFor(short, p.PerBlock))
	}
	if ask := min(max(lack-n.coming, p.Min-n.have), p.Max-n.have-n.leaving, maxAsked); ask > 0 {
		d.Ask = ask
	}
	if d.Ask == 0 && lack == 0 {
		d.shrink(p, blocks, n, now)
	}
	return d
}

// Lost are the open blocks that a pool is to grant nothing more from, whatever it wants: the IPAllocation is gone or is
// being deleted, or does not show that the block is the pool's alone.
func Lost(p Pool, blocks []Block) []string {
	d := settled(p, blocks)
	return slices.Concat(d.Drain, d.Close)
}

func settled(p Pool, blocks []Block) (d Decision) {
	for _, b := range blocks {
		d.settle(p, b)
	}
	return d
}

// numbers are how many blocks a pool has, how many of them are not open yet, how many more are open and on their way out,
// and how many addresses can be granted.
type numbers struct {
	have, coming, leaving int
	available             int64
}

// count counts blocks, and deletes those that are of no use whatever the pool wants: a drained one was decided upon
// before, and the delete may be on its way.
func (d *Decision) count(p Pool, blocks []Block) (n numbers) {
	for _, b := range blocks {
		switch {
		case b.Foreign:
		case b.Deleting, !b.Exists:
			if b.Open {
				n.leaving++
			}
		case b.Outdated:
			d.Delete = append(d.Delete, b.Name)
		case b.Open && b.Draining && !b.ByHand && p.mayGo(b):
			d.Delete = append(d.Delete, b.Name)
			n.leaving++
		case b.Waits && (b.ByHand || b.Refused):
		default:
			n.have++
			switch {
			case !b.Open && !b.Waits:
				n.coming++
			case b.Open && !b.Draining:
				n.available = plus(n.available, b.Free)
			}
		}
	}
	return n
}

// mayGo reports whether nothing of a block is needed. What rests after a release is the pool's to keep, and ends with the
// pool.
func (p Pool) mayGo(b Block) bool { return b.Used == 0 && (p.Deleting || !b.Rests) }

// settle decides what a block comes to by itself, whatever the pool wants.
func (d *Decision) settle(p Pool, b Block) {
	if b.Open && b.Exists && !b.Deleting && !b.Protected { // somebody has written other finalizers over ours
		d.Protect = append(d.Protect, b.Name)
	}
	switch {
	case b.Open && !b.Exists:
		d.drainOrClose(p, b)
		if b.Draining && b.Used > 0 && !b.Replaced && !b.Taken && !b.Asked {
			d.Again = append(d.Again, b.Name)
		}
	case b.Open && b.Deleting:
		d.drainOrClose(p, b)
	case b.Open && !b.Granted:
		if !b.Draining {
			d.Drain = append(d.Drain, b.Name)
		}
	case b.Open:
		// It drained for a while because it was not granted. One that the pool gives back is empty, and goes.
		if b.Draining && !p.Deleting && (b.Used > 0 || b.ByHand) {
			d.Keep = append(d.Keep, b.Name)
		}
	case !b.Exists:
	case b.Deleting:
		if b.Protected && p.mayGo(b) {
			d.Release = append(d.Release, b.Name)
		}
	case !b.Granted:
	case !b.Protected:
		d.Protect = append(d.Protect, b.Name)
	case !b.Verified:
		d.Look = append(d.Look, b.Name)
	default:
		d.Open = append(d.Open, b.Name)
	}
}

// drainOrClose goes the next step of a block that the pool is to have no more.
func (d *Decision) drainOrClose(p Pool, b Block) {
	switch {
	case !b.Draining:
		d.Drain = append(d.Drain, b.Name)
	case p.mayGo(b):
		d.Close = append(d.Close, b.Name)
	}
}

// giveAllBack gives back every block that nothing uses. What replaces a lost block is opened in its place, and goes with it.
func (d *Decision) giveAllBack(p Pool, blocks []Block) {
	opens := d.Open
	d.Open = nil
	for _, b := range blocks {
		if b.Replaces && slices.Contains(opens, b.Name) {
			d.Open = append(d.Open, b.Name)
		}
		switch {
		case !b.Exists, b.Deleting, b.Replaces:
		case b.Open && !b.Draining:
			d.Drain = append(d.Drain, b.Name)
		case p.mayGo(b):
			d.Delete = append(d.Delete, b.Name)
		}
	}
}

// shrink gives back blocks that nothing has used for the grace, as long as the pool keeps what it is to have. A block is
// drained first, and deleted when that is on record.
func (d *Decision) shrink(p Pool, blocks []Block, n numbers, now time.Time) {
	for _, b := range slices.Backward(blocks) {
		if p.Waiting && !b.Open { // it may be what they wait for: asked for again at once, it would go and come for ever
			continue
		}
		if b.Deleting || b.Draining || b.Outdated || b.ByHand || b.Foreign || !b.Exists || slices.Contains(d.Open, b.Name) || slices.Contains(d.Drain, b.Name) {
			continue
		}
		if (n.have <= p.Min && !b.Refused) || !p.mayGo(b) || b.Replaces || b.IdleSince.IsZero() {
			continue
		}
		if b.Open && n.available-b.Free < p.MinAvailable {
			continue
		}
		if wait := b.IdleSince.Add(p.Grace).Sub(now); wait > 0 {
			if d.Next == 0 || wait < d.Next {
				d.Next = wait
			}
			continue
		}
		if !b.Refused { // it is none of those that the pool has
			n.have--
		}
		if b.Open {
			n.available -= b.Free
			d.Drain = append(d.Drain, b.Name)
		} else {
			d.Delete = append(d.Delete, b.Name)
		}
	}
}

// blocksFor is how many blocks hold n addresses: one, where nobody knows yet what a block holds.
func blocksFor(n, perBlock int64) int {
	if perBlock <= 0 {
		return 1
	}
	return int(min((n-1)/perBlock+1, math.MaxInt32))
}

// first are the first n names.
func first(names []string, n int) []string {
	if n == 0 {
		return nil
	}
	return names[:min(len(names), n)]
}

func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Lack counts how many blocks those need that wait. Each asks for so many addresses in a row: they are laid into blocks
// one after the other, so it is never too few. The zero value is that of nobody.
type Lack struct {
	Blocks int
	left   int64
}

// Add adds one who waits for n addresses of blocks that hold perBlock. Nobody is added who asks for more than a block
// holds.
func (l *Lack) Add(n, perBlock int64) {
	switch {
	case n > perBlock:
	case n <= l.left:
		l.left -= n
	default:
		l.Blocks, l.left = l.Blocks+1, perBlock-n
	}
}
