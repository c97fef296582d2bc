package elastic

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever comes and goes, in whatever order everybody acts: never more than the quota, never an address taken
// away that is used (both are checked with every plan); and when Services stop changing it comes to rest, who can
// be served is served, and nothing is kept that nobody uses (B37, B38, B39, B46, B52, F1, F4, F5, F9).
func TestComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, w := drawSituation(t)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			drawEvent(t, c, w)
			demand(t, c)
		}
		c.settle()
		demand(t, c)
		c.restForAnHour()
		demand(t, c)
		checkServed(t, c)
		checkUsed(t, c)
		// And all that was grown is given back when nobody is left.
		c.services = nil
		c.settle()
		c.restForAnHour()
		demand(t, c)
		for i := range c.blocks {
			if b := &c.blocks[i]; b.Grown && b.Range.IsValid() {
				t.Fatalf("nobody is left, %s is\n%s", b.Name, c.story.String())
			}
		}
	})
}

// MetalLB 0.16 gives a Service of one cluster IP that prefers two addresses another one, and takes both away the
// next time it looks: nothing is to follow from that.
func TestFlappingIsNoDemand(t *testing.T) {
	c := newCluster(Settings{Increment: 1, Quota: -1, Grace: grace}, 1, "10.0.0.1-10.0.0.9", "2001:db8::1-2001:db8::9")
	c.create(svc("a", func(s *Service) { s.Stack = PreferDualStack }), svc("b", of(IPv6)))
	for range 5 {
		c.turn()
	}
	c.remove("b")
	had := map[int]bool{}
	for range 100 {
		c.turn()
		c.now = c.now.Add(time.Minute)
		had[len(c.services[0].Has)] = true
		if !c.plan.Empty() || c.plan.Grow != nil {
			t.Fatalf("%+v\n%s", c.plan, c.story.String())
		}
	}
	if !had[1] || !had[2] {
		t.Errorf("it does not flap:\n%s", c.story.String())
	}
}

func drawSituation(t *rapid.T) (*cluster, wishes) {
	w := wishes{six: rapid.Bool().Draw(t, "six"), odd: true}
	s := Settings{Increment: rapid.Int64Range(0, 4).Draw(t, "increment"), Quota: rapid.Int64Range(-1, 9).Draw(t, "quota"), Grace: grace}
	initial := rapid.Int64Range(0, 2).Draw(t, "initial")
	if s.Quota >= 0 {
		initial = min(initial, s.Quota)
	}
	free := rapid.SampledFrom([][]string{
		{"10.0.0.1-10.0.0.40", "2001:db8::1-2001:db8::40"}, // plenty
		{"10.0.0.1-10.0.0.4", "2001:db8::1-2001:db8::3"},   // little
		{"10.0.0.1", "10.0.0.3", "10.0.0.5-10.0.0.6", "10.0.0.8", "10.0.0.10-10.0.0.40", "2001:db8::1", "2001:db8::3-2001:db8::9"},
		{"10.0.0.1-10.0.0.40"}, // of one family
		{"10.0.0.253-10.0.1.9", "2001:db8::1-2001:db8::9"},
	}).Draw(t, "free")
	c := newCluster(s, initial, free...)
	c.grows[IPv6] = w.six
	c.theirs, c.template = drawPools(t, c.template)
	c.project()
	c.shuffle = func(n int, swap func(i, j int)) {
		seed := c.names*7919 + c.wrote
		for i := n - 1; i > 0; i-- {
			seed = (seed*1103515245 + 12345) & 0x7fffffff
			swap(i, seed%(i+1))
		}
	}
	return c, w
}

func drawEvent(t *rapid.T, c *cluster, w wishes) {
	switch rapid.IntRange(0, 9).Draw(t, "event") {
	case 0, 1, 2:
		c.names++
		c.create(drawService(t, c.names, w))
	case 3:
		if n := len(c.services); n > 0 {
			c.remove(c.services[rapid.IntRange(0, n-1).Draw(t, "which")].Name)
		}
	case 4:
		c.serve()
	case 5, 6:
		c.manage()
	case 7:
		c.allocate()
	case 8:
		c.project()
	case 9:
		c.now = c.now.Add(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
	}
}

func demand(t *rapid.T, c *cluster) {
	if len(c.wrong) > 0 {
		t.Fatalf("%v\n%s", c.wrong, c.story.String())
	}
}

// checkServed asks MetalLB, not the package, who could be served with one more address of each family: nobody,
// unless the quota is used up, or the allocator has nothing left.
func checkServed(t *rapid.T, c *cluster) {
	short := c.settings.Quota >= 0 && c.total() >= c.settings.Quota
	for i := range c.blocks {
		short = short || !c.blocks[i].Range.IsValid()
	}
	for _, s := range c.services {
		if len(s.Has) > 0 || s.Class != "" {
			continue
		}
		m := c.metal
		m.pools = slices.Clone(c.theirs)
		own := c.template
		own.Ranges = ranges(Projection{}.Shown(c.blocks))
		for f, grows := range c.grows {
			if grows {
				own.Ranges = append(own.Ranges, spare(Family(f), 1))
			}
		}
		m.pools = append(m.pools, own)
		m.converge(s)
		served := len(s.Has) > 0
		s.Has = nil
		if served && !short {
			t.Fatalf("%s could be served: %+v\n%s", s.Name, s, c.story.String())
		}
	}
	if a := c.assess(); a.Count(Fits) > 0 {
		t.Fatalf("MetalLB is at rest, and yet it is said to have something to do: %s\n%s", tell(a), c.story.String())
	}
}

// checkUsed demands that each block that grew is of use to somebody, or may be, as soon as there are more.
func checkUsed(t *rapid.T, c *cluster) {
	a := c.assess()
	for i := range c.blocks {
		if b := &c.blocks[i]; b.Grown && b.Range.IsValid() && c.user(b) == nil && a.Count(Lacks) == 0 {
			t.Fatalf("%s is of no use\n%s", b.Name, c.story.String())
		}
	}
}
