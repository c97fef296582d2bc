package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// settling is after which a manager has written what it writes late: the numbers of a ClusterCIDR every ten seconds.
	settling = 12 * time.Second
	// settled is after which it has taken what it granted off the record.
	settled = 3 * time.Second
	// collected is after which Go's runtime has collected what nobody has any more, whatever a process does: two minutes.
	collected = 130 * time.Second
	// singleNodes are as many as come one after the other.
	singleNodes = 50
)

// atRest adds what a manager does and takes that has served all Nodes, and how soon it serves one more.
func (f *fleet) atRest(ctx context.Context, t *table) error {
	if err := f.registerAll(ctx); err != nil {
		return err
	}
	err := f.served(ctx, f.n, func(m *framework.Manager, _ pace) error {
		if err := pause(ctx, settling); err != nil {
			return err
		}
		does, err := rested(ctx, m)
		t.add(fmt.Sprintf("%d Nodes with CIDRs at rest", f.n), fmt.Sprintf("%.0f requests", does.Requests),
			fmt.Sprintf("in %s; %.0f reconciles, %.2f s of CPU; goal 0", idle, does.Reconciled, does.CPU))
		if err != nil {
			return err
		}
		if err := f.weigh(ctx, m, "after they got them", t); err != nil {
			return err
		}
		return f.singles(ctx, t)
	})
	if err != nil {
		return err
	}
	// One more, as the sign that the new process has read all.
	if err := f.Create(ctx, nodeOf("one-more")); err != nil {
		return err
	}
	return f.served(ctx, 1, func(m *framework.Manager, got pace) error {
		t.add(fmt.Sprintf("restart with %d CIDRs: first new Node", f.n), fmt.Sprintf("%.2f s", got.start.Seconds()), "")
		return f.weigh(ctx, m, "after a restart", t)
	})
}

// weighed is what a manager takes at rest, when its last garbage was collected and given back.
func weighed(ctx context.Context, m *framework.Manager) (memory, error) {
	bounded, cancel := context.WithTimeout(ctx, collected)
	defer cancel()
	if err := metric(bounded, m, "go_memstats_last_gc_time_seconds", float64(time.Now().UnixMilli())/1e3); err != nil {
		return memory{}, fmt.Errorf("nothing was collected in %s: %w", collected, err)
	}
	if err := pause(ctx, settling); err != nil {
		return memory{}, err
	}
	return memoryOf(ctx, m)
}

// weigh adds what a manager takes for the Nodes.
func (f *fleet) weigh(ctx context.Context, m *framework.Manager, when string, t *table) error {
	now, err := weighed(ctx, m)
	if err != nil {
		return err
	}
	peak, err := m.PeakRSS()
	if err != nil {
		return err
	}
	each := func(bytes float64) string { return fmt.Sprintf("%.2f KB a Node", bytes/float64(f.n)/1e3) }
	t.add(fmt.Sprintf("manager memory, %d Nodes, %s", f.n, when), each(now.own-f.base.own),
		fmt.Sprintf("goal %.0f KB; with the pages of the program %s: %.0f MB, peak %.0f MB; live objects %s; a Node is %.1f KB of JSON",
			goalMemory, each(now.resident-f.base.resident), now.resident/1e6, float64(peak)/1e6, each(now.live-f.base.live), nodeSize()/1e3))
	return nil
}

// singles adds how long one Node waits. Before each, a bare client does two writes: on a machine that others use too,
// only what alternates compares. Both end when a watch shows it.
func (f *fleet) singles(ctx context.Context, t *table) error {
	var bare, took, whole []time.Duration
	for i := range singleNodes {
		// It comes with CIDRs: the manager has nothing to give, and sees as much.
		written := nodeOf(fmt.Sprintf("written-%02d", i))
		written.Spec.PodCIDR = fmt.Sprintf("10.255.%d.0/24", i)
		written.Spec.PodCIDRs = []string{written.Spec.PodCIDR}
		two, _, err := f.shown(ctx, written, func() error {
			was := written.DeepCopy()
			written.Annotations[v1alpha1.ClusterCIDRAnnotation] = poolName
			return f.Patch(ctx, written, client.MergeFrom(was))
		}, func(n *corev1.Node) bool { return n.Annotations[v1alpha1.ClusterCIDRAnnotation] != "" })
		if err != nil {
			return err
		}
		asked, answered, err := f.shown(ctx, nodeOf(fmt.Sprintf("single-%02d", i)), func() error { return nil },
			func(n *corev1.Node) bool { return len(n.Spec.PodCIDRs) > 0 })
		if err != nil {
			return err
		}
		bare, took, whole = append(bare, two), append(took, answered), append(whole, asked)
	}
	for _, all := range [][]time.Duration{bare, took, whole} {
		slices.Sort(all)
	}
	const middle, last = singleNodes / 2, singleNodes - 1
	t.add("two API writes of a Node, bare client, p50", fmt.Sprintf("%.1f ms", ms(bare[middle])),
		fmt.Sprintf("alternating with single Nodes; slowest %.1f ms", ms(bare[last])))
	t.add(fmt.Sprintf("one Node at a time, %d have CIDRs, p50", f.n), fmt.Sprintf("%.1f ms", ms(took[middle])),
		fmt.Sprintf("after its creation was answered; %.2f of two API writes (goal %.0f); slowest of %d %.1f ms; "+
			"with its creation %.1f ms", float64(took[middle])/float64(bare[middle]), goalSingle, singleNodes,
			ms(took[last]), ms(whole[middle])))
	return nil
}

// shown creates a Node, does what follows, and takes the time until a watch shows what is wanted: since the creation
// was asked for, and since it was answered. The Node is deleted again.
func (f *fleet) shown(
	ctx context.Context, n *corev1.Node, then func() error, wanted func(*corev1.Node) bool,
) (asked, answered time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w, err := f.Watch(ctx, &corev1.NodeList{}, client.MatchingFields{metav1.ObjectNameField: n.Name})
	if err != nil {
		return 0, 0, err
	}
	defer w.Stop()
	start := time.Now()
	if err := f.Create(ctx, n); err != nil {
		return 0, 0, err
	}
	created := time.Now()
	if err := then(); err != nil {
		return 0, 0, err
	}
	for e := range w.ResultChan() {
		if seen, is := e.Object.(*corev1.Node); is && wanted(seen) {
			asked, answered = time.Since(start), time.Since(created)
			return asked, answered, f.Delete(ctx, n)
		}
	}
	return 0, 0, fmt.Errorf("the watch of Node %s ended: %w", n.Name, ctx.Err())
}
