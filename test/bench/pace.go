package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const cpuSeconds = "process_cpu_seconds_total"

// turns is how often a bare client and the manager alternate: other load on the machine then slows both.
const turns = 5

// pace is a number of operations with the time and CPU that they took.
type pace struct {
	n        int
	duration time.Duration
	// clientCPU is the CPU time in seconds of the processes that do the operations, serverCPU that of the API server.
	clientCPU, serverCPU float64
}

func (p pace) rate() float64 { return float64(p.n) / p.duration.Seconds() }

func (p pace) add(q pace) pace {
	return pace{p.n + q.n, p.duration + q.duration, p.clientCPU + q.clientCPU, p.serverCPU + q.serverCPU}
}

func (p pace) formatRate() string { return fmt.Sprintf("%.0f/s", p.rate()) }

func (p pace) formatCPU(n int) string {
	return fmt.Sprintf("CPU of each: %.2f ms, of the API server %.2f ms", 1000*p.clientCPU/float64(n), 1000*p.serverCPU/float64(n))
}

// compareTurns runs n operations in turns that alternate between a bare client and the manager, each of which does
// the operations with numbers in [from, to), and adds both rates. The share by CPU time, of the API server and the
// writing processes together, is valid even if other processes use the machine.
func compareTurns(t *table, what string, n, turns int, limit float64, bare, managed func(from, to int) (pace, error)) error {
	var bareSum, managedSum pace
	var shares []string
	for i := range turns {
		from, to := n*i/turns, n*(i+1)/turns
		b, err := bare(from, to)
		if err != nil {
			return fmt.Errorf("%s, by a bare client: %w", what, err)
		}
		m, err := managed(from, to)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		bareSum, managedSum = bareSum.add(b), managedSum.add(m)
		shares = append(shares, fmt.Sprintf("%.2f", m.rate()/b.rate()))
	}
	t.add(what+", bare client", bareSum.formatRate(), bareSum.formatCPU(n))
	t.addShare(what+", manager in turns with it", managedSum.formatRate(), managedSum.rate()/bareSum.rate(), limit, fmt.Sprintf("by turns %s; by CPU %.2f; %s",
		strings.Join(shares, " "), (bareSum.clientCPU+bareSum.serverCPU)/(managedSum.clientCPU+managedSum.serverCPU), managedSum.formatCPU(n)))
	return nil
}

// measureTurn returns the pace of n operations, which do runs. clientCPU returns the CPU time of the processes
// that do them. The API server collects its garbage first: with tens of thousands of objects that takes seconds, and
// would fall into one turn or another.
func (c *clients) measureTurn(ctx context.Context, n int, clientCPU func() (float64, error), do func() error) (pace, error) {
	if err := c.collectGarbage(ctx); err != nil {
		return pace{}, err
	}
	readCPU := func() (client, server float64, err error) {
		if client, err = clientCPU(); err == nil {
			server, err = c.readServerMetric(ctx, cpuSeconds)
		}
		return client, server, err
	}
	client, server, err := readCPU()
	if err != nil {
		return pace{}, err
	}
	start := time.Now()
	if err := do(); err != nil {
		return pace{}, err
	}
	out := pace{n: n, duration: time.Since(start)}
	out.clientCPU, out.serverCPU, err = readCPU()
	out.clientCPU -= client
	out.serverCPU -= server
	return out, err
}

// measureBareTurn returns the pace at which a bare client runs a step for each of n.
func (c *clients) measureBareTurn(ctx context.Context, n int, step func(context.Context, int) error) (pace, error) {
	return c.measureTurn(ctx, n, readOwnCPU, func() error { return runEach(ctx, n, step) })
}

// measureManagerTurn returns the pace at which a manager does n operations; do waits for them.
func (c *clients) measureManagerTurn(ctx context.Context, m *framework.Manager, n int, do func() error) (pace, error) {
	return c.measureTurn(ctx, n, func() (float64, error) { return m.ReadMetric(ctx, cpuSeconds) }, do)
}

// measureRequestedTurn is measureManagerTurn for operations that begin with writes of the user, which do does: the CPU
// of the benchmark is included, as in the turn of the bare client.
func (c *clients) measureRequestedTurn(ctx context.Context, m *framework.Manager, n int, do func() error) (pace, error) {
	return c.measureTurn(ctx, n, func() (float64, error) {
		managed, err := m.ReadMetric(ctx, cpuSeconds)
		if err != nil {
			return 0, err
		}
		own, err := readOwnCPU()
		return managed + own, err
	}, do)
}

// measureResumedTurn creates n objects in the paused pools, and returns the pace at which the manager serves them
// once the pools are resumed: until a counter of the manager has reached total.
func (c *clients) measureResumedTurn(ctx context.Context, m *framework.Manager, n int, create func(context.Context, int) error, counter string, total int) (pace, error) {
	if err := runEach(ctx, n, create); err != nil {
		return pace{}, err
	}
	// The conditions that a pause sets are not part of the turn.
	if err := waitUntilSettled(ctx, m, time.Second); err != nil {
		return pace{}, err
	}
	out, err := c.measureManagerTurn(ctx, m, n, func() error {
		if err := c.pausePools(ctx, false); err != nil {
			return err
		}
		return waitForMetric(ctx, m, counter, float64(total))
	})
	if err != nil {
		return pace{}, err
	}
	return out, c.pausePools(ctx, true)
}

// readOwnCPU returns the CPU time of the benchmark in seconds.
func readOwnCPU() (float64, error) {
	var used syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds(), err
}

func median[T cmp.Ordered](of []T) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
