// bench measures the manager relative to the limits of the API server.
//
// It starts a control plane and the manager as a process, and prints one table: for each number of claims the raw
// limit (a bare client doing the three writes that a claim needs) and the manager's burst; then, in the fullest pool,
// single claims, the manager's memory, restart and release. The results of one run can be compared; those of two
// machines cannot.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func main() {
	ctrl.SetLogger(klog.Background())
	var o options
	flag.Func("scale", "sizes to which one control plane is filled, as 1000,10000,50000; nothing else is measured then", o.scale.parse)
	flag.IntVar(&o.pools, "pools", 1, "pools over which the claims of -scale are spread")
	o.bursts = sizes{2000, 10000}
	flag.Func("bursts", "sizes of the bursts, in claims; empty: none (default 2000,10000)", o.bursts.parse)
	flag.IntVar(&o.releases, "releases", 2000, "claims that are released of the largest burst")
	flag.IntVar(&o.singles, "singles", 200, "single claims, one after the other; at least 1")
	flag.IntVar(&o.blocks, "blocks", 5000, "allocations of blocks; 0 leaves them out")
	o.leases = sizes{2000, 10000}
	flag.Func("leases", "sizes of the bursts of leases; empty: none (default 2000,10000)", o.leases.parse)
	flag.IntVar(&o.leasedServices, "leased-services", 500, "Services on leases of their own, one after the other, with the real MetalLB; 0 leaves them out")
	flag.IntVar(&o.elastic, "elastic", 20, "Services that a workload cluster grows for, one after the other; 0 leaves them out")
	flag.IntVar(&o.tenants, "tenants", 50, "workload clusters with 20 Services each that are at rest; 0 leaves them out")
	flag.IntVar(&o.grace, "grace", 11000, "releases of a pool whose addresses rest for an hour; 0 leaves them out")
	flag.IntVar(&o.order, "order", 2000, "releases of a pool that gives what was released longest ago; 0 leaves them out")
	flag.IntVar(&o.refused, "refused", 45, "claims of a namespace whose IPAddresses are refused, beside one that is served; 0 leaves them out")
	flag.IntVar(&o.dropIn, "drop-in", 50, "claims of the in-cluster provider's pools that are at rest; 0 leaves them out")
	flag.IntVar(&o.carved, "carved", 200, "pools that are carved from one, at rest, and half as many that grow; 0 leaves them out")
	flag.IntVar(&o.endpoints, "endpoints", 100, "Clusters whose endpoints are asked for at once; 0 leaves them out")
	flag.IntVar(&o.nodes, "nodes", 5000, "Nodes that get their pod CIDRs; 0 leaves them out")
	flag.StringVar(&o.manager, "manager", "", "manager binary (default: built from the source)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// sizes are numbers of claims, ascending.
type sizes []int

func (s *sizes) parse(text string) error {
	*s = nil
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		*s = append(*s, n)
	}
	return nil
}

type options struct {
	scale                    sizes
	pools                    int
	bursts, leases           sizes
	releases, singles        int
	blocks, elastic, tenants int
	grace, refused, dropIn   int
	carved, nodes, endpoints int
	leasedServices, order    int
	manager                  string
}

