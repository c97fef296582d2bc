package allocator

import "sync"

// crew runs jobs in the order they came, a bounded number at once. A job that waits is a closure, not
// a goroutine with a stack: hundreds wait in a burst.
type crew struct {
	mu      sync.Mutex
	size    int
	working int
	waiting []func()
}

// do runs a job as soon as a place is free. It returns at once.
func (c *crew) do(job func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, job)
	if c.working < c.size {
		c.working++
		go c.work()
	}
}

func (c *crew) work() {
	for {
		c.mu.Lock()
		if len(c.waiting) == 0 {
			c.working--
			c.mu.Unlock()
			return
		}
		job := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		job()
	}
}
