package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureRestarts adds, in alternation, the time that a bare client needs to read all objects, and the time from the
// start of a manager until the first new claim has its address: the median of each.
func (f *claimFleet) measureRestarts(ctx context.Context, t *table) error {
	var read, ready, served, spent []float64
	for i := range turns {
		f.kill()
		took, err := f.readAll(ctx)
		if err != nil {
			return fmt.Errorf("reading what exists: %w", err)
		}
		claim := framework.MakeClaim(namespace, fmt.Sprint("restart-", i)).Pool(f.pool(0)).Obj()
		f.singleCount++
		if err := f.Create(ctx, claim); err != nil {
			return err
		}
		if err := f.collectGarbage(ctx); err != nil {
			return err
		}
		start := time.Now()
		if err := f.restartManager(ctx); err != nil {
			return err
		}
		read, ready = append(read, took.Seconds()), append(ready, time.Since(start).Seconds())
		if err := watchUntil(ctx, f.clients, &ipamv1.IPAddressClaimList{}, claim, doNothing, isReady); err != nil {
			return err
		}
		served = append(served, time.Since(start).Seconds())
		cpu, err := f.manager.ReadMetric(ctx, cpuSeconds)
		if err != nil {
			return err
		}
		spent = append(spent, cpu)
	}
	t.add(fmt.Sprintf("both lists of %d claims, read by a bare client", f.claimCount), fmt.Sprintf("%.2f s", median(read)), fmt.Sprintf("of %.1f", read))
	t.add(fmt.Sprintf("restart with %d claims: first new claim has its address", f.claimCount), fmt.Sprintf("%.2f s", median(served)),
		fmt.Sprintf("of %.1f; ready after %.2f s; %.1f s of CPU", served, median(ready), median(spent)))
	rss, err := f.manager.PeakRSS()
	t.add("manager memory, peak, after the restart", fmt.Sprintf("%.0f MB", float64(rss)/1e6), "")
	return err
}

// readAll returns the time that the API server needs to send all claims and all IPAddresses, both lists at once.
func (f *claimFleet) readAll(ctx context.Context) (time.Duration, error) {
	if err := f.collectGarbage(ctx); err != nil {
		return 0, err
	}
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for _, k := range []storedKind{claimKind, addressKind} {
		g.Go(func() error {
			return f.getRaw(ctx, fmt.Sprintf("/apis/%s/%s", ipamv1.GroupVersion, k.resource), io.Discard)
		})
	}
	err := g.Wait()
	return time.Since(start), err
}

// measureTakeovers adds the time until another manager, which runs already, serves a new claim.
func (f *claimFleet) measureTakeovers(ctx context.Context, t *table) error {
	for _, how := range []struct {
		what    string
		elected bool
		end     func(*framework.Manager) error
	}{
		{"of two elected managers, the leader is stopped (SIGTERM)", true, (*framework.Manager).Stop},
		{"of two elected managers, the leader is killed (SIGKILL)", true, (*framework.Manager).Kill},
		{"of two active managers, the holder of the pools is killed (SIGKILL)", false, (*framework.Manager).Kill},
	} {
		if err := f.stop(); err != nil {
			return err
		}
		took, err := f.timeTakeover(ctx, how.elected, how.end)
		if err != nil {
			return fmt.Errorf("%s: %w", how.what, err)
		}
		t.add(fmt.Sprintf("takeover with %d claims: %s", f.claimCount, how.what), fmt.Sprintf("%.2f s", took.Seconds()), "until a new claim has its address")
	}
	return nil
}

func (f *claimFleet) timeTakeover(ctx context.Context, elected bool, end func(*framework.Manager) error) (time.Duration, error) {
	start := func() (*framework.Manager, error) {
		return f.startManager(ctx, framework.ManagerOptions{Binary: f.binary, LeaderElect: elected, Args: framework.ComponentFlags()})
	}
	holder, err := start()
	if err != nil {
		return 0, err
	}
	other, err := start()
	if err != nil {
		return 0, errors.Join(err, holder.Kill())
	}
	if !elected {
		holder, other = other, holder // a starting manager takes over the pools
	}
	f.manager = other
	var g errgroup.Group
	claim := framework.MakeClaim(namespace, fmt.Sprintf("takeover-%d", time.Now().UnixNano())).Pool(f.pool(0)).Obj()
	f.singleCount++
	began := time.Now()
	g.Go(func() error { return end(holder) })
	err = watchUntil(ctx, f.clients, &ipamv1.IPAddressClaimList{}, claim, func() error { return f.Create(ctx, claim) }, isReady)
	return time.Since(began), errors.Join(err, g.Wait())
}
