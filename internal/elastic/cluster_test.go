package elastic

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
)

// cluster is a workload cluster, the manager that plans for it, and the allocator that has addresses for it. Each of
// them acts only when the test calls it, so that they can act in any order. The test sets the time.
type cluster struct {
	fakeMetalLB
	now        time.Time
	settings   PlanSettings
	grows      [2]bool
	template   Pool   // our pool, without ranges
	theirs     []Pool // pools of other owners
	blocks     []Block
	free       []netip.Addr // the free addresses of the allocator, sorted
	names      int
	plan       Plan // the latest one
	writes     int
	log        strings.Builder
	violations []string // broken promises
}

func newCluster(s PlanSettings, initial int64, free ...string) *cluster {
	c := &cluster{now: epoch, settings: s, grows: [2]bool{true, true}, template: ours()}
	for _, r := range spans(free) {
		for a := r.From(); r.Contains(a); a = a.Next() {
			c.free = append(c.free, a)
		}
	}
	slices.SortFunc(c.free, netip.Addr.Compare)
	if initial > 0 {
		c.blocks = []Block{{Name: "lb", Count: initial}}
		c.allocate()
	}
	c.project()
	c.log.Reset()
	c.writes = 0
	return c
}

func (c *cluster) logf(format string, args ...any) {
	c.writes++
	at := time.Time{}.Add(c.now.Sub(epoch)).Format("15:04:05")
	fmt.Fprintf(&c.log, "%s %s\n", at, fmt.Sprintf(format, args...))
}

func (c *cluster) failf(format string, args ...any) {
	c.violations = append(c.violations, fmt.Sprintf(format, args...))
}

func (c *cluster) create(services ...Service) {
	for i := range services {
		s := services[i]
		s.Created = c.now.Add(time.Duration(len(c.services)))
		c.services = append(c.services, &s)
	}
}

// remove deletes a Service. The remaining Services may be served better afterwards.
func (c *cluster) remove(name string) {
	c.services = slices.DeleteFunc(c.services, func(s *Service) bool { return s.Name == name })
}

// serve runs MetalLB once.
func (c *cluster) serve() {
	before := map[*Service]string{}
	for _, s := range c.services {
		before[s] = fmt.Sprint(s.Addresses)
	}
	c.pass()
	for _, s := range c.services {
		if addresses := fmt.Sprint(s.Addresses); addresses != before[s] {
			c.logf("%s has %s", s.Name, addresses)
		}
	}
}

// manage runs the manager once: it assesses, plans and writes.
func (c *cluster) manage() {
	a := c.assess()
	c.plan = PlanBlocks(a, c.blocks, c.settings, c.now)
	c.checkPlan()
	for i := range c.blocks {
		b := &c.blocks[i]
		for _, m := range c.plan.UsageChanges {
			if m.Block == b.Name {
				b.IdleSince = m.IdleSince
				c.logf("%s is %s", b.Name, map[bool]string{true: "in use", false: "idle"}[m.IdleSince.IsZero()])
			}
		}
		if slices.Contains(c.plan.BlocksToResume, b.Name) {
			b.Draining = false
			c.logf("%s stays after all", b.Name)
		}
		// A block is deleted when the cluster does not show it any more and no Service uses any of it.
		if b.Draining && !b.Deleting && !b.hasAnyAddress(a.UsedAddresses) && !slices.Contains(c.ranges(), b.Range) {
			b.Deleting = true
			c.logf("%s is given up", b.Name)
		}
		if slices.Contains(c.plan.BlocksToDrain, b.Name) {
			b.Draining = true
			c.logf("%s is taken away", b.Name)
		}
	}
	for _, g := range c.plan.Growths {
		if g.Count > 0 {
			c.names++
			b := Block{Name: fmt.Sprintf("lb-%d", c.names), Family: g.Family, Count: g.Count, AddedOnDemand: true}
			c.blocks = append(c.blocks, b)
			c.logf("%s: %d %s for the %d that are lacking", b.Name, g.Count, g.Family, g.Shortfall)
		}
	}
	if n := c.total(); c.settings.Quota >= 0 && n > c.settings.Quota {
		c.failf("%d addresses, the quota is %d", n, c.settings.Quota)
	}
}

func (c *cluster) assess() Assessment {
	in := Inventory{GrowableFamilies: c.grows}
	for _, s := range c.services {
		in.Services = append(in.Services, *s)
	}
	own := c.template
	own.Ranges = ranges(Projection{}.UsablePools(c.blocks))
	in.Pools = append([]Pool{own}, c.theirs...)
	return AssessServices(in)
}

