package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// nodeWriters is the default number of writers of the manager.
	nodeWriters = 32
	// nodeRounds is how often the contenders alternate. It is smaller than for claims: each turn needs new Nodes,
	// since podCIDRs can be written only once.
	nodeRounds = 3
	// nodeRange has room for 32,768 Nodes. The benchmark itself gives the last CIDRs of it to single Nodes.
	nodeRange, nodeHostBits = "10.128.0.0/9", 8

	grantsMetric = "node_ipam_controller_multicidrset_cidrs_allocations_total"
)

// Goals for the Node CIDR allocator. They are printed beside the measurements.
const (
	goalShare  = 0.9
	goalSingle = 1.0 // times the duration of two API writes
	goalStart  = 3.0 // seconds
	goalMemory = 2.0 // KB a Node
)

// nodeFleet is a control plane with Nodes that need their pod CIDRs.
type nodeFleet struct {
	*clients
	nodeCount          int
	binary, kubeconfig string
	// baseMemory is the memory of a manager that is ready and has no Nodes; baseCPU is the CPU time of its start in
	// seconds.
	baseMemory memoryUsage
	baseCPU    float64
}

// measureNodes adds the rate at which n Nodes get their pod CIDRs from a bare client, the manager and
// kube-controller-manager in alternation, the time for a single Node, and the memory of the manager.
func measureNodes(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		kubeconfig, err := c.controlPlane.NodesManagerKubeconfig(ctx)
		if err != nil {
			return err
		}
		f := &nodeFleet{clients: c, nodeCount: o.nodes, binary: o.manager, kubeconfig: kubeconfig}
		if err := f.measureEmptyManager(ctx, t); err != nil {
			return err
		}
		if err := f.compareContenders(ctx, t); err != nil {
			return err
		}
		return f.measureAtRest(ctx, t)
	})
}

// measureEmptyManager creates the range, and measures a manager that has no Nodes.
func (f *nodeFleet) measureEmptyManager(ctx context.Context, t *table) error {
	cidr := &v1alpha1.ClusterCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: poolName},
		Spec:       v1alpha1.ClusterCIDRSpec{PerNodeHostBits: nodeHostBits, IPv4: nodeRange},
	}
	if err := f.Create(ctx, cidr); err != nil {
		return err
	}
	return f.withManagerServing(ctx, 0, func(m *framework.Manager, _ pace) error {
		if err := sleepContext(ctx, statusWriteDelay); err != nil {
			return err
		}
		does, err := m.ReadActivity(ctx)
		if err != nil {
			return err
		}
		f.baseCPU = does.CPU
		f.baseMemory, err = memoryAfterGC(ctx, m)
		t.add("manager of pod CIDRs, no Nodes", fmt.Sprintf("%.0f MB", f.baseMemory.resident/1e6),
			fmt.Sprintf("%.0f MB without the pages of the program; %.2f s of CPU", f.baseMemory.anonymous/1e6, f.baseCPU))
		return err
	})
}

// registerAll creates the Nodes. removeAll deletes them; it must not be called while an allocator runs.
func (f *nodeFleet) registerAll(ctx context.Context) error {
	return runEach(ctx, f.nodeCount, func(ctx context.Context, i int) error { return f.Create(ctx, newNode(nodeName(i))) })
}

func (f *nodeFleet) removeAll(ctx context.Context) error {
	return runEach(ctx, f.nodeCount, func(ctx context.Context, i int) error {
		return f.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}})
	})
}

// withManagerServing starts a manager, waits until it has given n Nodes their CIDRs, and passes it to use.
func (f *nodeFleet) withManagerServing(ctx context.Context, n int, use func(*framework.Manager, pace) error) error {
	start := time.Now()
	m, err := framework.LaunchManager(ctx, framework.ManagerOptions{
		Binary: f.binary, Kubeconfig: f.kubeconfig, Args: []string{"--node-cidrs=only"},
	})
	if err != nil {
		return err
	}
	defer func() { _ = m.Kill() }()
	var got pace
	err = f.recordServerCPU(ctx, &got, func() error { return f.waitForGrants(ctx, m, n, start, &got) })
	if err == nil {
		err = use(m, got)
	}
	if err == nil {
		// Without the wait the next manager would find grants in flight, and wait until it is sure that this manager
		// is gone.
		err = sleepContext(ctx, commitDelay)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	return nil
}

// waitForGrants waits for the first grant, and for the last of n. It reads the manager's counter: a watch in the
// benchmark would be a load that the raw limit does not include.
func (f *nodeFleet) waitForGrants(ctx context.Context, m *framework.Manager, n int, start time.Time, out *pace) error {
	if n == 0 {
		return nil
	}
	first, err := waitForFirstCount(ctx, func(ctx context.Context) (float64, error) { return m.ReadMetric(ctx, grantsMetric) })
	if err != nil {
		return err
	}
	began := time.Now()
	out.start = began.Sub(start)
	if err := waitForMetric(ctx, m, grantsMetric, float64(n)); err != nil {
		return err
	}
	out.n, out.duration = n-int(first), time.Since(began)
	does, err := m.ReadActivity(ctx)
	out.clientCPU = does.CPU - f.baseCPU
	return err
}

// waitForFirstCount polls a counter until it is greater than zero, and returns it. Errors are ignored meanwhile: the
// process may be starting.
func waitForFirstCount(ctx context.Context, ask func(context.Context) (float64, error)) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		got, last := ask(ctx)
		if last == nil && got > 0 {
			return got, nil
		}
		if err := sleepContext(ctx, metricsPeriod/10); err != nil {
			return 0, errors.Join(err, last)
		}
	}
}

// checkNodeCIDRs returns an error unless every Node has CIDRs, and no two Nodes have the same.
func (f *nodeFleet) checkNodeCIDRs(ctx context.Context) error {
	all := &corev1.NodeList{}
	if err := f.List(ctx, all); err != nil {
		return err
	}
	has := map[netip.Prefix]string{}
	for i := range all.Items {
		n := &all.Items[i]
		p, err := netip.ParsePrefix(n.Spec.PodCIDR)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		if other, is := has[p]; is {
			return fmt.Errorf("node %s has the CIDR %s of %s", n.Name, p, other)
		}
		has[p] = n.Name
	}
	if len(all.Items) != f.nodeCount {
		return fmt.Errorf("there are %d Nodes, not %d", len(all.Items), f.nodeCount)
	}
	return nil
}
