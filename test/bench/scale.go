package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	fulfilment = "butler_ipam_claim_fulfilment_seconds_count"
	// sliceOf bounds the claims that the bare client, or the manager, serves in one turn.
	sliceOf = 500
)

// scale is one control plane that is filled further and further. Its claims are spread evenly over some pools,
// in the order in which they are numbered.
type scale struct {
	*clients
	pools  int
	m      *framework.Manager
	served int // by the manager that runs
	bare   int
}

func (s *scale) pool(i int) string { return fmt.Sprintf("%s-%02d", poolName, i%s.pools) }

// address is what claim i has: the manager gives away the addresses of a pool in order, beginning after the network's own.
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
		// An audit would fall into somebody's turn.
		if s.m, err = s.manager(ctx, o.manager, "--audit-interval=0"); err != nil {
			return err
		}
		defer func() { _ = s.m.Kill() }()
		if err := s.grow(ctx, o.scale, t); err != nil {
			return fmt.Errorf("%w\n%s", err, s.m.LogTail(20))
		}
		n := o.scale[len(o.scale)-1]
		if err := s.sizes(ctx, t); err != nil {
			return err
		}
		if err := s.pause(ctx, nil); err != nil {
			return err
		}
		if err := s.restart(ctx, o.manager, n, t); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
		return s.takeovers(ctx, o.manager, n, t)
	})
}

func (s *scale) grow(ctx context.Context, sizes []int, t *table) error {
	base, err := memoryOf(ctx, s.m)
	if err != nil {
		return err
	}
	t.add("manager memory, no claims", fmt.Sprintf("%.0f MB", base.resident/1e6), fmt.Sprintf("%.1f MB of it live objects", base.live/1e6))
	has := 0
	for _, n := range sizes {
		slice := min((n-has)/rounds, sliceOf)
		if has > 0 {
			if err := s.fill(ctx, has, n-rounds*slice); err != nil {
				return fmt.Errorf("filling up to %d: %w", n, err)
			}
		}
		has = n
		if err := s.alternate(ctx, n, slice, t); err != nil {
			return err
		}
		now, err := memoryOf(ctx, s.m)
		if err != nil {
			return err
		}
		t.add(fmt.Sprintf("manager memory beyond that, %d claims", n), fmt.Sprintf("%.2f KB a claim", (now.resident-base.resident)/float64(n)/1e3),
			fmt.Sprintf("%.0f MB; %.2f KB a claim of it live objects", now.resident/1e6, (now.live-base.live)/float64(n)/1e3))
		server, err := s.ofServer(ctx, "process_resident_memory_bytes")
		if err != nil {
			return err
		}
		t.add(fmt.Sprintf("API server memory, %d claims", n), fmt.Sprintf("%.1f GB", server/1e9), fmt.Sprintf("with %d more of the bare client", s.bare))
	}
	return nil
}

