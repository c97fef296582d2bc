package elastic

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// phase is a set of events of one moment, in any order, and the time without other events after it.
type phase struct {
	events []func(*cluster)
	wait   time.Duration
}

func then(wait time.Duration, events ...func(*cluster)) phase {
	return phase{events: events, wait: wait}
}

func createsService(name string, changes ...change) func(*cluster) {
	return func(c *cluster) { c.create(svc(name, changes...)) }
}

func removesService(name string) func(*cluster) { return func(c *cluster) { c.remove(name) } }

func createServices(names string, changes ...change) (out []func(*cluster)) {
	for name := range strings.FieldsSeq(names) {
		out = append(out, createsService(name, changes...))
	}
	return out
}

// story is the course of events of a cluster from its beginning.
type story struct {
	reason   string
	settings PlanSettings
	initial  int64
	free     []string // empty means 10.0.0.1 to 10.0.0.16
	template Pool     // our pool, if it is a special one
	phases   []phase
	want     string
	// addresses and served are the number of addresses that the cluster has in the end, and the number of Services
	// that have one, whatever the order in which the events of a moment happen and the components act.
	addresses int64
	served    int
}

func (s *story) begin() *cluster {
	settings := s.settings
	settings.GracePeriod = grace
	if settings.Quota == 0 {
		settings.Quota = -1
	}
	free := s.free
	if free == nil {
		free = []string{"10.0.0.1-10.0.0.16"}
	}
	c := newCluster(settings, s.initial, free...)
	if s.template.Name != "" {
		c.template = s.template
		c.project()
	}
	return c
}

func (s *story) end(t *testing.T, c *cluster) {
	t.Helper()
	c.restForAnHour()
	if len(c.violations) > 0 {
		t.Errorf("%s: %v\n%s", s.reason, c.violations, c.log.String())
	}
	served := 0
	for _, svc := range c.services {
		served += min(len(svc.Addresses), 1)
	}
	if c.total() != s.addresses || served != s.served {
		t.Errorf("%s: %d addresses, %d Services served, want %d and %d\n%s", s.reason, c.total(), served, s.addresses, s.served, c.log.String())
	}
}

func TestStoriesOfGrowthAndShrink(t *testing.T) {
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			c := s.begin()
			for _, p := range s.phases {
				for _, event := range p.events {
					event(c)
				}
				c.wait(p.wait)
			}
			if diff := cmp.Diff(strings.Split(strings.TrimPrefix(s.want, "\n"), "\n"), strings.Split(c.log.String(), "\n")); diff != "" {
				t.Errorf("%s:\n%s", s.reason, diff)
			}
			s.end(t, c)
		})
	}
}

// TestStoriesInAnyOrder runs the same stories with the events of a moment in any order, and with components that act
// at any time between them.
func TestStoriesInAnyOrder(t *testing.T) {
	for name, s := range stories {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 0))
				c := s.begin()
				c.shuffle = r.Shuffle
				act := []func(){c.serve, c.manage, c.allocate, c.project}
				for _, p := range s.phases {
					for _, i := range r.Perm(len(p.events)) {
						p.events[i](c)
						for range r.IntN(6) {
							act[r.IntN(len(act))]()
						}
					}
					c.wait(p.wait)
				}
				s.end(t, c)
			})
		}
	}
}

// TestServiceResumesDrainingBlock checks that a Service that appears while a block is being withdrawn keeps the block,
// and that nothing is requested.
func TestServiceResumesDrainingBlock(t *testing.T) {
	c := newCluster(PlanSettings{Increment: 1, Quota: -1, GracePeriod: grace}, 1, "10.0.0.1-10.0.0.16")
	c.create(svc("a"), svc("b"))
	c.wait(time.Minute)
	c.remove("b")
	c.manage()
	c.now = c.plan.NextCheck
	c.manage()
	c.log.Reset()
	c.project()
	c.create(svc("c"))
	c.wait(time.Hour)
	want := `
00:11:00 default-pool shows [10.0.0.1-10.0.0.1]
00:11:00 lb-1 is in use
00:11:00 lb-1 stays after all
00:11:00 default-pool shows [10.0.0.1-10.0.0.1 10.0.0.2-10.0.0.2]
00:11:00 c has [10.0.0.2]
`
	if diff := cmp.Diff(want, "\n"+c.log.String()); diff != "" || len(c.violations) > 0 {
		t.Errorf("%v\n%s", c.violations, diff)
	}
}

// TestNoResumeWithoutNeed checks that a Service that finds an address elsewhere is no reason to keep a block that is
// being withdrawn.
func TestNoResumeWithoutNeed(t *testing.T) {
	c := newCluster(PlanSettings{Increment: 1, Quota: -1, GracePeriod: grace}, 0)
	c.blocks = []Block{block("lb-1", "10.0.0.1", 1).idle(time.Hour).draining(), block("lb", "10.0.0.2", 1).initial()}
	c.create(svc("a"))
	c.manage()
	if c.plan.BlocksToResume != nil || c.plan.Growths != nil {
		t.Errorf("%+v", c.plan)
	}
}
