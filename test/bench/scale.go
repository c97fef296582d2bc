package main

import (
	"context"
	"fmt"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	fulfilment = "butler_ipam_claim_fulfilment_seconds_count"
	// turn is how many claims the bare client, or the manager, serves at once: so many that it does not count when the
	// bench hears of the end of a turn, a tenth of a second or two. There are some turns of each at each size.
	turn, turns = 1000, 3
)

// scale is one control plane that is filled further and further. Its claims are spread evenly over some pools,
// in the order in which they are numbered.
type scale struct {
	*clients
	pools int
	m     *framework.Manager
	base  memory // what the manager takes without claims
	// has is how many claims there are, served of them by the manager that runs; bare are the bare client's.
	has, served, bare int
}

func (s *scale) pool(i int) string { return fmt.Sprintf("%s-%02d", poolName, i%s.pools) }

// address is the one for copy i: the manager gives away the addresses of a pool in order, beginning after the network's
// own. The first claims of a pool have its first addresses, though which of them has which depends on who came first.
func (s *scale) address(i int) string {
	n := i/s.pools + 1
	return fmt.Sprintf("10.%d.%d.%d", i%s.pools, n/256, n%256)
}

// measureScale adds, at each size, how fast a bare client and the manager are in turns and what the manager takes,
// and at the last one how long a restart and a takeover last.
func measureScale(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(c *clients) error {
		s := &scale{clients: c, pools: o.pools}
		for i := range s.pools {
			pool := framework.MakePool(s.pool(i)).Namespace(namespace).CIDR(fmt.Sprintf("10.%d.0.0/16", i)).Annotate(clusterv1.PausedAnnotation, "").Obj()
			if err := s.Create(ctx, pool); err != nil {
				return err
			}
		}
		var err error
		if s.m, err = s.manager(ctx, o.manager); err != nil {
			return err
		}
		defer func() { _ = s.m.Kill() }()
		if err := s.grow(ctx, o.scale, t); err != nil {
			return fmt.Errorf("%w\n%s", err, s.m.LogTail(20))
		}
		if err := s.sizes(ctx, t); err != nil {
			return err
		}
		if err := s.pause(ctx, nil); err != nil {
			return err
		}
		if err := s.restarts(ctx, o.manager, t); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
		return s.takeovers(ctx, o.manager, t)
	})
}

