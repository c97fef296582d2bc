package workers

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string](2)
		started := make(chan int, 5)
		finish := make(chan struct{})
		for i := range cap(started) {
			c.Do("pool", func() { started <- i; <-finish })
		}
		var order []int
		for len(order) < cap(started) {
			synctest.Wait()
			if running := len(started); running == 0 || running > c.size {
				t.Fatalf("%d jobs started at once, want 1 to %d", running, c.size)
			}
			// The first ones start together, in any order; each that ends lets the next one start.
			batch := []int{}
			for len(started) > 0 {
				batch = append(batch, <-started)
			}
			slices.Sort(batch)
			order = append(order, batch...)
			finish <- struct{}{}
		}
		finish <- struct{}{}
		synctest.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("started in the order %v", order)
		}
		if c.working != 0 || len(c.waiting) != 0 || len(c.of) != 0 {
			t.Errorf("at rest %d work and %d wait, of %v", c.working, len(c.waiting), c.of)
		}
		c.Do("pool", func() { started <- 0 })
		if <-started != 0 {
			t.Error("workers at rest do not take up work again")
		}
	})
}

// W5: jobs of one pool that hang take no other pool's place, however many they are.
func TestWorkersHaveAPlaceForEachPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string](3)
		slow, fast := "slow", "fast"
		hang := make(chan struct{})
		var hung atomic.Int64
		var done []int
		for range 10 {
			c.Do(slow, func() { hung.Add(1); <-hang })
			synctest.Wait()
		}
		for i := range 5 {
			c.Do(fast, func() { done = append(done, i) })
		}
		synctest.Wait()
		if int(hung.Load()) != c.size || !slices.Equal(done, []int{0, 1, 2, 3, 4}) {
			t.Errorf("%d of the slow pool hang, of the fast one %v are done", hung.Load(), done)
		}
		c.Do(fast, func() { <-hang })
		c.Do(fast, func() { done = append(done, 5) })
		synctest.Wait()
		if len(done) != 5 {
			t.Error("beside the shared places a pool has more than one")
		}
		close(hang)
		synctest.Wait()
		if hung.Load() != 10 || len(done) != 6 || c.working != 0 || len(c.waiting) != 0 {
			t.Errorf("%d of the slow pool ran, of the fast one %v; %d work and %d wait", hung.Load(), done, c.working, len(c.waiting))
		}
	})
}
