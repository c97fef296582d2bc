package allocator

import (
	"slices"
	"sync"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// workers run jobs in the order they came, a bounded number at once. A job that waits is a closure, not
// a goroutine with a stack: hundreds wait in a burst.
//
// Each pool has a place of its own beside those that all share: jobs of one pool that hang, until their time is up, may
// take every place that is shared, and keep no other pool from going on.
type workers struct {
	mu      sync.Mutex
	size    int
	working int
	// of is how many jobs of each pool are at work.
	of      map[pools.Key]int
	waiting []job
}

// job is what is to be done for a pool.
type job struct {
	pool pools.Key
	do   func()
}

// do runs a job of a pool as soon as a place is free. It returns at once.
func (c *workers) do(pool pools.Key, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := job{pool, do}
	if c.working >= c.size && c.of[pool] > 0 {
		c.waiting = append(c.waiting, j)
		return
	}
	c.begin(j)
	go c.work(j)
}

func (c *workers) begin(j job) {
	if c.of == nil {
		c.of = map[pools.Key]int{}
	}
	c.working++
	c.of[j.pool]++
}

func (c *workers) work(j job) {
	for {
		j.do()
		next, more := c.next(j)
		if !more {
			return
		}
		j = next
	}
}

// next ends a job and returns the one that takes its place, if any: the oldest of the same pool, where that has
// nothing else at work, else the oldest of all, where that place is not a pool's own.
func (c *workers) next(done job) (job, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	if c.of[done.pool]--; c.of[done.pool] == 0 {
		delete(c.of, done.pool)
	}
	at := -1
	if c.of[done.pool] == 0 {
		at = slices.IndexFunc(c.waiting, func(j job) bool { return j.pool == done.pool })
	}
	if at < 0 && c.working < c.size && len(c.waiting) > 0 {
		at = 0
	}
	if at < 0 {
		return job{}, false
	}
	j := c.waiting[at]
	c.waiting[at] = job{}
	if at == 0 {
		c.waiting = c.waiting[1:]
	} else {
		c.waiting = slices.Delete(c.waiting, at, at+1)
	}
	c.begin(j)
	return j, true
}
