package elastic

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
)

// cluster is a workload cluster, the manager that plans for it, and the allocator that has addresses for it.
// Each of them acts when it is told to, so that they can act in any order. Time is what it is set to.
type cluster struct {
	metal
	now      time.Time
	settings Settings
	grows    [2]bool
	template Pool   // our pool, without ranges
	theirs   []Pool // those of others
	blocks   []Block
	free     []netip.Addr // what the allocator has left, sorted
	names    int
	plan     Plan // the last one
	wrote    int
	story    strings.Builder
	wrong    []string // promises that were broken
}

func newCluster(s Settings, initial int64, free ...string) *cluster {
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
	c.story.Reset()
	c.wrote = 0
	return c
}

func (c *cluster) sayf(format string, args ...any) {
	c.wrote++
	at := time.Time{}.Add(c.now.Sub(epoch)).Format("15:04:05")
	fmt.Fprintf(&c.story, "%s %s\n", at, fmt.Sprintf(format, args...))
}

func (c *cluster) brokenf(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func (c *cluster) create(services ...Service) {
	for i := range services {
		s := services[i]
		s.Created = c.now.Add(time.Duration(len(c.services)))
		c.services = append(c.services, &s)
	}
}

// remove deletes a Service. The others may be served better for it.
func (c *cluster) remove(name string) {
	c.services = slices.DeleteFunc(c.services, func(s *Service) bool { return s.Name == name })
}

// serve is MetalLB's turn.
func (c *cluster) serve() {
	before := map[*Service]string{}
	for _, s := range c.services {
		before[s] = fmt.Sprint(s.Has)
	}
	c.pass()
	for _, s := range c.services {
		if has := fmt.Sprint(s.Has); has != before[s] {
			c.sayf("%s has %s", s.Name, has)
		}
	}
}

// manage is the manager's turn: it looks, plans, and writes.
func (c *cluster) manage() {
	a := c.assess()
	c.plan = Decide(a, c.blocks, c.settings, c.now)
	c.judge()
	for i := range c.blocks {
		b := &c.blocks[i]
		for _, m := range c.plan.Marks {
			if m.Block == b.Name {
				b.IdleSince = m.IdleSince
				c.sayf("%s is %s", b.Name, map[bool]string{true: "in use", false: "idle"}[m.IdleSince.IsZero()])
			}
		}
		if slices.Contains(c.plan.Resume, b.Name) {
			b.Draining = false
			c.sayf("%s stays after all", b.Name)
		}
		// It is given up when the cluster does not show it any more, and nobody has any of it.
		if b.Draining && !b.Deleting && !b.held(a.Used) && !slices.Contains(c.ranges(), b.Range) {
			b.Deleting = true
			c.sayf("%s is given up", b.Name)
		}
		if slices.Contains(c.plan.Drain, b.Name) {
			b.Draining = true
			c.sayf("%s is taken away", b.Name)
		}
	}
	for _, g := range c.plan.Grow {
		if g.Count > 0 {
			c.names++
			b := Block{Name: fmt.Sprintf("lb-%d", c.names), Family: g.Family, Count: g.Count, Grown: true}
			c.blocks = append(c.blocks, b)
			c.sayf("%s: %d %s for the %d that are lacking", b.Name, g.Count, g.Family, g.Lacking)
		}
	}
	if n := c.total(); c.settings.Quota >= 0 && n > c.settings.Quota {
		c.brokenf("%d addresses, the quota is %d", n, c.settings.Quota)
	}
}

func (c *cluster) assess() Assessment {
	in := Inventory{Grows: c.grows}
	for _, s := range c.services {
		in.Services = append(in.Services, *s)
	}
	own := c.template
	own.Ranges = ranges(Projection{}.Usable(c.blocks))
	in.Pools = append([]Pool{own}, c.theirs...)
	return Assess(in)
}

// judge holds a plan against what a plan must never be.
func (c *cluster) judge() {
	for _, name := range c.plan.Drain {
		b := c.blocks[slices.IndexFunc(c.blocks, func(b Block) bool { return b.Name == name })]
		if !b.Grown || b.Pinned || b.Draining || b.Deleting || c.user(&b) != nil || c.now.Sub(b.IdleSince) < c.settings.Grace {
			c.brokenf("this is not to be taken away: %+v", b)
		}
		for _, g := range c.plan.Grow {
			if g.Family == b.Family {
				c.brokenf("%s is taken away, and %d more are asked for", b.Name, g.Count)
			}
		}
	}
	if c.plan.QuotaReached && c.settings.Quota < 0 {
		c.brokenf("there is no quota that could be reached")
	}
}

func (c *cluster) user(b *Block) *Service {
	for _, s := range c.services {
		for _, a := range s.Has {
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

// allocate is the allocator's turn: it takes back what is given up, and serves what waits, in pieces if need be.
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
		c.sayf("%s gets %s", b.Name, b.Range)
		if rest.Count -= n; rest.Count > 0 {
			rest.Name += "x"
			c.blocks = append(c.blocks, rest)
		}
	}
}

// largest finds the first addresses in a row, as many as are wanted or else the most there are.
func (c *cluster) largest(f Family, want int64) (at int, n int64) {
	for i := range c.free {
		length := int64(0)
		for length < want && i+int(length) < len(c.free) && FamilyOf(c.free[i]) == f &&
			(length == 0 || c.free[i+int(length)] == c.free[i+int(length)-1].Next()) {
			length++
		}
		if length > n {
			at, n = i, length
		}
	}
	return at, n
}

// project writes our pool into the cluster. Without a range there is none.
func (c *cluster) project() {
	before := c.ranges()
	own := c.template
	own.Ranges = ranges(Projection{}.Shown(c.blocks))
	c.pools = slices.Clone(c.theirs)
	if len(own.Ranges) > 0 {
		c.pools = append(c.pools, own)
	}
	if !slices.Equal(before, c.ranges()) {
		c.sayf("%s shows %s", own.Name, c.ranges())
	}
}

func (c *cluster) ranges() []netipx.IPRange {
	for i := range c.pools {
		if c.pools[i].Grows {
			return c.pools[i].Ranges
		}
	}
	return nil
}

// turn lets everybody act once. It reports whether anything was written.
func (c *cluster) turn() bool {
	before := c.wrote
	c.serve()
	c.manage()
	c.allocate()
	c.project()
	return c.wrote > before
}

// wait lets everybody act while time goes by, whenever there is something to do.
func (c *cluster) wait(d time.Duration) {
	until := c.now.Add(d)
	for range 1000 {
		for range 1000 {
			if !c.turn() {
				break
			}
		}
		if c.now.Equal(until) {
			return
		}
		if next := c.plan.Next; next.After(c.now) && next.Before(until) {
			c.now = next
		} else {
			c.now = until
		}
	}
	c.brokenf("it never comes to rest")
}

// settle waits until nothing is left that time alone would change.
func (c *cluster) settle() {
	c.wait(0)
	for range 100 {
		if c.plan.Next.IsZero() {
			return
		}
		c.wait(c.plan.Next.Sub(c.now))
	}
	c.brokenf("it never comes to rest")
}

// restForAnHour looks on for an hour in which nothing is to be planned or written (B52).
func (c *cluster) restForAnHour() {
	before := c.wrote
	for range 60 {
		c.now = c.now.Add(time.Minute)
		c.turn()
		if !c.plan.Empty() || c.wrote > before {
			c.brokenf("at rest, and yet: %+v", c.plan)
			return
		}
	}
}