func (s *scale) grow(ctx context.Context, sizes []int, t *table) error {
	// What the start has left is given back within a second.
	if err := pause(ctx, 3*time.Second); err != nil {
		return err
	}
	var err error
	if s.base, err = memoryOf(ctx, s.m); err != nil {
		return err
	}
	t.add("manager memory, no claims", fmt.Sprintf("%.0f MB", s.base.resident/1e6), fmt.Sprintf("%.1f MB of it live objects", s.base.live/1e6))
	// The first writes of anybody are slow, and there is nothing to copy yet.
	if _, err := s.bareSlice(ctx, turn); err != nil {
		return fmt.Errorf("by a bare client: %w", err)
	}
	if _, _, err := s.managedSlice(ctx, turn); err != nil {
		return err
	}
	for _, n := range sizes {
		if err := s.fill(ctx, s.has, n); err != nil {
			return fmt.Errorf("filling up to %d: %w", n, err)
		}
		s.has = max(s.has, n)
		if err := s.alternate(ctx, t); err != nil {
			return err
		}
		if err := s.weigh(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// weigh adds what the manager and the API server take.
func (s *scale) weigh(ctx context.Context, t *table) error {
	now, err := memoryOf(ctx, s.m)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("manager memory beyond that, %d claims", s.has), fmt.Sprintf("%.2f KB a claim", (now.resident-s.base.resident)/float64(s.has)/1e3),
		fmt.Sprintf("%.0f MB; %.2f KB a claim of it live objects", now.resident/1e6, (now.live-s.base.live)/float64(s.has)/1e3))
	server, err := s.ofServer(ctx, "process_resident_memory_bytes")
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("API server memory, %d claims", s.has), fmt.Sprintf("%.1f GB", server/1e9), fmt.Sprintf("with %d more of the bare client", s.bare))
	return nil
}

// alternate has the bare client and the manager serve slices of claims in turns.
func (s *scale) alternate(ctx context.Context, t *table) error {
	var bare, managed time.Duration
	var spent cpu
	from := s.has
	for range turns {
		took, err := s.bareSlice(ctx, turn)
		if err != nil {
			return fmt.Errorf("by a bare client: %w", err)
		}
		bare += took
		took, used, err := s.managedSlice(ctx, turn)
		if err != nil {
			return err
		}
		managed += took
		spent.manager += used.manager
		spent.server += used.server
	}
	n := s.has - from
	what := fmt.Sprintf("claims %d to %d in %d pools", from+1, s.has, s.pools)
	t.rate(what+": bare client", n, bare, 0)
	t.rate(what+": manager, in turns with it", n, managed, float64(n)/bare.Seconds())
	t.add("manager CPU, "+what, fmt.Sprintf("%.2f ms a claim", 1000*spent.manager/float64(n)),
		fmt.Sprintf("the API server %.1f ms, without the creation of the claim", 1000*spent.server/float64(n)))
	return nil
}

// cpu is how many seconds of it the manager and the API server have taken.
type cpu struct{ manager, server float64 }

func (s *scale) cpu(ctx context.Context) (out cpu, err error) {
	const name = "process_cpu_seconds_total"
	if out.manager, err = s.m.Metric(ctx, name); err != nil {
		return out, err
	}
	out.server, err = s.ofServer(ctx, name)
	return out, err
}

// bareSlice takes the time that a bare client needs to serve claims that the manager has nothing to do with. It sees
// them, and so the watches are open that any provider needs.
func (s *scale) bareSlice(ctx context.Context, n int) (time.Duration, error) {
	from := s.bare
	s.bare += n
	name := func(i int) string { return fmt.Sprintf("bare-%05d", from+i) }
	if err := each(ctx, n, func(ctx context.Context, i int) error {
		return s.Create(ctx, framework.MakeClaim(namespace, name(i)).PoolRef(nobodys.APIGroup, nobodys.Kind, nobodys.Name).Obj())
	}); err != nil {
		return 0, err
	}
	if err := s.collectGarbage(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	err := each(ctx, n, func(ctx context.Context, i int) error { return s.threeWrites(ctx, name(i), nobodys, from+i) })
	return time.Since(start), err
}

// nobodys is a pool that no provider knows.
var nobodys = ipamv1.IPPoolReference{APIGroup: "bench.example.com", Kind: "None", Name: "none"}

// managedSlice creates claims in the paused pools, unpauses these, and takes the time and the CPU until the manager has
// served them.
func (s *scale) managedSlice(ctx context.Context, n int) (took time.Duration, spent cpu, err error) {
	from := s.has
	s.has += n
	if err := each(ctx, n, func(ctx context.Context, i int) error {
		return s.Create(ctx, framework.MakeClaim(namespace, claimName(from+i)).Pool(s.pool(from+i)).Obj())
	}); err != nil {
		return 0, spent, err
	}
	if err := allTold(ctx, s.m); err != nil {
		return 0, spent, err
	}
	if err := s.collectGarbage(ctx); err != nil {
		return 0, spent, err
	}
	before, err := s.cpu(ctx)
	if err != nil {
		return 0, spent, err
	}
	start := time.Now()
	if err := s.pause(ctx, nil); err != nil {
		return 0, spent, err
	}
	s.served += n
	if err := metric(ctx, s.m, fulfilment, float64(s.served)); err != nil {
		return 0, spent, err
	}
	took = time.Since(start)
	after, err := s.cpu(ctx)
	if err != nil {
		return 0, spent, err
	}
	return took, cpu{after.manager - before.manager, after.server - before.server}, s.pause(ctx, "")
}

// pause sets the annotation of the pools that pauses them, nil: takes it away.
func (s *scale) pause(ctx context.Context, value any) error {
	return each(ctx, s.pools, func(ctx context.Context, i int) error {
		return s.Patch(ctx, framework.MakePool(s.pool(i)).Namespace(namespace).Obj(),
			metadata(map[string]any{annotations: map[string]any{clusterv1.PausedAnnotation: value}}))
	})
}

// memory is what a manager takes, in bytes: all of it, that without the pages of its program, and the objects that live.
type memory struct{ resident, own, live float64 }

func memoryOf(ctx context.Context, m *framework.Manager) (out memory, err error) {
	if out.resident, err = m.Metric(ctx, "process_resident_memory_bytes"); err != nil {
		return out, err
	}
	own, err := m.AnonymousRSS()
	if err != nil {
		return out, err
	}
	out.own = float64(own)
	out.live, err = m.Metric(ctx, "go_gc_heap_live_bytes")
	return out, err
}

// sizes adds how large a claim and its IPAddress are.
func (s *scale) sizes(ctx context.Context, t *table) error {
	size := map[string]int{}
	for _, of := range []stored{{"IPAddressClaim", "ipaddressclaims"}, {"IPAddress", "ipaddresses"}} {
		all, err := s.copies(ctx, of)
		if err != nil {
			return err
		}
		size[of.kind] = len(all[0].text)
	}
	t.add("a claim and its IPAddress, as JSON", fmt.Sprintf("%d bytes", size["IPAddressClaim"]+size["IPAddress"]),
		fmt.Sprintf("%d and %d, managed fields included", size["IPAddressClaim"], size["IPAddress"]))
	return nil
}
