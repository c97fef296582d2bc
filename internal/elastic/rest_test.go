package elastic

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestComesToRest checks that, whatever Services come and go, in whatever order the components act, the quota is
// never exceeded and no address in use is withdrawn (both are checked with every plan). When Services stop changing,
// the cluster comes to rest, every Service that can be served is served, and no block stays that no Service uses
// (B37, B38, B39, B46, B52, F1, F4, F5, F9).
func TestComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, w := drawSituation(t)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			drawEvent(t, c, w)
			checkPromises(t, c)
		}
		c.settle()
		checkPromises(t, c)
		c.restForAnHour()
		checkPromises(t, c)
		checkServed(t, c)
		checkUsed(t, c)
		// All blocks that were added on demand are released when no Service is left.
		c.services = nil
		c.settle()
		c.restForAnHour()
		checkPromises(t, c)
		for i := range c.blocks {
			if b := &c.blocks[i]; b.AddedOnDemand && b.Range.IsValid() {
				t.Fatalf("no Service is left, %s is\n%s", b.Name, c.log.String())
			}
		}
	})
}

// TestFlappingIsNoDemand checks that nothing is planned for this: MetalLB 0.16 gives a Service with one cluster IP
// that prefers two addresses a second one, and removes both the next time that it reconciles the Service.
func TestFlappingIsNoDemand(t *testing.T) {
	c := newCluster(PlanSettings{Increment: 1, Quota: -1, GracePeriod: grace}, 1, "10.0.0.1-10.0.0.9", "2001:db8::1-2001:db8::9")
	c.create(svc("a", func(s *Service) { s.FamilyPolicy = PreferDualStack }), svc("b", of(IPv6)))
	for range 5 {
		c.actOnce()
	}
	c.remove("b")
	had := map[int]bool{}
	for range 100 {
		c.actOnce()
		c.now = c.now.Add(time.Minute)
		had[len(c.services[0].Addresses)] = true
		if !c.plan.isEmpty() || c.plan.Growths != nil {
			t.Fatalf("%+v\n%s", c.plan, c.log.String())
		}
	}
	if !had[1] || !had[2] {
		t.Errorf("it does not flap:\n%s", c.log.String())
	}
}

func drawSituation(t *rapid.T) (*cluster, wishes) {
	w := wishes{six: rapid.Bool().Draw(t, "six"), odd: true}
	s := PlanSettings{Increment: rapid.Int64Range(0, 4).Draw(t, "increment"), Quota: rapid.Int64Range(-1, 9).Draw(t, "quota"), GracePeriod: grace}
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
		seed := c.names*7919 + c.writes
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

func checkPromises(t *rapid.T, c *cluster) {
	if len(c.violations) > 0 {
		t.Fatalf("%v\n%s", c.violations, c.log.String())
	}
}

// checkServed lets fakeMetalLB, not the package, decide which Services could be served with one more address of each
// family: none, unless the quota is used up, or the allocator has nothing left.
func checkServed(t *rapid.T, c *cluster) {
	short := c.settings.Quota >= 0 && c.total() >= c.settings.Quota
	for i := range c.blocks {
		short = short || !c.blocks[i].Range.IsValid()
	}
	for _, s := range c.services {
		if len(s.Addresses) > 0 || s.LoadBalancerClass != "" {
			continue
		}
		m := c.fakeMetalLB
		m.pools = slices.Clone(c.theirs)
		own := c.template
		own.Ranges = ranges(Projection{}.ProjectedPools(c.blocks))
		for f, grows := range c.grows {
			if grows {
				own.Ranges = append(own.Ranges, spareRange(Family(f), 1))
			}
		}
		m.pools = append(m.pools, own)
		m.converge(s)
		served := len(s.Addresses) > 0
		s.Addresses = nil
		if served && !short {
			t.Fatalf("%s could be served: %+v\n%s", s.Name, s, c.log.String())
		}
	}
	if a := c.assess(); a.CountInState(ServicePlaceable) > 0 {
		t.Fatalf("MetalLB is at rest, and yet it is said to have something to do: %s\n%s", formatAssessment(a), c.log.String())
	}
}

// checkUsed checks that each block that was added on demand is used, or may become used as soon as there are more.
func checkUsed(t *rapid.T, c *cluster) {
	a := c.assess()
	for i := range c.blocks {
		if b := &c.blocks[i]; b.AddedOnDemand && b.Range.IsValid() && c.user(b) == nil && a.CountInState(ServiceNeedsGrowth) == 0 {
			t.Fatalf("%s is of no use\n%s", b.Name, c.log.String())
		}
	}
}
