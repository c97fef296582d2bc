// chaos injects all faults at once, on a real API server, and checks that no address was held twice and none was
// lost: users create and delete claims and allocations as fast as they are served; managers are killed, frozen for
// longer than their lease, and active concurrently without an election; the API server is killed; and users delete
// and edit objects that they do not own. The observations form a history that porcupine checks, with each address as
// a register.
//
// The seed decides the actions of users and the faults, and their order for each goroutine. The machine decides how
// they interleave: a seed that fails is likely to fail again soon, but not at the same moment.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	o := defaultOptions()
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "decides what happens; printed, to be given again")
	runs := flag.Int("runs", 1, "runs, each with the next seed and a control plane of its own")
	flag.Int64Var(&o.minKills, "kills", 60, "managers that are killed, at least")
	flag.Int64Var(&o.minClaims, "claims", 5000, "claims and allocations that are created, at least")
	flag.BoolVar(&o.carvedOnly, "carved", false, "have users ask carved pools alone")
	flag.Int64Var(&o.nodeCount, "nodes", 0, "Nodes that are created, at least, in the place of claims")
	flag.IntVar(&o.users, "users", 80, "users at a time")
	flag.IntVar(&o.electingManagers, "electing", 2, "managers that elect a leader")
	flag.IntVar(&o.activeManagers, "active", 1, "managers that are active without being elected")
	flag.DurationVar(&o.managerLifetime, "life", o.managerLifetime, "how long a manager lives at most, a fifth of it at least")
	flag.DurationVar(&o.apiServerKillInterval, "api-server", o.apiServerKillInterval, "how often the API server is killed; what a watch shows is held to be wrong only where it never is")
	flag.DurationVar(&o.timeout, "limit", 20*time.Minute, "give up after this time")
	flag.StringVar(&o.managerBinary, "manager", "", "manager binary (default: built from the source)")
	flag.StringVar(&o.outDir, "out", "bin/chaos", "folder for a drawing of a history that is wrong")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	rows, err := runAll(ctx, o, *runs)
	stop()
	fmt.Print(formatTable(rows))
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	for _, r := range rows {
		if len(r.violations) > 0 {
			os.Exit(1)
		}
	}
}

// runAll performs the runs one after the other and returns their results, including those before an error.
func runAll(ctx context.Context, o options, runs int) ([]*result, error) {
	var done []*result
	for range runs {
		fmt.Printf("seed %d\n", o.seed)
		do := runClaimChaos
		if o.nodeCount > 0 {
			do = runNodeChaos
		}
		res, err := do(ctx, o, os.Stdout)
		if err != nil {
			return done, fmt.Errorf("seed %d: %w", o.seed, err)
		}
		for _, v := range res.violations {
			fmt.Println(v)
		}
		done = append(done, res)
		o.seed++
	}
	return done, nil
}

func defaultOptions() options {
	return options{users: 80, electingManagers: 2, activeManagers: 1, managerLifetime: 5 * time.Second, apiServerKillInterval: 45 * time.Second, progressInterval: 15 * time.Second, restTimeout: 3 * time.Minute, timeout: 20 * time.Minute, outDir: "bin/chaos"}
}

// formatTable returns the table of docs/evidence/chaos.md: a row for each run, and their sum.
func formatTable(rows []*result) string {
	out := "| seed | created | served | kills | freezes | API server killed | edits by hand | operations | seconds | violations |\n| - | - | - | - | - | - | - | - | - | - |\n"
	sum := &result{}
	for _, r := range rows {
		out += r.formatRow(fmt.Sprint(r.seed))
		sum.created, sum.served, sum.operations = sum.created+r.created, sum.served+r.served, sum.operations+r.operations
		sum.kills, sum.freezes, sum.restarts, sum.edits = sum.kills+r.kills, sum.freezes+r.freezes, sum.restarts+r.restarts, sum.edits+r.edits
		sum.duration, sum.violations = sum.duration+r.duration, append(sum.violations, r.violations...)
	}
	if len(rows) > 1 {
		out += sum.formatRow("all")
	}
	return out
}

func (r *result) formatRow(name string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %.0f | %d |\n",
		name, r.created, r.served, r.kills, r.freezes, r.restarts, r.edits, r.operations, r.duration.Seconds(), len(r.violations))
}
