package allocator

import (
	"slices"
	"testing"
	"testing/synctest"
)

func TestCrew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew{size: 2}
		started := make(chan int, 5)
		finish := make(chan struct{})
		for i := range cap(started) {
			c.do(func() { started <- i; <-finish })
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
		if c.working != 0 || len(c.waiting) != 0 {
			t.Errorf("at rest %d work and %d wait", c.working, len(c.waiting))
		}
		c.do(func() { started <- 0 })
		if <-started != 0 {
			t.Error("a crew at rest does not take up work again")
		}
	})
}
