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
	// statusWriteDelay is the time after which a manager has done its delayed writes: the counts of a ClusterCIDR,
	// every ten seconds.
	statusWriteDelay = 12 * time.Second
	// commitDelay is the time after which it has removed finished grants from the record.
	commitDelay = 3 * time.Second
	// gcPeriod is the time after which Go's runtime has collected all garbage, whatever a process does: two minutes.
	gcPeriod = 130 * time.Second
	// singleNodes is the number of Nodes that are created one after the other.
	singleNodes = 50
)

// measureAtRest adds the activity and memory of a manager that has served all Nodes, and the time until it serves one
// more.
func (f *nodeFleet) measureAtRest(ctx context.Context, t *table) error {
	if err := f.registerAll(ctx); err != nil {
		return err
	}
	err := f.withManagerServing(ctx, f.nodeCount, func(m *framework.Manager, _ pace) error {
		if err := sleepContext(ctx, statusWriteDelay); err != nil {
			return err
		}
		does, err := measureRest(ctx, m)
		t.add(fmt.Sprintf("%d Nodes with CIDRs at rest", f.nodeCount), fmt.Sprintf("%.0f requests", does.Requests),
			fmt.Sprintf("in %s; %.0f reconciles, %.2f s of CPU; goal 0", idlePeriod, does.Reconciles, does.CPU))
		if err != nil {
			return err
		}
		if err := f.addNodeMemory(ctx, m, "after they got them", t); err != nil {
			return err
		}
		return f.measureSingleNodes(ctx, t)
	})
	if err != nil {
		return err
	}
	// One more Node, as the sign that the new process has read all.
	if err := f.Create(ctx, newNode("one-more")); err != nil {
		return err
	}
	return f.withManagerServing(ctx, 1, func(m *framework.Manager, got pace) error {
		t.add(fmt.Sprintf("restart with %d CIDRs: first new Node", f.nodeCount), fmt.Sprintf("%.2f s", got.start.Seconds()), "")
		return f.addNodeMemory(ctx, m, "after a restart", t)
	})
}

// memoryAfterGC returns the memory of a manager at rest, after its last garbage was collected and returned to the
// system.
func memoryAfterGC(ctx context.Context, m *framework.Manager) (memoryUsage, error) {
	bounded, cancel := context.WithTimeout(ctx, gcPeriod)
	defer cancel()
	if err := waitForMetric(bounded, m, "go_memstats_last_gc_time_seconds", float64(time.Now().UnixMilli())/1e3); err != nil {
		return memoryUsage{}, fmt.Errorf("nothing was collected in %s: %w", gcPeriod, err)
	}
	if err := sleepContext(ctx, statusWriteDelay); err != nil {
		return memoryUsage{}, err
	}
	return readMemory(ctx, m)
}

// addNodeMemory adds the memory that a manager uses for the Nodes.
func (f *nodeFleet) addNodeMemory(ctx context.Context, m *framework.Manager, when string, t *table) error {
	now, err := memoryAfterGC(ctx, m)
	if err != nil {
		return err
	}
	peak, err := m.PeakRSS()
	if err != nil {
		return err
	}
	each := func(bytes float64) string { return fmt.Sprintf("%.2f KB a Node", bytes/float64(f.nodeCount)/1e3) }
	t.add(fmt.Sprintf("manager memory, %d Nodes, %s", f.nodeCount, when), each(now.anonymous-f.baseMemory.anonymous),
		fmt.Sprintf("goal %.0f KB; with the pages of the program %s: %.0f MB, peak %.0f MB; live objects %s; a Node is %.1f KB of JSON",
			goalMemory, each(now.resident-f.baseMemory.resident), now.resident/1e6, float64(peak)/1e6, each(now.live-f.baseMemory.live), nodeSize()/1e3))
	return nil
}

// measureSingleNodes adds the time until a single Node has its CIDRs. Before each, a bare client does two writes: on
// a shared machine only alternating measurements can be compared. Both end when a watch shows the result.
func (f *nodeFleet) measureSingleNodes(ctx context.Context, t *table) error {
	var bare, took, whole []time.Duration
	for i := range singleNodes {
		// The Node is created with CIDRs, so that the manager does not allocate any for it.
		written := newNode(fmt.Sprintf("written-%02d", i))
		written.Spec.PodCIDR = fmt.Sprintf("10.255.%d.0/24", i)
		written.Spec.PodCIDRs = []string{written.Spec.PodCIDR}
		two, _, err := f.timeNodeUntil(ctx, written, func() error {
			was := written.DeepCopy()
			written.Annotations[v1alpha1.ClusterCIDRAnnotation] = poolName
			return f.Patch(ctx, written, client.MergeFrom(was))
		}, func(n *corev1.Node) bool { return n.Annotations[v1alpha1.ClusterCIDRAnnotation] != "" })
		if err != nil {
			return err
		}
		asked, answered, err := f.timeNodeUntil(ctx, newNode(fmt.Sprintf("single-%02d", i)), func() error { return nil },
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
	t.add("two API writes of a Node, bare client, p50", fmt.Sprintf("%.1f ms", milliseconds(bare[middle])),
		fmt.Sprintf("alternating with single Nodes; slowest %.1f ms", milliseconds(bare[last])))
	t.add(fmt.Sprintf("one Node at a time, %d have CIDRs, p50", f.nodeCount), fmt.Sprintf("%.1f ms", milliseconds(took[middle])),
		fmt.Sprintf("after its creation was answered; %.2f of two API writes (goal %.0f); slowest of %d %.1f ms; "+
			"with its creation %.1f ms", float64(took[middle])/float64(bare[middle]), goalSingle, singleNodes,
			milliseconds(took[last]), milliseconds(whole[middle])))
	return nil
}

// timeNodeUntil creates a Node, calls then, and measures the time until a watch shows the wanted state: since the
// create request was sent, and since its response. It deletes the Node afterwards.
func (f *nodeFleet) timeNodeUntil(
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