// checkPlan checks that a plan breaks no promise.
func (c *cluster) checkPlan() {
	for _, name := range c.plan.BlocksToDrain {
		b := c.blocks[slices.IndexFunc(c.blocks, func(b Block) bool { return b.Name == name })]
		if !b.AddedOnDemand || b.Pinned || b.Draining || b.Deleting || c.user(&b) != nil || c.now.Sub(b.IdleSince) < c.settings.GracePeriod {
			c.failf("this is not to be taken away: %+v", b)
		}
		for _, g := range c.plan.Growths {
			if g.Family == b.Family {
				c.failf("%s is taken away, and %d more are asked for", b.Name, g.Count)
			}
		}
	}
	if c.plan.QuotaReached && c.settings.Quota < 0 {
		c.failf("there is no quota that could be reached")
	}
}

func (c *cluster) user(b *Block) *Service {
	for _, s := range c.services {
		for _, a := range s.Addresses {
			if b.Range.IsValid() && b.Range.From().Compare(a) <= 0 && a.Compare(b.Range.To()) <= 0 {
				return s
			}
		}
	}
	return nil
}

func (c *cluster) total() (n int64) {
	for i := range c.blocks {
		n += c.blocks[i].Count
	}
	return n
}

// allocate runs the allocator once: it frees blocks that are being deleted and serves requests, in pieces if
// necessary.
func (c *cluster) allocate() {
	c.blocks = slices.DeleteFunc(c.blocks, func(b Block) bool {
		for a := b.Range.From(); b.Deleting && b.Range.Contains(a); a = a.Next() {
			c.free = append(c.free, a)
		}
		return b.Deleting
	})
	slices.SortFunc(c.free, netip.Addr.Compare)
	for i := 0; i < len(c.blocks); i++ {
		b := &c.blocks[i]
		if b.Range.IsValid() {
			continue
		}
		at, n := c.largest(b.Family, b.Count)
		if n == 0 {
			continue
		}
		rest := *b
		b.Range, b.Count = netipx.IPRangeFrom(c.free[at], c.free[at+int(n)-1]), n
		c.free = slices.Delete(c.free, at, at+int(n))
		c.logf("%s gets %s", b.Name, b.Range)
		if rest.Count -= n; rest.Count > 0 {
			rest.Name += "x"
			c.blocks = append(c.blocks, rest)
		}
	}
}

// largest finds the first contiguous free addresses, as many as are wanted or else the most there are.
func (c *cluster) largest(f Family, want int64) (at int, n int64) {
	for i := range c.free {
		length := int64(0)
		for length < want && i+int(length) < len(c.free) && AddressFamily(c.free[i]) == f &&
			(length == 0 || c.free[i+int(length)] == c.free[i+int(length)-1].Next()) {
			length++
		}
		if length > n {
			at, n = i, length
		}
	}
	return at, n
}

// project writes our pool into the cluster. Without a range there is no pool.
func (c *cluster) project() {
	before := c.ranges()
	own := c.template
	own.Ranges = ranges(Projection{}.ProjectedPools(c.blocks))
	c.pools = slices.Clone(c.theirs)
	if len(own.Ranges) > 0 {
		c.pools = append(c.pools, own)
	}
	if !slices.Equal(before, c.ranges()) {
		c.logf("%s shows %s", own.Name, c.ranges())
	}
}

func (c *cluster) ranges() []netipx.IPRange {
	for i := range c.pools {
		if c.pools[i].ReceivesGrowth {
			return c.pools[i].Ranges
		}
	}
	return nil
}

// actOnce runs every component once, and reports whether anything was written.
func (c *cluster) actOnce() bool {
	before := c.writes
	c.serve()
	c.manage()
	c.allocate()
	c.project()
	return c.writes > before
}

// wait runs every component, whenever there is something to do, while time passes.
func (c *cluster) wait(d time.Duration) {
	until := c.now.Add(d)
	for range 1000 {
		for range 1000 {
			if !c.actOnce() {
				break
			}
		}
		if c.now.Equal(until) {
			return
		}
		if next := c.plan.NextCheck; next.After(c.now) && next.Before(until) {
			c.now = next
		} else {
			c.now = until
		}
	}
	c.failf("it never comes to rest")
}

// settle waits until nothing is left that the passing of time would change.
func (c *cluster) settle() {
	c.wait(0)
	for range 100 {
		if c.plan.NextCheck.IsZero() {
			return
		}
		c.wait(c.plan.NextCheck.Sub(c.now))
	}
	c.failf("it never comes to rest")
}

// restForAnHour checks for an hour that nothing is planned or written at rest (B52).
func (c *cluster) restForAnHour() {
	before := c.writes
	for range 60 {
		c.now = c.now.Add(time.Minute)
		c.actOnce()
		if !c.plan.isEmpty() || c.writes > before {
			c.failf("at rest, and yet: %+v", c.plan)
			return
		}
	}
}
