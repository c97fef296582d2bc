// bench measures the manager relative to the limits of the API server.
//
// Each measure starts a control plane and the manager as a process, and alternates the manager with a bare client that
// does the same writes: only results of one run can be compared. The manager's share of the bare client's pace has a
// lower limit in each measure; below it, bench fails. docs/performance.md explains the results.
//
//	bench [flags] [claims] [blocks] [leases] [nodes] [endpoints]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

type options struct {
	claims                           []int
	pools                            int
	blocks, leases, nodes, endpoints int
	manager                          string
}

// measures are the measures by name, in the order in which they run.
var measures = []struct {
	name string
	run  func(context.Context, options, *table) error
}{
	{"claims", measureClaims},
	{"blocks", measureBlocks},
	{"leases", measureLeases},
	{"nodes", measureNodes},
	{"endpoints", measureEndpoints},
}

func main() {
	ctrl.SetLogger(klog.Background())
	o := options{claims: []int{1000, 10000}}
	flag.Func("claims", "ascending numbers of claims at which the manager is measured (default 1000,10000)", o.parseClaims)
	flag.IntVar(&o.pools, "pools", 1, "pools over which the claims are spread")
	flag.IntVar(&o.blocks, "blocks", 5000, "allocations of blocks")
	flag.IntVar(&o.leases, "leases", 2000, "leases")
	flag.IntVar(&o.nodes, "nodes", 5000, "Nodes that get their pod CIDRs")
	flag.IntVar(&o.endpoints, "endpoints", 100, "Clusters whose endpoints are requested at once")
	flag.StringVar(&o.manager, "manager", "", "manager binary, of another commit for example (default: built from the source)")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: bench [flags] [measures], by default all of %s\n", strings.Join(measureNames(), ", "))
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (o *options) parseClaims(text string) error {
	o.claims = nil
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		o.claims = append(o.claims, n)
	}
	return nil
}

// check returns an error if a size is so small that a turn would have nothing to do.
func (o options) check() error {
	type size struct {
		flag     string
		n, least int
	}
	sizes := []size{
		{"pools", o.pools, 1}, {"blocks", o.blocks, leastBlocks}, {"leases", o.leases, turns}, {"nodes", o.nodes, 1}, {"endpoints", o.endpoints, 1},
	}
	for _, n := range o.claims {
		sizes = append(sizes, size{"claims", n, 1})
	}
	for _, s := range sizes {
		if s.n < s.least {
			return fmt.Errorf("-%s %d: at least %d", s.flag, s.n, s.least)
		}
	}
	return nil
}

func measureNames() (out []string) {
	for _, m := range measures {
		out = append(out, m.name)
	}
	return out
}

func run(ctx context.Context, o options, names []string) error {
	for _, name := range names {
		if !slices.Contains(measureNames(), name) {
			return fmt.Errorf("unknown measure %q: there are %s", name, strings.Join(measureNames(), ", "))
		}
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.manager == "" {
		dir, err := os.MkdirTemp("", "butler-ipam-bench-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if o.manager, err = framework.BuildManager(ctx, dir); err != nil {
			return err
		}
	}
	t := &table{}
	err := runMeasures(ctx, o, names, t)
	fmt.Printf("\n%s", t)
	return errors.Join(err, t.checkLimits())
}

// runMeasures runs the measures with the given names, or all, until one returns an error.
func runMeasures(ctx context.Context, o options, names []string, t *table) error {
	for _, m := range measures {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		if err := m.run(ctx, o, t); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}
