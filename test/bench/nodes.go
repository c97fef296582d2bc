package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// nodeWriters is the default number of writers of the manager.
	nodeWriters = 32
	// nodeTurns is how often the bare client and the manager alternate. It is smaller than for claims: each turn needs
	// new Nodes, since podCIDRs can be written only once.
	nodeTurns = 3
	// nodeRange has room for 32,768 Nodes. The benchmark itself gives the last CIDRs of it to single Nodes.
	nodeRange, nodeHostBits = "10.128.0.0/9", 8
	// singleNodes is the number of Nodes that are created one after the other.
	singleNodes = 50
	// nodeCommitDelay is the time after which a manager has removed finished grants from the record.
	nodeCommitDelay = 3 * time.Second

	nodeGrantsMetric = "node_ipam_controller_multicidrset_cidrs_allocations_total"
)

// Limits of the share of the bare client's pace.
const (
	nodesLimit       = 0.75
	singleNodesLimit = 0.7
)

// nodeFleet is a control plane with Nodes that need their pod CIDRs.
type nodeFleet struct {
	*clients
	nodeCount          int
	binary, kubeconfig string
	// startCPU is the CPU time of the start of a manager without Nodes, in seconds.
	startCPU float64
	// firstGrants are the times from the start of each manager to its first grant.
	firstGrants []time.Duration
}

// measureNodes adds the pace at which n Nodes get their pod CIDRs, and the time for a single Node.
func measureNodes(ctx context.Context, o options, t *table) error {
	return withControlPlane(func(c *clients) error {
		kubeconfig, err := c.controlPlane.NodesManagerKubeconfig(ctx)
		if err != nil {
			return err
		}
		f := &nodeFleet{clients: c, nodeCount: o.nodes, binary: o.manager, kubeconfig: kubeconfig}
		cidr := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: poolName}, Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: nodeHostBits, IPv4: nodeRange}}
		if err := f.Create(ctx, cidr); err != nil {
			return err
		}
		if err := f.withNodesManager(ctx, func(m *framework.Manager) error {
			if err := waitUntilSettled(ctx, m, settlePeriod); err != nil {
				return err
			}
			f.startCPU, err = m.ReadMetric(ctx, cpuSeconds)
			return err
		}); err != nil {
			return err
		}
		if err := f.compareNodeTurns(ctx, t); err != nil {
			return err
		}
		return f.measureSingleNodes(ctx, t)
	})
}

func (f *nodeFleet) compareNodeTurns(ctx context.Context, t *table) error {
	// The first writes of every client are slow, so a few that are not counted come first.
	few := *f
	few.nodeCount = min(f.nodeCount, 10*nodeWriters)
	if _, err := few.runWithNewNodes(ctx, few.runBareClient); err != nil {
		return err
	}
	if err := compareTurns(t, fmt.Sprintf("%d Nodes, %d writes at once", f.nodeCount, nodeWriters), nodeTurns*f.nodeCount, nodeTurns, nodesLimit,
		func(int, int) (pace, error) { return f.runWithNewNodes(ctx, f.runBareClient) },
		func(int, int) (pace, error) { return f.runWithNewNodes(ctx, f.runManager) }); err != nil {
		return err
	}
	t.add("start of a manager to its first grant", fmt.Sprintf("%.2f s", median(f.firstGrants).Seconds()), fmt.Sprintf("of %d", nodeTurns))
	return nil
}

// runWithNewNodes creates the Nodes, has serve give them their CIDRs, and deletes them.
func (f *nodeFleet) runWithNewNodes(ctx context.Context, serve func(context.Context) (pace, error)) (pace, error) {
	if err := f.createNodes(ctx); err != nil {
		return pace{}, err
	}
	got, err := serve(ctx)
	if err != nil {
		return pace{}, err
	}
	if err := f.checkNodeCIDRs(ctx); err != nil {
		return pace{}, err
	}
	return got, runEach(ctx, f.nodeCount, func(ctx context.Context, i int) error {
		return f.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}})
	})
}

func (f *nodeFleet) createNodes(ctx context.Context) error {
	return runEach(ctx, f.nodeCount, func(ctx context.Context, i int) error { return f.Create(ctx, newNode(nodeName(i))) })
}

// runBareClient measures a bare client, which does nothing but the patch of each Node, with the watch open that any
// provider needs.
func (f *nodeFleet) runBareClient(ctx context.Context) (pace, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.drainWatches(ctx, &corev1.NodeList{}); err != nil {
		return pace{}, err
	}
	return f.measureTurn(ctx, f.nodeCount, readOwnCPU, func() error {
		return runEachLimited(ctx, nodeWriters, f.nodeCount, func(ctx context.Context, i int) error {
			return f.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}, podCIDRPatch(nodeCIDR(i)))
		})
	})
}

