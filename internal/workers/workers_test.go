package workers

import (
	"fmt"
	"slices"
	"sync"
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
		if c.working != 0 || c.turns.Len() != 0 || len(c.owners) != 0 {
			t.Errorf("at rest %d work and %d owners wait, of %v", c.working, c.turns.Len(), c.owners)
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
		if hung.Load() != 10 || len(done) != 6 || c.working != 0 || c.turns.Len() != 0 {
			t.Errorf("%d of the slow pool ran, of the fast one %v; %d work and %d owners wait", hung.Load(), done, c.working, c.turns.Len())
		}
	})
}

// The shared places go to the owners by turns, and the jobs of each begin in the order they came.
func TestOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string](1)
		var order []string
		finish := make(chan struct{})
		// Each has a job that hangs in the place of its own: what waits gets no place but the shared one.
		for _, owner := range []string{"first", "a", "b", "c"} {
			c.Do(owner, func() { <-finish })
			synctest.Wait()
		}
		for _, owner := range []string{"a", "b", "c"} {
			for i := range 3 {
				c.Do(owner, func() { order = append(order, fmt.Sprint(owner, i)) })
			}
		}
		close(finish)
		synctest.Wait()
		for _, owner := range []string{"a", "b", "c"} {
			own := slices.DeleteFunc(slices.Clone(order), func(s string) bool { return s[:1] != owner })
			if !slices.Equal(own, []string{owner + "0", owner + "1", owner + "2"}) {
				t.Errorf("the jobs of %s began in the order %v", owner, own)
			}
		}
		if len(c.owners) != 0 || c.turns.Len() != 0 {
			t.Errorf("%d owners are left", len(c.owners))
		}
	})
}

// Of two owners, one with many jobs and one with few, the few do not wait for the many.
func TestFewJobsDoNotWaitForMany(t *testing.T) {
	c := New[string](1)
	c.owners["many"], c.owners["few"] = &owner{working: 1}, &owner{working: 2}
	c.working = 3
	for range 100 {
		c.Do("many", func() {})
	}
	c.Do("few", func() {})
	c.working = 1 // the place that is shared becomes free, again and again, and each owner has another job at work
	var turns []string
	for range 4 {
		of, _, more := c.next("few")
		if !more {
			t.Fatalf("no owner has a turn after %v", turns)
		}
		turns = append(turns, of)
		c.owners["few"].working, c.working = 2, 1
	}
	if want := []string{"many", "few", "many", "many"}; !slices.Equal(turns, want) {
		t.Errorf("they have turns as %v, want %v", turns, want)
	}
}

// jobsOfAnOwner are those of each in a part of BenchmarkManyOwners.
const jobsOfAnOwner = 256

// What it takes to end a job where many owners have many that wait, as a thousand pools after a restore: the same, however
// many there are. Their jobs go on in the places of their owners, or in those that are shared.
func BenchmarkManyOwners(b *testing.B) {
	for _, owners := range []int{10, 100, 1000} {
		for name, size := range map[string]int{"own": 16, "shared": 2 * owners} {
			b.Run(fmt.Sprint(owners, "/", name), func(b *testing.B) {
				for b.Loop() {
					w := New[[3]string](size)
					var wg sync.WaitGroup
					hold := make(chan struct{})
					wg.Add(jobsOfAnOwner * owners)
					for j := range jobsOfAnOwner {
						for o := range owners {
							w.Do([3]string{"NetworkPool", "ns", fmt.Sprint("pool-", o)}, func() {
								if j < 2 {
									<-hold
								}
								wg.Done()
							})
						}
					}
					close(hold)
					wg.Wait()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(jobsOfAnOwner*owners), "ns/job")
			})
		}
	}
}
