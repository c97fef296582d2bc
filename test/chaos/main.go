// chaos lets everything go wrong at once, on a real API server, and checks that no address was held twice and none was
// lost: users create and delete claims and allocations as fast as they are served while managers are killed, frozen for
// longer than their lease, and active beside each other without an election, the API server is killed, and people
// delete and edit what is not theirs. What users saw is a history that porcupine checks, each address a register.
//
// The seed decides what users, faults and people do, and in which order each of them does it. How they interleave is
// decided by the machine: a seed that fails is run again to fail again, soon, but not at the same moment.
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
	o := defaults()
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "decides what happens; printed, to be given again")
	runs := flag.Int("runs", 1, "runs, each with the next seed and a control plane of its own")
	flag.Int64Var(&o.kills, "kills", 60, "managers that are killed, at least")
	flag.Int64Var(&o.claims, "claims", 5000, "claims and allocations that are created, at least")
	flag.BoolVar(&o.carved, "carved", false, "have users ask carved pools alone")
	flag.Int64Var(&o.nodes, "nodes", 0, "Nodes that are created, at least, in the place of claims")
	flag.IntVar(&o.users, "users", 80, "users at a time")
	flag.IntVar(&o.electing, "electing", 2, "managers that elect a leader")
	flag.IntVar(&o.active, "active", 1, "managers that are active without being elected")
	flag.DurationVar(&o.life, "life", o.life, "how long a manager lives at most, a fifth of it at least")
	flag.DurationVar(&o.apiServerEvery, "api-server", o.apiServerEvery, "how often the API server is killed; what a watch shows is held to be wrong only where it never is")
	flag.DurationVar(&o.limit, "limit", 20*time.Minute, "give up after this time")
	flag.StringVar(&o.manager, "manager", "", "manager binary (default: built from the source)")
	flag.StringVar(&o.out, "out", "bin/chaos", "folder for a drawing of a history that is wrong")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	rows, err := all(ctx, o, *runs)
	stop()
	fmt.Print(table(rows))
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

// all does one run after the other and returns what they were, those before an error too.
func all(ctx context.Context, o options, runs int) ([]*result, error) {
	var done []*result
	for range runs {
		fmt.Printf("seed %d\n", o.seed)
		do := run
		if o.nodes > 0 {
			do = runNodes
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

func defaults() options {
	return options{users: 80, electing: 2, active: 1, life: 5 * time.Second, apiServerEvery: 45 * time.Second, progressEvery: 15 * time.Second, restAfter: 3 * time.Minute, limit: 20 * time.Minute, out: "bin/chaos"}
}

// table is that of docs/evidence/chaos.md: a row for each run, and their sum.
func table(rows []*result) string {
	out := "| seed | created | served | kills | freezes | API server killed | edits by hand | operations | seconds | violations |\n| - | - | - | - | - | - | - | - | - | - |\n"
	sum := &result{}
	for _, r := range rows {
		out += r.row(fmt.Sprint(r.seed))
		sum.created, sum.served, sum.operations = sum.created+r.created, sum.served+r.served, sum.operations+r.operations
		sum.kills, sum.freezes, sum.restarts, sum.edits = sum.kills+r.kills, sum.freezes+r.freezes, sum.restarts+r.restarts, sum.edits+r.edits
		sum.took, sum.violations = sum.took+r.took, append(sum.violations, r.violations...)
	}
	if len(rows) > 1 {
		out += sum.row("all")
	}
	return out
}

func (r *result) row(name string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %.0f | %d |\n",
		name, r.created, r.served, r.kills, r.freezes, r.restarts, r.edits, r.operations, r.took.Seconds(), len(r.violations))
}