// runManager measures a manager that finds the Nodes when it starts, from its first grant on. Its CPU is without that
// of its start.
func (f *nodeFleet) runManager(ctx context.Context) (pace, error) {
	var m *framework.Manager
	var served int
	var took time.Duration
	out, err := f.measureTurn(ctx, f.nodeCount, func() (float64, error) {
		if m == nil {
			return f.startCPU, nil
		}
		return m.ReadMetric(ctx, cpuSeconds)
	}, func() (err error) {
		start := time.Now()
		if m, err = framework.LaunchManager(ctx, f.managerOptions()); err != nil {
			return err
		}
		first, err := waitForFirstGrant(ctx, m)
		if err != nil {
			return err
		}
		began := time.Now()
		f.firstGrants = append(f.firstGrants, began.Sub(start))
		if err := waitForMetric(ctx, m, nodeGrantsMetric, float64(f.nodeCount)); err != nil {
			return err
		}
		served, took = f.nodeCount-int(first), time.Since(began)
		return nil
	})
	out.n, out.duration = served, took
	if m != nil {
		err = endManager(ctx, m, err)
	}
	return out, err
}

func (f *nodeFleet) managerOptions() framework.ManagerOptions {
	return framework.ManagerOptions{Binary: f.binary, Kubeconfig: f.kubeconfig, Args: []string{"--node-cidrs=only"}}
}

// endManager kills a manager, and adds the end of its log to an error. If there is none, it waits before: the next
// manager would find grants in flight, and wait until it is sure that this one is gone.
func endManager(ctx context.Context, m *framework.Manager, err error) error {
	if err == nil {
		err = sleepContext(ctx, nodeCommitDelay)
	} else {
		err = fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	return errors.Join(err, m.Kill())
}

func (f *nodeFleet) withNodesManager(ctx context.Context, use func(*framework.Manager) error) error {
	m, err := framework.StartManager(ctx, f.managerOptions())
	if err != nil {
		return err
	}
	return endManager(ctx, m, use(m))
}

// waitForFirstGrant polls the number of grants until it is greater than zero, and returns it. Errors are ignored
// meanwhile: the process may be starting.
func waitForFirstGrant(ctx context.Context, m *framework.Manager) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		got, last := m.ReadMetric(ctx, nodeGrantsMetric)
		if last == nil && got > 0 {
			return got, nil
		}
		select {
		case <-m.Done():
			return 0, errors.Join(errors.New("the manager ended before its first grant"), last)
		case <-ctx.Done():
			return 0, errors.Join(ctx.Err(), last)
		case <-time.After(metricsPeriod / 10):
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

// measureSingleNodes adds the time until a single Node has its CIDRs, from a manager at rest that has served all
// Nodes. Before each, a bare client does two writes: on a shared machine only alternating measurements can be
// compared. Both end when a watch shows the result.
func (f *nodeFleet) measureSingleNodes(ctx context.Context, t *table) error {
	if err := f.createNodes(ctx); err != nil {
		return err
	}
	var bare, took []time.Duration
	if err := f.withNodesManager(ctx, func(m *framework.Manager) error {
		if _, err := waitForFirstGrant(ctx, m); err != nil {
			return err
		}
		if err := waitForMetric(ctx, m, nodeGrantsMetric, float64(f.nodeCount)); err != nil {
			return err
		}
		if err := f.checkRest(ctx, m); err != nil {
			return err
		}
		for i := range singleNodes {
			two, err := f.timeBareNode(ctx, i)
			if err != nil {
				return err
			}
			n := newNode(fmt.Sprintf("single-%02d", i))
			_, served, err := timeUntil(ctx, f.clients, &corev1.NodeList{}, n, doNothing, func(n *corev1.Node) bool { return len(n.Spec.PodCIDRs) > 0 })
			if err != nil {
				return err
			}
			if err := f.Delete(ctx, n); err != nil {
				return err
			}
			bare, took = append(bare, two), append(took, served)
		}
		return nil
	}); err != nil {
		return err
	}
	two, p50 := median(bare), median(took)
	t.add("two API writes of a Node, bare client, p50", formatMillis(two), "alternating with single Nodes")
	t.addShare(fmt.Sprintf("one Node at a time, %d have CIDRs, p50", f.nodeCount), formatMillis(p50), two.Seconds()/p50.Seconds(), singleNodesLimit,
		fmt.Sprintf("after its creation was answered; slowest of %d %s", singleNodes, formatMillis(slices.Max(took))))
	return nil
}

// timeBareNode returns the time of two writes of a Node, its creation and a patch. It is created with CIDRs, so that
// the manager allocates none for it.
func (f *nodeFleet) timeBareNode(ctx context.Context, i int) (time.Duration, error) {
	n := newNode(fmt.Sprintf("written-%02d", i))
	n.Spec.PodCIDR = fmt.Sprintf("10.255.%d.0/24", i)
	n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	took, _, err := timeUntil(ctx, f.clients, &corev1.NodeList{}, n, func() error {
		was := n.DeepCopy()
		n.Annotations[v1alpha1.ClusterCIDRAnnotation] = poolName
		return f.Patch(ctx, n, client.MergeFrom(was))
	}, func(n *corev1.Node) bool { return n.Annotations[v1alpha1.ClusterCIDRAnnotation] != "" })
	if err != nil {
		return 0, err
	}
	return took, f.Delete(ctx, n)
}
