package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const cpuSeconds = "process_cpu_seconds_total"

// pace is a number of operations with the time and CPU that they took.
type pace struct {
	// n operations took duration. For a process that starts in the turn, duration counts from its first operation,
	// and start is the time between its start and that.
	n               int
	duration, start time.Duration
	// clientCPU is the CPU time in seconds of the process that does the operations (of a manager without its start),
	// serverCPU that of the API server.
	clientCPU, serverCPU float64
}

func (p pace) rate() float64 { return float64(p.n) / p.duration.Seconds() }

func (p pace) add(q pace) pace {
	return pace{p.n + q.n, p.duration + q.duration, p.start + q.start, p.clientCPU + q.clientCPU, p.serverCPU + q.serverCPU}
}

// addPace adds the rate of n operations over all turns, and, unless it is the bare client itself, the ratio to the
// rate of the bare client. The ratio by CPU time, of the API server and the writing process together, is valid even
// if other processes use the machine.
func (t *table) addPace(what string, n int, took, bare []pace) (sum pace) {
	var limit pace
	var shares []string
	for i := range took {
		sum, limit = sum.add(took[i]), limit.add(bare[i])
		shares = append(shares, fmt.Sprintf("%.2f", took[i].rate()/bare[i].rate()))
	}
	note := fmt.Sprintf("CPU of each: %.2f ms, of the API server %.2f ms", 1000*sum.clientCPU/float64(n), 1000*sum.serverCPU/float64(n))
	if sum != limit {
		note = fmt.Sprintf("%.2f of the raw limit (goal %.1f), by turns %s; by CPU %.2f; %s", sum.rate()/limit.rate(),
			goalShare, strings.Join(shares, " "), (limit.clientCPU+limit.serverCPU)/(sum.clientCPU+sum.serverCPU), note)
	}
	t.add(what, fmt.Sprintf("%.0f/s", sum.rate()), note)
	return sum
}

// recordServerCPU records the CPU time of the API server during do.
func (c *clients) recordServerCPU(ctx context.Context, p *pace, do func() error) error {
	before, err := c.readServerMetric(ctx, cpuSeconds)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := c.readServerMetric(ctx, cpuSeconds)
	p.serverCPU = after - before
	return err
}

// processCPU returns the CPU time of the benchmark in seconds.
func processCPU() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // a process can always read its own usage
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

// compareTurns runs n operations in rounds that alternate between a bare client and the manager, and adds their
// rates.
func compareTurns(n int, what string, t *table, bare, managed func(from, to int) (pace, error)) error {
	var limit, took []pace
	for r := range turnRounds {
		from, to := n*r/turnRounds, n*(r+1)/turnRounds
		got, err := bare(from, to)
		if err != nil {
			return fmt.Errorf("by a bare client: %w", err)
		}
		limit = append(limit, got)
		if got, err = managed(from, to); err != nil {
			return err
		}
		took = append(took, got)
	}
	t.addPace(fmt.Sprintf("%d %s, bare client", n, what), n, limit, limit)
	t.addPace(fmt.Sprintf("%d %s, in turns with it", n, what), n, took, limit)
	return nil
}

// runBareTurn returns the pace at which a bare client runs a step for each of n.
func (c *clients) runBareTurn(ctx context.Context, n int, step func(context.Context, int) error) (pace, error) {
	out := pace{n: n}
	if err := c.collectGarbage(ctx); err != nil {
		return out, err
	}
	err := c.recordServerCPU(ctx, &out, func() error {
		own, start := processCPU(), time.Now()
		err := runEach(ctx, n, step)
		out.duration, out.clientCPU = time.Since(start), processCPU()-own
		return err
	})
	return out, err
}

// runManagedTurn returns the pace at which a manager does n operations.
func (c *clients) runManagedTurn(ctx context.Context, m *framework.Manager, n int, do func() error) (pace, error) {
	out := pace{n: n}
	if err := c.collectGarbage(ctx); err != nil {
		return out, err
	}
	before, err := m.ReadActivity(ctx)
	if err != nil {
		return out, err
	}
	err = c.recordServerCPU(ctx, &out, func() error {
		start := time.Now()
		err := do()
		out.duration = time.Since(start)
		return err
	})
	if err != nil {
		return out, err
	}
	after, err := m.ReadActivity(ctx)
	out.clientCPU = after.Since(before).CPU
	return out, err
}
