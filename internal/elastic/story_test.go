package elastic

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// phase is what happens at one moment, in any order, and how long nothing else does then.
type phase struct {
	events []func(*cluster)
	wait   time.Duration
}

func then(wait time.Duration, events ...func(*cluster)) phase {
	return phase{events: events, wait: wait}
}

func comes(name string, changes ...change) func(*cluster) {
	return func(c *cluster) { c.create(svc(name, changes...)) }
}

func goes(name string) func(*cluster) { return func(c *cluster) { c.remove(name) } }

func come(names string, changes ...change) (out []func(*cluster)) {
	for name := range strings.FieldsSeq(names) {
		out = append(out, comes(name, changes...))
	}
	return out
}

// story is what is told of a cluster from its beginning.
type story struct {
	reason   string
	settings Settings
	initial  int64
	free     []string // 10.0.0.1 to 10.0.0.16 where it says nothing
	template Pool     // our pool, if it is a special one
	phases   []phase
	want     string
	// addresses that the cluster has in the end, and how many Services have one: in whatever order the events
	// of a moment happen, and everybody acts.
	addresses int64
	served    int
}

func (s *story) begin() *cluster {
	settings := s.settings
	settings.Grace = grace
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
	if len(c.wrong) > 0 {
		t.Errorf("%s: %v\n%s", s.reason, c.wrong, c.story.String())
	}
	served := 0
	for _, svc := range c.services {
		served += min(len(svc.Has), 1)
	}
	if c.total() != s.addresses || served != s.served {
		t.Errorf("%s: %d addresses, %d Services served, want %d and %d\n%s", s.reason, c.total(), served, s.addresses, s.served, c.story.String())
	}
}

func TestStories(t *testing.T) {
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			c := s.begin()
			for _, p := range s.phases {
				for _, event := range p.events {
					event(c)
				}
				c.wait(p.wait)
			}
			if diff := cmp.Diff(strings.Split(strings.TrimPrefix(s.want, "\n"), "\n"), strings.Split(c.story.String(), "\n")); diff != "" {
				t.Errorf("%s:\n%s", s.reason, diff)
			}
			s.end(t, c)
		})
	}
}

// The same stories with the events of a moment in any order, and everybody acting whenever they like between them.
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

// A Service that comes while a block is being taken away keeps it there, and nothing is asked for.
func TestResume(t *testing.T) {
	c := newCluster(Settings{Increment: 1, Quota: -1, Grace: grace}, 1, "10.0.0.1-10.0.0.16")
	c.create(svc("a"), svc("b"))
	c.wait(time.Minute)
	c.remove("b")
	c.manage()
	c.now = c.plan.Next
	c.manage()
	c.story.Reset()
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
	if diff := cmp.Diff(want, "\n"+c.story.String()); diff != "" || len(c.wrong) > 0 {
		t.Errorf("%v\n%s", c.wrong, diff)
	}
}

// A Service that finds room elsewhere is no reason to keep a block that is being taken away.
func TestNoResumeWithoutNeed(t *testing.T) {
	c := newCluster(Settings{Increment: 1, Quota: -1, Grace: grace}, 0)
	c.blocks = []Block{block("lb-1", "10.0.0.1", 1).idle(time.Hour).draining(), block("lb", "10.0.0.2", 1).initial()}
	c.create(svc("a"))
	c.manage()
	if c.plan.Resume != nil || c.plan.Grow != nil {
		t.Errorf("%+v", c.plan)
	}
}