// alternate has the bare client and the manager serve slices of claims in turns until there are n of the manager's.
func (s *scale) alternate(ctx context.Context, n, slice int, t *table) error {
	var bare, managed time.Duration
	var spent cpu
	for r := range rounds {
		took, err := s.bareSlice(ctx, slice)
		if err != nil {
			return fmt.Errorf("by a bare client: %w", err)
		}
		bare += took
		before, err := s.cpu(ctx)
		if err != nil {
			return err
		}
		if took, err = s.managedSlice(ctx, n-(rounds-r)*slice, slice); err != nil {
			return err
		}
		managed += took
		after, err := s.cpu(ctx)
		if err != nil {
			return err
		}
		spent.manager += after.manager - before.manager
		spent.server += after.server - before.server
	}
	limit := float64(rounds*slice) / bare.Seconds()
	t.rate(fmt.Sprintf("%d claims in %d pools: bare client", n, s.pools), rounds*slice, bare, 0)
	t.rate(fmt.Sprintf("%d claims in %d pools: manager, in turns with it", n, s.pools), rounds*slice, managed, limit)
	t.add(fmt.Sprintf("manager CPU, %d claims", n), fmt.Sprintf("%.2f ms a claim", 1000*spent.manager/float64(rounds*slice)),
		fmt.Sprintf("the API server %.1f ms; both with the creation of the claim", 1000*spent.server/float64(rounds*slice)))
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

// ofServer is a metric of the API server that has no labels.
func (s *scale) ofServer(ctx context.Context, name string) (float64, error) {
	text, err := s.serverMetrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, name+" "); is {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the API server does not export %s", name)
}

// bareSlice takes the time that a bare client needs to serve claims that the manager has nothing to do with. It sees
// them, and so the watches are open that any provider needs.
func (s *scale) bareSlice(ctx context.Context, slice int) (time.Duration, error) {
	from := s.bare
	s.bare += slice
	name := func(i int) string { return fmt.Sprintf("bare-%05d", from+i) }
	if err := each(ctx, slice, func(ctx context.Context, i int) error {
		return s.Create(ctx, framework.MakeClaim(namespace, name(i)).PoolRef(nobodys.APIGroup, nobodys.Kind, nobodys.Name).Obj())
	}); err != nil {
		return 0, err
	}
	start := time.Now()
	err := each(ctx, slice, func(ctx context.Context, i int) error { return s.threeWrites(ctx, name(i), nobodys, from+i) })
	return time.Since(start), err
}

// nobodys is a pool that no provider knows.
var nobodys = ipamv1.IPPoolReference{APIGroup: "bench.example.com", Kind: "None", Name: "none"}

// managedSlice creates claims in the paused pools, unpauses these, and takes the time until the manager has served them.
func (s *scale) managedSlice(ctx context.Context, from, slice int) (time.Duration, error) {
	if err := each(ctx, slice, func(ctx context.Context, i int) error {
		return s.Create(ctx, framework.MakeClaim(namespace, claimName(from+i)).Pool(s.pool(from+i)).Obj())
	}); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := s.pause(ctx, nil); err != nil {
		return 0, err
	}
	s.served += slice
	if err := metric(ctx, s.m, fulfilment, float64(s.served)); err != nil {
		return 0, err
	}
	return time.Since(start), s.pause(ctx, "")
}

// pause sets the annotation of the pools that pauses them, nil: takes it away.
func (s *scale) pause(ctx context.Context, value any) error {
	return each(ctx, s.pools, func(ctx context.Context, i int) error {
		return s.Patch(ctx, framework.MakePool(s.pool(i)).Namespace(namespace).Obj(),
			metadata(map[string]any{"annotations": map[string]any{clusterv1.PausedAnnotation: value}}))
	})
}

// memory is what a manager takes, in bytes: all of it, and the objects that live.
type memory struct{ resident, live float64 }

func memoryOf(ctx context.Context, m *framework.Manager) (out memory, err error) {
	if out.resident, err = m.Metric(ctx, "process_resident_memory_bytes"); err != nil {
		return out, err
	}
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

// restart kills the manager, and adds the time from the start of another to the first new claim with an address.
func (s *scale) restart(ctx context.Context, binary string, n int, t *table) error {
	if err := s.m.Kill(); err != nil {
		return err
	}
	name := "restart"
	if err := s.Create(ctx, framework.MakeClaim(namespace, name).Pool(s.pool(0)).Obj()); err != nil {
		return err
	}
	start := time.Now()
	m, err := s.manager(ctx, binary, "--audit-interval=0")
	if err != nil {
		return err
	}
	s.m = m
	ready := time.Since(start)
	if err := s.waitBound(ctx, name); err != nil {
		return err
	}
	took := time.Since(start)
	cpu, err := m.Metric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("restart with %d claims: first new claim has its address", n), fmt.Sprintf("%.2f s", took.Seconds()),
		fmt.Sprintf("ready after %.2f s; %.1f s of CPU", ready.Seconds(), cpu))
	rss, err := m.PeakRSS()
	t.add("manager memory, peak, after the restart", fmt.Sprintf("%.0f MB", float64(rss)/1e6), "")
	return err
}

// takeovers adds how long it takes until another manager, which runs already, serves a new claim.
func (s *scale) takeovers(ctx context.Context, binary string, n int, t *table) error {
	for _, how := range []struct {
		what    string
		elected bool
		end     func(*framework.Manager) error
	}{
		{"of two elected managers, the leader is stopped (SIGTERM)", true, (*framework.Manager).Stop},
		{"of two elected managers, the leader is killed (SIGKILL)", true, (*framework.Manager).Kill},
		{"of two active managers, the holder of the pools is killed (SIGKILL)", false, (*framework.Manager).Kill},
	} {
		if err := s.m.Stop(); err != nil {
			return err
		}
		took, err := s.takeover(ctx, binary, how.elected, how.end)
		if err != nil {
			return fmt.Errorf("%s: %w", how.what, err)
		}
		t.add(fmt.Sprintf("takeover with %d claims: %s", n, how.what), fmt.Sprintf("%.2f s", took.Seconds()), "until a new claim has its address")
	}
	return nil
}

func (s *scale) takeover(ctx context.Context, binary string, elected bool, end func(*framework.Manager) error) (time.Duration, error) {
	elect := fmt.Sprintf("--leader-elect=%t", elected)
	first, err := s.manager(ctx, binary, elect)
	if err != nil {
		return 0, err
	}
	second, err := s.manager(ctx, binary, elect)
	if err != nil {
		return 0, errors.Join(err, first.Kill())
	}
	holder, other := first, second
	if !elected {
		holder, other = second, first // whoever starts takes the pools
	}
	s.m = other
	var g errgroup.Group
	start := time.Now()
	g.Go(func() error { return end(holder) })
	name := fmt.Sprintf("takeover-%d", start.UnixNano())
	err = s.Create(ctx, framework.MakeClaim(namespace, name).Pool(s.pool(0)).Obj())
	if err == nil {
		err = s.waitBound(ctx, name)
	}
	took := time.Since(start)
	return took, errors.Join(err, g.Wait())
}
