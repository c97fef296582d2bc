// Package workers runs jobs for owners that are not to wait for each other: the writes of pools, and of sites of Nodes.
package workers

import (
	"container/list"
	"sync"
)

// Workers run jobs, a bounded number at once: those of an owner in the order they came, and owners by turns. A job that
// waits is a closure, not a goroutine with a stack: hundreds wait in a burst.
//
// Each owner has a place of its own beside those that all share: jobs of one that hang, until their time is up, may
// take every place that is shared, and keep no other from going on.
//
// A job costs the same however many wait, and of however many owners: a thousand pools have much to write after a restore.
type Workers[K comparable] struct {
	mu      sync.Mutex
	size    int
	working int
	// owners are those that have a job at work, or one that waits.
	owners map[K]*owner
	// turns are the owners that have jobs that wait, the next one first.
	turns list.List
}

// owner is what an owner has to do.
type owner struct {
	// working is how many of its jobs are at work.
	working int
	// waiting are its other jobs, the oldest one first.
	waiting []func()
	// turn is its place among those that wait, nil if it has no job that waits.
	turn *list.Element
}

// New returns workers of which so many work at once, and one for each owner besides.
func New[K comparable](size int) *Workers[K] { return &Workers[K]{size: size, owners: map[K]*owner{}} }

// Do runs a job of an owner as soon as a place is free. It returns at once.
func (c *Workers[K]) Do(of K, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.owners[of]
	if o == nil {
		o = &owner{}
		c.owners[of] = o
	}
	if c.working >= c.size && o.working > 0 {
		o.waiting = append(o.waiting, do)
		if o.turn == nil {
			o.turn = c.turns.PushBack(of)
		}
		return
	}
	c.begin(o)
	go c.work(of, do)
}

func (c *Workers[K]) begin(o *owner) {
	c.working++
	o.working++
}

func (c *Workers[K]) work(of K, do func()) {
	for more := true; more; {
		do()
		of, do, more = c.next(of)
	}
}

// next ends a job of an owner and returns the one that takes its place, if any: the oldest of the same owner, where that
// has nothing else at work, else the oldest of the owner whose turn it is, where that place is not an owner's own.
func (c *Workers[K]) next(done K) (of K, do func(), more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	o := c.owners[done]
	o.working--
	switch {
	case o.working == 0 && o.turn != nil:
		return done, c.take(done, o), true
	case o.working == 0:
		delete(c.owners, done)
	}
	if c.working >= c.size || c.turns.Len() == 0 {
		return of, nil, false
	}
	of = c.turns.Front().Value.(K)
	return of, c.take(of, c.owners[of]), true
}

// take begins the oldest job of an owner that waits. The other owners have their turn before its next one.
func (c *Workers[K]) take(of K, o *owner) func() {
	do := o.waiting[0]
	o.waiting[0] = nil
	o.waiting = o.waiting[1:]
	c.turns.Remove(o.turn)
	o.turn = nil
	if len(o.waiting) > 0 {
		o.turn = c.turns.PushBack(of)
	}
	c.begin(o)
	return do
}
