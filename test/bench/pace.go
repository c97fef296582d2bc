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

// pace is how fast things were done.
type pace struct {
	// n were done in the time took, after the first ones were, which was so long after the start of who does them.
	n           int
	took, start time.Duration
	// own and server are seconds of CPU of who does them, a manager without its start, and of the API server.
	own, server float64
}

func (p pace) rate() float64 { return float64(p.n) / p.took.Seconds() }

func (p pace) plus(q pace) pace {
	return pace{p.n + q.n, p.took + q.took, p.start + q.start, p.own + q.own, p.server + q.server}
}

// pace adds how fast n things were done in all turns, and beside that of a bare client, unless that is it itself. The share
// by CPU, of the API server and who writes, says what is left of the other one when somebody else uses the machine.
func (t *table) pace(what string, n int, took, bare []pace) (sum pace) {
	var limit pace
	var shares []string
	for i := range took {
		sum, limit = sum.plus(took[i]), limit.plus(bare[i])
		shares = append(shares, fmt.Sprintf("%.2f", took[i].rate()/bare[i].rate()))
	}
	note := fmt.Sprintf("CPU of each: %.2f ms, of the API server %.2f ms", 1000*sum.own/float64(n), 1000*sum.server/float64(n))
	if sum != limit {
		note = fmt.Sprintf("%.2f of the raw limit (goal %.1f), by turns %s; by CPU %.2f; %s", sum.rate()/limit.rate(),
			goalShare, strings.Join(shares, " "), (limit.own+limit.server)/(sum.own+sum.server), note)
	}
	t.add(what, fmt.Sprintf("%.0f/s", sum.rate()), note)
	return sum
}

// spends notes what CPU something takes the API server.
func (c *clients) spends(ctx context.Context, p *pace, do func() error) error {
	before, err := c.ofServer(ctx, cpuSeconds)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := c.ofServer(ctx, cpuSeconds)
	p.server = after - before
	return err
}

// selfCPU is how many seconds of CPU the bench has taken.
func selfCPU() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // of oneself it always can be read
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

// inTurns has a bare client and the manager do n things in rounds, and adds how fast they were.
func inTurns(n int, what string, t *table, bare, managed func(from, to int) (pace, error)) error {
	var limit, took []pace
	for r := range rounds {
		from, to := n*r/rounds, n*(r+1)/rounds
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
	t.pace(fmt.Sprintf("%d %s, bare client", n, what), n, limit, limit)
	t.pace(fmt.Sprintf("%d %s, in turns with it", n, what), n, took, limit)
	return nil
}

// bareTurn is how fast a bare client does something for each of n.
func (c *clients) bareTurn(ctx context.Context, n int, step func(context.Context, int) error) (pace, error) {
	out := pace{n: n}
	if err := c.collectGarbage(ctx); err != nil {
		return out, err
	}
	err := c.spends(ctx, &out, func() error {
		own, start := selfCPU(), time.Now()
		err := each(ctx, n, step)
		out.took, out.own = time.Since(start), selfCPU()-own
		return err
	})
	return out, err
}

// managedTurn is how fast a manager does n things.
func (c *clients) managedTurn(ctx context.Context, m *framework.Manager, n int, do func() error) (pace, error) {
	out := pace{n: n}
	if err := c.collectGarbage(ctx); err != nil {
		return out, err
	}
	before, err := m.Activity(ctx)
	if err != nil {
		return out, err
	}
	err = c.spends(ctx, &out, func() error {
		start := time.Now()
		err := do()
		out.took = time.Since(start)
		return err
	})
	if err != nil {
		return out, err
	}
	after, err := m.Activity(ctx)
	out.own = after.Since(before).CPU
	return out, err
}
