package workers

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestJobsOfOwnerStartInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string](2)
		started := make(chan int, 5)
		finish := make(chan struct{})
		for i := range cap(started) {
			c.Submit("pool", func() { started <- i; <-finish })
		}
		var order []int
		for len(order) < cap(started) {
			synctest.Wait()
			if running := len(started); running == 0 || running > c.maxRunning {
				t.Fatalf("%d jobs started at once, want 1 to %d", running, c.maxRunning)
			}
			// The first jobs start together, in any order; each job that ends lets the next one start.
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
		if c.running != 0 || c.waitingOwners.Len() != 0 || len(c.owners) != 0 {
			t.Errorf("at rest %d work and %d owners wait, of %v", c.running, c.waitingOwners.Len(), c.owners)
		}
		c.Submit("pool", func() { started <- 0 })
		if <-started != 0 {
			t.Error("workers at rest do not take up work again")
		}
	})
}

// TestWorkersHaveAPlaceForEachPool checks that jobs of one pool that hang do not delay other pools, however many they
// are (W5).
func TestWorkersHaveAPlaceForEachPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string](3)
		slow, fast := "slow", "fast"
		hang := make(chan struct{})
		var hung atomic.Int64
		var done []int
		for range 10 {
			c.Submit(slow, func() { hung.Add(1); <-hang })
			synctest.Wait()
		}
		for i := range 5 {
			c.Submit(fast, func() { done = append(done, i) })
		}
		synctest.Wait()
		if int(hung.Load()) != c.maxRunning || !slices.Equal(done, []int{0, 1, 2, 3, 4}) {
			t.Errorf("%d of the slow pool hang, of the fast one %v are done", hung.Load(), done)
		}
		c.Submit(fast, func() { <-hang })
		c.Submit(fast, func() { done = append(done, 5) })
		synctest.Wait()
		if len(done) != 5 {
			t.Error("beside the shared places a pool has more than one")
		}
		close(hang)
		synctest.Wait()
		if hung.Load() != 10 || len(done) != 6 || c.running != 0 || c.waitingOwners.Len() != 0 {
			t.Errorf("%d of the slow pool ran, of the fast one %v; %d work and %d owners wait", hung.Load(), done, c.running, c.waitingOwners.Len())
		}
	})
}

// TestOwnersTakeTurns checks that the shared slots go to the owners by turns, and that the jobs of each start in the
// order of their submission.
func TestOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string](1)
		var mu sync.Mutex // jobs of several owners run at the same time
		var order []string
		finish := make(chan struct{})
		// Each owner has a job that hangs in its own slot, so that waiting jobs get the shared slot only.
		for _, owner := range []string{"first", "a", "b", "c"} {
			c.Submit(owner, func() { <-finish })
			synctest.Wait()
		}
		for _, owner := range []string{"a", "b", "c"} {
			for i := range 3 {
				c.Submit(owner, func() {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, fmt.Sprint(owner, i))
				})
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
		if len(c.owners) != 0 || c.waitingOwners.Len() != 0 {
			t.Errorf("%d owners are left", len(c.owners))
		}
	})
}

// TestFewJobsDoNotWaitForMany checks that, of two owners, one with few jobs does not wait for one with many.
func TestFewJobsDoNotWaitForMany(t *testing.T) {
	c := New[string](1)
	c.owners["many"], c.owners["few"] = &ownerQueue{running: 1}, &ownerQueue{running: 2}
	c.running = 3
	for range 100 {
		c.Submit("many", func() {})
	}
	c.Submit("few", func() {})
	c.running = 1 // the shared slot becomes free again and again, and each owner has another running job
	var turns []string
	for range 4 {
		of, _, more := c.finishJob("few")
		if !more {
			t.Fatalf("no owner has a turn after %v", turns)
		}
		turns = append(turns, of)
		c.owners["few"].running, c.running = 2, 1
	}
	if want := []string{"many", "few", "many", "many"}; !slices.Equal(turns, want) {
		t.Errorf("they have turns as %v, want %v", turns, want)
	}
}

// jobsOfAnOwner is the number of jobs of each owner in one iteration of BenchmarkManyOwners.
const jobsOfAnOwner = 256

// BenchmarkManyOwners measures the cost of finishing a job while many owners have many waiting jobs, as a thousand
// pools do after a restore. It must not depend on their number. The jobs run in the slots of their owners, or in
// shared ones.
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
							w.Submit([3]string{"NetworkPool", "ns", fmt.Sprint("pool-", o)}, func() {
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