func run(ctx context.Context, o options) error {
	if o.singles < 1 {
		return errors.New("-singles: at least 1")
	}
	if o.manager == "" {
		dir, err := os.MkdirTemp("", "butler-ipam-bench-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		// The manager is built once, outside of the measurements.
		if o.manager, err = framework.BuildManager(ctx, dir); err != nil {
			return err
		}
	}
	t := &table{}
	if err := measure(ctx, o, t); err != nil {
		return err
	}
	fmt.Println()
	fmt.Print(t.String())
	return nil
}

func measure(ctx context.Context, o options, t *table) error {
	if len(o.scale) > 0 {
		return measureScale(ctx, o, t)
	}
	for i, n := range o.bursts {
		last := i == len(o.bursts)-1
		raw, err := measureRaw(ctx, n, o, last, t)
		if err != nil {
			return fmt.Errorf("raw limit of %d: %w", n, err)
		}
		if err := measureManager(ctx, o, n, last, raw, t); err != nil {
			return fmt.Errorf("burst of %d: %w", n, err)
		}
	}
	for _, n := range o.leases {
		if err := measureLeases(ctx, o, n, t); err != nil {
			return fmt.Errorf("%d leases: %w", n, err)
		}
	}
	for _, part := range []struct {
		n       int
		name    string
		measure func(context.Context, options, *table) error
	}{
		{o.blocks, "allocations", measureBlocks},
		{o.leasedServices, "Services on leases", measureLeasedServices},
		{o.elastic, "elastic pools", measureElastic},
		{o.tenants, "tenants at rest", measureTenants},
		{o.grace, "releases with a grace", measureGrace},
		{o.order, "what was released longest ago", measureOrder},
		{o.refused, "a namespace that is refused", measureRefused},
		{o.dropIn, "the drop-in at rest", measureDropIn},
		{o.carved, "carved pools", measureCarved},
		{o.nodes, "pod CIDRs of Nodes", measureNodes},
		{o.endpoints, "endpoints of Clusters", measureEndpoints},
	} {
		if part.n == 0 {
			continue
		}
		if err := part.measure(ctx, o, t); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// withControlPlane starts a new control plane for use: no measurement inherits the data of another.
func withControlPlane(ctx context.Context, use func(*clients) error) error {
	// Every five minutes the API server lists each kind from etcd to compare it with its cache. With 50,000 claims
	// that takes it some 20 s of CPU, in an arbitrary turn.
	cp, err := framework.StartControlPlane(framework.Options{APIServerArgs: map[string]string{"feature-gates": "DetectCacheInconsistency=false"}})
	if err != nil {
		return err
	}
	defer func() { _ = cp.Stop() }()
	c, err := newClients(ctx, cp)
	if err != nil {
		return err
	}
	return use(c)
}

func measureManager(ctx context.Context, o options, n int, full bool, limit float64, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		m, err := c.startManager(ctx, o.manager)
		if err != nil {
			return err
		}
		defer func() { _ = m.Kill() }()
		foreign, err := c.createForeignPool(ctx)
		if err != nil {
			return err
		}
		took, cpu, err := c.runClaimBurst(ctx, m, n)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, m.LogTail(20))
		}
		t.rate(fmt.Sprintf("burst of %d claims", n), n, took, limit)
		t.add(fmt.Sprintf("manager CPU, %d claims", n), fmt.Sprintf("%.2f ms a claim", cpu*1000/float64(n)), "")
		if !full {
			return nil
		}
		if err := c.measureSingles(ctx, foreign, o.singles, n, t); err != nil {
			return err
		}
		rss, err := m.PeakRSS()
		if err != nil {
			return err
		}
		t.add(fmt.Sprintf("manager memory, peak, %d claims", n), fmt.Sprintf("%.0f MB", float64(rss)/1e6), "")
		if m, err = c.measureRestart(ctx, m, o.manager, n, t); err != nil {
			return err
		}
		defer func() { _ = m.Kill() }()
		released := min(n, o.releases)
		took, err = c.timeRelease(ctx, m, released)
		if err != nil {
			return err
		}
		t.rate(fmt.Sprintf("release of %d claims of %d", released, n), released, took, limit)
		if rss, err = m.PeakRSS(); err != nil {
			return err
		}
		t.add("manager memory, peak, after restart and release", fmt.Sprintf("%.0f MB", float64(rss)/1e6), "")
		_, err = measureRest(ctx, m)
		return err
	})
}

// measureRestart kills the manager and measures the time from the start of a new process until the first new claim
// has its address. It returns the new manager.
func (c *clients) measureRestart(ctx context.Context, m *framework.Manager, binary string, n int, t *table) (*framework.Manager, error) {
	if err := m.Kill(); err != nil {
		return nil, err
	}
	if err := c.createClaim(ctx, "restart"); err != nil {
		return nil, err
	}
	start := time.Now()
	m, err := c.startManager(ctx, binary)
	if err != nil {
		return nil, err
	}
	ready := time.Since(start)
	if err := c.waitForClaim(ctx, "restart"); err != nil {
		return nil, err
	}
	t.add(fmt.Sprintf("restart with %d addresses: first new claim", n),
		fmt.Sprintf("%.2f s", time.Since(start).Seconds()), fmt.Sprintf("ready after %.2f s", ready.Seconds()))
	return m, nil
}
