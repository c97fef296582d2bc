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
	fulfilmentMetric = "butler_ipam_claim_fulfilment_seconds_count"
	// turnSize is the number of claims that the bare client or the manager serves in a turn: so many that the delay
	// until the benchmark notices the end of a turn, a tenth of a second or two, is negligible. Each has turnsPerSize
	// turns at each size.
	turnSize, turnsPerSize = 1000, 3
)

// scale is one control plane with a growing number of claims. The claims are spread evenly over some pools, in the
// order of their numbers.
type scale struct {
	*clients
	pools      int
	manager    *framework.Manager
	baseMemory memoryUsage // the memory of the manager without claims
	// claimCount is the number of claims, and servedCount the number of them that the running manager has served;
	// bareCount is the number of claims of the bare client.
	claimCount, servedCount, bareCount int
}

func (s *scale) pool(i int) string { return fmt.Sprintf("%s-%02d", poolName, i%s.pools) }

// address returns the address of copy i: the manager hands out the addresses of a pool in order, starting after the
// network address. The first claims of a pool have its first addresses; which claim has which depends on the order of
// arrival.
func (s *scale) address(i int) string {
	n := i/s.pools + 1
	return fmt.Sprintf("10.%d.%d.%d", i%s.pools, n/256, n%256)
}

// measureScale adds, at each size, the rates of a bare client and the manager in alternation and the memory of the
// manager, and at the last size the time of a restart and of a takeover.
func measureScale(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		s := &scale{clients: c, pools: o.pools}
		for i := range s.pools {
			pool := framework.MakePool(s.pool(i)).Namespace(namespace).CIDR(fmt.Sprintf("10.%d.0.0/16", i)).Annotate(clusterv1.PausedAnnotation, "").Obj()
			if err := s.Create(ctx, pool); err != nil {
				return err
			}
		}
		var err error
		if s.manager, err = s.startManager(ctx, o.manager); err != nil {
			return err
		}
		defer func() { _ = s.manager.Kill() }()
		if err := s.growToSizes(ctx, o.scale, t); err != nil {
			return fmt.Errorf("%w\n%s", err, s.manager.LogTail(20))
		}
		if err := s.addObjectSizes(ctx, t); err != nil {
			return err
		}
		if err := s.pausePools(ctx, nil); err != nil {
			return err
		}
		if err := s.measureRestarts(ctx, o.manager, t); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
		return s.measureTakeovers(ctx, o.manager, t)
	})
}

