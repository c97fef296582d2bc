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
	// nodeWriters are as many as the manager has by default.
	nodeWriters = 32
	// nodeRounds is how often all who give CIDRs take turns. It is fewer than those of claims: each turn needs Nodes that
	// are new, since podCIDRs are written once.
	nodeRounds = 3
	// nodeRange has room for 32,768 Nodes. It ends with what the bench gives single Nodes itself.
	nodeRange, nodeHostBits = "10.128.0.0/9", 8

	granted = "node_ipam_controller_multicidrset_cidrs_allocations_total"
)

// Goals of what gives Nodes their pod CIDRs. They are shown beside what is measured.
const (
	goalShare  = 0.9
	goalSingle = 1.0 // times two API writes
	goalStart  = 3.0 // seconds
	goalMemory = 2.0 // KB a Node
)

// fleet is a control plane with Nodes that are to get their pod CIDRs.
type fleet struct {
	*clients
	n                  int
	binary, kubeconfig string
	// base is what a manager takes when it is ready and there are no Nodes, baseCPU the seconds that its start took.
	base    memory
	baseCPU float64
}

// measureNodes adds how fast n Nodes get their pod CIDRs, by a bare client, the manager and kube-controller-manager in
// turns, how long a single one waits, and what the manager takes for them.
func measureNodes(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(c *clients) error {
		kubeconfig, err := c.cp.NodesManagerKubeconfig(ctx)
		if err != nil {
			return err
		}
		f := &fleet{clients: c, n: o.nodes, binary: o.manager, kubeconfig: kubeconfig}
		if err := f.prepare(ctx, t); err != nil {
			return err
		}
		if err := f.inTurns(ctx, t); err != nil {
			return err
		}
		return f.atRest(ctx, t)
	})
}

// prepare makes the range, and weighs a manager that has no Nodes.
func (f *fleet) prepare(ctx context.Context, t *table) error {
	cidr := &v1alpha1.ClusterCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: poolName},
		Spec:       v1alpha1.ClusterCIDRSpec{PerNodeHostBits: nodeHostBits, IPv4: nodeRange},
	}
	if err := f.Create(ctx, cidr); err != nil {
		return err
	}
	return f.served(ctx, 0, func(m *framework.Manager, _ pace) error {
		if err := pause(ctx, settling); err != nil {
			return err
		}
		does, err := m.Activity(ctx)
		if err != nil {
			return err
		}
		f.baseCPU = does.CPU
		f.base, err = weighed(ctx, m)
		t.add("manager of pod CIDRs, no Nodes", fmt.Sprintf("%.0f MB", f.base.resident/1e6),
			fmt.Sprintf("%.0f MB without the pages of the program; %.2f s of CPU", f.base.own/1e6, f.baseCPU))
		return err
	})
}

// registerAll creates the Nodes. removeAll deletes them, and is not called while somebody gives CIDRs.
func (f *fleet) registerAll(ctx context.Context) error {
	return each(ctx, f.n, func(ctx context.Context, i int) error { return f.Create(ctx, nodeOf(nodeName(i))) })
}

func (f *fleet) removeAll(ctx context.Context) error {
	return each(ctx, f.n, func(ctx context.Context, i int) error {
		return f.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}})
	})
}

// served starts a manager, waits until it has given n Nodes their CIDRs, and uses it.
func (f *fleet) served(ctx context.Context, n int, use func(*framework.Manager, pace) error) error {
	start := time.Now()
	m, err := framework.LaunchManager(ctx, framework.ManagerOptions{
		Binary: f.binary, Kubeconfig: f.kubeconfig, Args: []string{"--node-cidrs=only"},
	})
	if err != nil {
		return err
	}
	defer func() { _ = m.Kill() }()
	var got pace
	err = f.spends(ctx, &got, func() error { return f.untilServed(ctx, m, n, start, &got) })
	if err == nil {
		err = use(m, got)
	}
	if err == nil {
		// Or the next one would find grants in flight, and wait whether this one is still there.
		err = pause(ctx, settled)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	return nil
}

// untilServed waits for the first grant, and for the last of n. It asks the manager for its counter: a watch of the
// bench's own would be a load that the raw limit does not have.
func (f *fleet) untilServed(ctx context.Context, m *framework.Manager, n int, start time.Time, out *pace) error {
	if n == 0 {
		return nil
	}
	first, err := firstOf(ctx, func(ctx context.Context) (float64, error) { return m.Metric(ctx, granted) })
	if err != nil {
		return err
	}
	began := time.Now()
	out.start = began.Sub(start)
	if err := metric(ctx, m, granted, float64(n)); err != nil {
		return err
	}
	out.n, out.took = n-int(first), time.Since(began)
	does, err := m.Activity(ctx)
	out.own = does.CPU - f.baseCPU
	return err
}

// firstOf asks for a counter until there is something to count, and returns it. Who does not answer yet is starting.
func firstOf(ctx context.Context, ask func(context.Context) (float64, error)) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		got, last := ask(ctx)
		if last == nil && got > 0 {
			return got, nil
		}
		if err := pause(ctx, metricsPeriod/10); err != nil {
			return 0, errors.Join(err, last)
		}
	}
}

// check returns an error unless every Node has CIDRs, which no other one has.
func (f *fleet) check(ctx context.Context) error {
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
	if len(all.Items) != f.n {
		return fmt.Errorf("there are %d Nodes, not %d", len(all.Items), f.n)
	}
	return nil
}
