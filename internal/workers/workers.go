// Package workers runs jobs for owners that are not to wait for each other: the writes of pools, and of sites of Nodes.
package workers

import (
	"slices"
	"sync"
)

// Workers run jobs in the order they came, a bounded number at once. A job that waits is a closure, not
// a goroutine with a stack: hundreds wait in a burst.
//
// Each owner has a place of its own beside those that all share: jobs of one that hang, until their time is up, may
// take every place that is shared, and keep no other from going on.
type Workers[K comparable] struct {
	mu      sync.Mutex
	size    int
	working int
	// of is how many jobs of each owner are at work.
	of      map[K]int
	waiting []job[K]
}

// job is what is to be done for an owner.
type job[K comparable] struct {
	owner K
	do    func()
}

// New returns workers of which so many work at once, and one for each owner besides.
func New[K comparable](size int) *Workers[K] { return &Workers[K]{size: size} }

// Do runs a job of an owner as soon as a place is free. It returns at once.
func (c *Workers[K]) Do(owner K, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := job[K]{owner, do}
	if c.working >= c.size && c.of[owner] > 0 {
		c.waiting = append(c.waiting, j)
		return
	}
	c.begin(j)
	go c.work(j)
}

func (c *Workers[K]) begin(j job[K]) {
	if c.of == nil {
		c.of = map[K]int{}
	}
	c.working++
	c.of[j.owner]++
}

func (c *Workers[K]) work(j job[K]) {
	for {
		j.do()
		next, more := c.next(j)
		if !more {
			return
		}
		j = next
	}
}

// next ends a job and returns the one that takes its place, if any: the oldest of the same owner, where that has
// nothing else at work, else the oldest of all, where that place is not an owner's own.
func (c *Workers[K]) next(done job[K]) (job[K], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	if c.of[done.owner]--; c.of[done.owner] == 0 {
		delete(c.of, done.owner)
	}
	at := -1
	if c.of[done.owner] == 0 {
		at = slices.IndexFunc(c.waiting, func(j job[K]) bool { return j.owner == done.owner })
	}
	if at < 0 && c.working < c.size && len(c.waiting) > 0 {
		at = 0
	}
	if at < 0 {
		return job[K]{}, false
	}
	j := c.waiting[at]
	c.waiting[at] = job[K]{}
	if at == 0 {
		c.waiting = c.waiting[1:]
	} else {
		c.waiting = slices.Delete(c.waiting, at, at+1)
	}
	c.begin(j)
	return j, true
}