func (s *scale) growToSizes(ctx context.Context, sizes []int, t *table) error {
	// The garbage of the start is returned to the system within a second.
	if err := sleepContext(ctx, 3*time.Second); err != nil {
		return err
	}
	var err error
	if s.baseMemory, err = readMemory(ctx, s.manager); err != nil {
		return err
	}
	t.add("manager memory, no claims", fmt.Sprintf("%.0f MB", s.baseMemory.resident/1e6), fmt.Sprintf("%.1f MB of it live objects", s.baseMemory.live/1e6))
	// The first writes of every client are slow, and there is nothing to copy yet.
	if _, err := s.runBareSlice(ctx, turnSize); err != nil {
		return fmt.Errorf("by a bare client: %w", err)
	}
	if _, _, err := s.runManagedSlice(ctx, turnSize); err != nil {
		return err
	}
	for _, n := range sizes {
		if err := s.fillStorage(ctx, s.claimCount, n); err != nil {
			return fmt.Errorf("filling up to %d: %w", n, err)
		}
		s.claimCount = max(s.claimCount, n)
		if err := s.compareSlices(ctx, t); err != nil {
			return err
		}
		if err := s.addMemory(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// addMemory adds the memory of the manager and of the API server.
func (s *scale) addMemory(ctx context.Context, t *table) error {
	now, err := readMemory(ctx, s.manager)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("manager memory beyond that, %d claims", s.claimCount), fmt.Sprintf("%.2f KB a claim", (now.resident-s.baseMemory.resident)/float64(s.claimCount)/1e3),
		fmt.Sprintf("%.0f MB; %.2f KB a claim of it live objects", now.resident/1e6, (now.live-s.baseMemory.live)/float64(s.claimCount)/1e3))
	server, err := s.readServerMetric(ctx, "process_resident_memory_bytes")
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("API server memory, %d claims", s.claimCount), fmt.Sprintf("%.1f GB", server/1e9), fmt.Sprintf("with %d more of the bare client", s.bareCount))
	return nil
}

// compareSlices alternates between the bare client and the manager; each serves slices of claims.
func (s *scale) compareSlices(ctx context.Context, t *table) error {
	var bare, managed time.Duration
	var spent cpuUsage
	from := s.claimCount
	for range turnsPerSize {
		took, err := s.runBareSlice(ctx, turnSize)
		if err != nil {
			return fmt.Errorf("by a bare client: %w", err)
		}
		bare += took
		took, used, err := s.runManagedSlice(ctx, turnSize)
		if err != nil {
			return err
		}
		managed += took
		spent.manager += used.manager
		spent.server += used.server
	}
	n := s.claimCount - from
	what := fmt.Sprintf("claims %d to %d in %d pools", from+1, s.claimCount, s.pools)
	t.rate(what+": bare client", n, bare, 0)
	t.rate(what+": manager, in turns with it", n, managed, float64(n)/bare.Seconds())
	t.add("manager CPU, "+what, fmt.Sprintf("%.2f ms a claim", 1000*spent.manager/float64(n)),
		fmt.Sprintf("the API server %.1f ms, without the creation of the claim", 1000*spent.server/float64(n)))
	return nil
}

// cpuUsage is the CPU time of the manager and of the API server, in seconds.
type cpuUsage struct{ manager, server float64 }

func (s *scale) readCPU(ctx context.Context) (out cpuUsage, err error) {
	const name = "process_cpu_seconds_total"
	if out.manager, err = s.manager.ReadMetric(ctx, name); err != nil {
		return out, err
	}
	out.server, err = s.readServerMetric(ctx, name)
	return out, err
}

// runBareSlice returns the time that a bare client needs to serve claims of a pool that the manager does not serve.
// The manager observes them, and so the watches are open that any provider needs.
func (s *scale) runBareSlice(ctx context.Context, n int) (time.Duration, error) {
	from := s.bareCount
	s.bareCount += n
	name := func(i int) string { return fmt.Sprintf("bare-%05d", from+i) }
	if err := runEach(ctx, n, func(ctx context.Context, i int) error {
		return s.Create(ctx, framework.MakeClaim(namespace, name(i)).PoolRef(unservedPool.APIGroup, unservedPool.Kind, unservedPool.Name).Obj())
	}); err != nil {
		return 0, err
	}
	if err := s.collectGarbage(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	err := runEach(ctx, n, func(ctx context.Context, i int) error { return s.writeClaim(ctx, name(i), unservedPool, from+i) })
	return time.Since(start), err
}

// unservedPool is a pool without a provider.
var unservedPool = ipamv1.IPPoolReference{APIGroup: "bench.example.com", Kind: "None", Name: "none"}

// runManagedSlice creates claims in the paused pools, unpauses these, and returns the time and the CPU until the
// manager has served them.
func (s *scale) runManagedSlice(ctx context.Context, n int) (took time.Duration, spent cpuUsage, err error) {
	from := s.claimCount
	s.claimCount += n
	if err := runEach(ctx, n, func(ctx context.Context, i int) error {
		return s.Create(ctx, framework.MakeClaim(namespace, claimName(from+i)).Pool(s.pool(from+i)).Obj())
	}); err != nil {
		return 0, spent, err
	}
	if err := waitForPausedConditions(ctx, s.manager); err != nil {
		return 0, spent, err
	}
	if err := s.collectGarbage(ctx); err != nil {
		return 0, spent, err
	}
	before, err := s.readCPU(ctx)
	if err != nil {
		return 0, spent, err
	}
	start := time.Now()
	if err := s.pausePools(ctx, nil); err != nil {
		return 0, spent, err
	}
	s.servedCount += n
	if err := waitForMetric(ctx, s.manager, fulfilmentMetric, float64(s.servedCount)); err != nil {
		return 0, spent, err
	}
	took = time.Since(start)
	after, err := s.readCPU(ctx)
	if err != nil {
		return 0, spent, err
	}
	return took, cpuUsage{after.manager - before.manager, after.server - before.server}, s.pausePools(ctx, "")
}

// pausePools sets the annotation that pauses the pools; nil removes it.
func (s *scale) pausePools(ctx context.Context, value any) error {
	return runEach(ctx, s.pools, func(ctx context.Context, i int) error {
		return s.Patch(ctx, framework.MakePool(s.pool(i)).Namespace(namespace).Obj(),
			metadataPatch(map[string]any{annotationsField: map[string]any{clusterv1.PausedAnnotation: value}}))
	})
}

// memoryUsage is the memory of a manager in bytes: resident, resident without the pages of its binary, and live
// objects.
type memoryUsage struct{ resident, anonymous, live float64 }

func readMemory(ctx context.Context, m *framework.Manager) (out memoryUsage, err error) {
	if out.resident, err = m.ReadMetric(ctx, "process_resident_memory_bytes"); err != nil {
		return out, err
	}
	own, err := m.AnonymousRSS()
	if err != nil {
		return out, err
	}
	out.anonymous = float64(own)
	out.live, err = m.ReadMetric(ctx, "go_gc_heap_live_bytes")
	return out, err
}

// addObjectSizes adds the size of a claim and of its IPAddress.
func (s *scale) addObjectSizes(ctx context.Context, t *table) error {
	size := map[string]int{}
	for _, of := range []storedKind{{"IPAddressClaim", "ipaddressclaims"}, {"IPAddress", "ipaddresses"}} {
		all, err := s.readTemplates(ctx, of)
		if err != nil {
			return err
		}
		size[of.kind] = len(all[0].text)
	}
	t.add("a claim and its IPAddress, as JSON", fmt.Sprintf("%d bytes", size["IPAddressClaim"]+size["IPAddress"]),
		fmt.Sprintf("%d and %d, managed fields included", size["IPAddressClaim"], size["IPAddress"]))
	return nil
}
