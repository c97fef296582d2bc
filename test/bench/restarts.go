package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// restarts adds, in turns, how long a bare client needs to read what exists, and how long it takes from the start of a
// manager to the first new claim with an address. The median of each counts.
func (s *scale) restarts(ctx context.Context, binary string, t *table) error {
	var read, ready, served, spent []float64
	for i := range rounds {
		if err := s.m.Kill(); err != nil {
			return err
		}
		took, err := s.readAll(ctx)
		if err != nil {
			return fmt.Errorf("reading what exists: %w", err)
		}
		name := fmt.Sprint("restart-", i)
		if err := s.Create(ctx, framework.MakeClaim(namespace, name).Pool(s.pool(0)).Obj()); err != nil {
			return err
		}
		if err := s.collectGarbage(ctx); err != nil {
			return err
		}
		start := time.Now()
		if s.m, err = s.manager(ctx, binary); err != nil {
			return err
		}
		read, ready = append(read, took.Seconds()), append(ready, time.Since(start).Seconds())
		if err := s.waitBound(ctx, name); err != nil {
			return err
		}
		served = append(served, time.Since(start).Seconds())
		cpu, err := s.m.Metric(ctx, "process_cpu_seconds_total")
		if err != nil {
			return err
		}
		spent = append(spent, cpu)
	}
	t.add(fmt.Sprintf("both lists of %d claims, thrown away by a bare client", s.has), fmt.Sprintf("%.2f s", median(read)), fmt.Sprintf("of %.1f", read))
	t.add(fmt.Sprintf("restart with %d claims: first new claim has its address", s.has), fmt.Sprintf("%.2f s", median(served)),
		fmt.Sprintf("of %.1f; ready after %.2f s; %.1f s of CPU", served, median(ready), median(spent)))
	rss, err := s.m.PeakRSS()
	t.add("manager memory, peak, after the restart", fmt.Sprintf("%.0f MB", float64(rss)/1e6), "")
	return err
}

func median[T cmp.Ordered](of []T) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// readAll takes the time that the API server needs to send all claims and all IPAddresses, both at once.
func (s *scale) readAll(ctx context.Context) (time.Duration, error) {
	if err := s.collectGarbage(ctx); err != nil {
		return 0, err
	}
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for _, resource := range []string{"ipaddressclaims", "ipaddresses"} {
		g.Go(func() error { return s.get(ctx, fmt.Sprintf("/apis/%s/%s", ipamv1.GroupVersion, resource), io.Discard) })
	}
	err := g.Wait()
	return time.Since(start), err
}

// takeovers adds how long it takes until another manager, which runs already, serves a new claim.
func (s *scale) takeovers(ctx context.Context, binary string, t *table) error {
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
		t.add(fmt.Sprintf("takeover with %d claims: %s", s.has, how.what), fmt.Sprintf("%.2f s", took.Seconds()), "until a new claim has its address")
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
