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

// measureRestarts adds, in alternation, the time that a bare client needs to read all objects, and the time from the
// start of a manager until the first new claim has its address. It reports the median of each.
func (s *scale) measureRestarts(ctx context.Context, binary string, t *table) error {
	var read, ready, served, spent []float64
	for i := range turnRounds {
		if err := s.manager.Kill(); err != nil {
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
		if s.manager, err = s.startManager(ctx, binary); err != nil {
			return err
		}
		read, ready = append(read, took.Seconds()), append(ready, time.Since(start).Seconds())
		if err := s.watchUntilBound(ctx, name); err != nil {
			return err
		}
		served = append(served, time.Since(start).Seconds())
		cpu, err := s.manager.ReadMetric(ctx, "process_cpu_seconds_total")
		if err != nil {
			return err
		}
		spent = append(spent, cpu)
	}
	t.add(fmt.Sprintf("both lists of %d claims, thrown away by a bare client", s.claimCount), fmt.Sprintf("%.2f s", median(read)), fmt.Sprintf("of %.1f", read))
	t.add(fmt.Sprintf("restart with %d claims: first new claim has its address", s.claimCount), fmt.Sprintf("%.2f s", median(served)),
		fmt.Sprintf("of %.1f; ready after %.2f s; %.1f s of CPU", served, median(ready), median(spent)))
	rss, err := s.manager.PeakRSS()
	t.add("manager memory, peak, after the restart", fmt.Sprintf("%.0f MB", float64(rss)/1e6), "")
	return err
}

func median[T cmp.Ordered](of []T) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// readAll returns the time that the API server needs to send all claims and all IPAddresses, both lists at once.
func (s *scale) readAll(ctx context.Context) (time.Duration, error) {
	if err := s.collectGarbage(ctx); err != nil {
		return 0, err
	}
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for _, resource := range []string{"ipaddressclaims", "ipaddresses"} {
		g.Go(func() error {
			return s.getRaw(ctx, fmt.Sprintf("/apis/%s/%s", ipamv1.GroupVersion, resource), io.Discard)
		})
	}
	err := g.Wait()
	return time.Since(start), err
}

// measureTakeovers adds the time until another manager, which runs already, serves a new claim.
func (s *scale) measureTakeovers(ctx context.Context, binary string, t *table) error {
	for _, how := range []struct {
		what    string
		elected bool
		end     func(*framework.Manager) error
	}{
		{"of two elected managers, the leader is stopped (SIGTERM)", true, (*framework.Manager).Stop},
		{"of two elected managers, the leader is killed (SIGKILL)", true, (*framework.Manager).Kill},
		{"of two active managers, the holder of the pools is killed (SIGKILL)", false, (*framework.Manager).Kill},
	} {
		if err := s.manager.Stop(); err != nil {
			return err
		}
		took, err := s.timeTakeover(ctx, binary, how.elected, how.end)
		if err != nil {
			return fmt.Errorf("%s: %w", how.what, err)
		}
		t.add(fmt.Sprintf("takeover with %d claims: %s", s.claimCount, how.what), fmt.Sprintf("%.2f s", took.Seconds()), "until a new claim has its address")
	}
	return nil
}

func (s *scale) timeTakeover(ctx context.Context, binary string, elected bool, end func(*framework.Manager) error) (time.Duration, error) {
	elect := fmt.Sprintf("--leader-elect=%t", elected)
	first, err := s.startManager(ctx, binary, elect)
	if err != nil {
		return 0, err
	}
	second, err := s.startManager(ctx, binary, elect)
	if err != nil {
		return 0, errors.Join(err, first.Kill())
	}
	holder, other := first, second
	if !elected {
		holder, other = second, first // a starting manager takes over the pools
	}
	s.manager = other
	var g errgroup.Group
	start := time.Now()
	g.Go(func() error { return end(holder) })
	name := fmt.Sprintf("takeover-%d", start.UnixNano())
	err = s.Create(ctx, framework.MakeClaim(namespace, name).Pool(s.pool(0)).Obj())
	if err == nil {
		err = s.watchUntilBound(ctx, name)
	}
	took := time.Since(start)
	return took, errors.Join(err, g.Wait())
}
