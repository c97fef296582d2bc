package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cli"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// showNodes shows Nodes that get their pod CIDRs, one for which there is none, and how it gets one. No kubelet runs: a
// Node is just an object.
func showNodes(ctx context.Context, cp *framework.ControlPlane, steps *stepPrinter) error {
	c, err := cp.NewClient()
	if err != nil {
		return err
	}
	steps.beginStep("a range")
	first := newClusterCIDR("first", "10.244.0.0/23")
	if err := createObject(ctx, c, first); err != nil {
		return err
	}
	steps.endStepf("ClusterCIDR first, %s: room for two Nodes, each gets a /24", first.Spec.IPv4)

	steps.beginStep("two Nodes")
	rows := [][]string{{"NODE", "POD CIDR", "CLUSTERCIDR", "AFTER"}}
	for _, name := range []string{"worker-0", "worker-1"} {
		start := time.Now()
		if err := createObject(ctx, c, newNode(name)); err != nil {
			return err
		}
		n, err := waitForPodCIDR(ctx, c, name)
		if err != nil {
			return err
		}
		rows = append(rows, []string{name, n.Spec.PodCIDR, n.Annotations[v1alpha1.ClusterCIDRAnnotation], formatDuration(time.Since(start))})
	}
	steps.endStepf("as their kubelets would register them")

	steps.beginStep("one more")
	if err := createObject(ctx, c, newNode("worker-2")); err != nil {
		return err
	}
	event, err := waitForNodeEvent(ctx, c, "worker-2")
	if err != nil {
		return err
	}
	steps.endStepf("worker-2 waits: the range is full")
	if err := printTable(steps.out, rows); err != nil {
		return err
	}
	if err := printTable(steps.out, [][]string{{"EVENT", "REASON", "ABOUT", "MESSAGE"}, {event.Type, event.Reason, "node/worker-2", event.Message}}); err != nil {
		return err
	}
	if err := runExplain(ctx, cp, steps.out, "node/worker-2"); err != nil {
		return err
	}

	fmt.Fprintln(steps.out)
	steps.beginStep("a range")
	second := newClusterCIDR("second", "192.168.16.0/20")
	start := time.Now()
	if err := createObject(ctx, c, second); err != nil {
		return err
	}
	n, err := waitForPodCIDR(ctx, c, "worker-2")
	if err != nil {
		return err
	}
	steps.endStepf("ClusterCIDR second, %s: worker-2 has %s, %s later", second.Spec.IPv4, n.Spec.PodCIDR, formatDuration(time.Since(start)))
	for of, nodes := range map[*v1alpha1.ClusterCIDR]int64{first: 2, second: 1} {
		if err := waitForNodeCount(ctx, c, of, nodes); err != nil {
			return err
		}
	}
	if err := showResource(ctx, cp, steps, "clustercidrs"); err != nil {
		return err
	}
	for _, object := range []string{"node/worker-2", "cc/first"} {
		if err := runExplain(ctx, cp, steps.out, object); err != nil {
			return err
		}
	}
	return nil
}

func newClusterCIDR(name, ipv4 string) *v1alpha1.ClusterCIDR {
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: ipv4}
	return c
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// waitForPodCIDR waits until a Node has its pod CIDR.
func waitForPodCIDR(ctx context.Context, c client.WithWatch, name string) (*corev1.Node, error) {
	watcher, err := c.Watch(ctx, &corev1.NodeList{}, client.MatchingFields{"metadata.name": name})
	if err != nil {
		return nil, fmt.Errorf("watching Node %s: %w", name, err)
	}
	defer watcher.Stop()
	for {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return nil, errors.New("the watch of the Nodes ended")
			}
			if n, ok := event.Object.(*corev1.Node); ok && n.Spec.PodCIDR != "" {
				return n, nil
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("no pod CIDR for Node %s: %w", name, ctx.Err())
		}
	}
}

// waitForNodeEvent waits for an event about a Node that waits.
func waitForNodeEvent(ctx context.Context, c client.Client, name string) (*corev1.Event, error) {
	events := &corev1.EventList{}
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		err := c.List(ctx, events, client.MatchingFields{"involvedObject.name": name, "reason": nodeipam.CIDRNotAvailable})
		return len(events.Items) > 0, err
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for an event about Node %s: %w", name, err)
	}
	return &events.Items[0], nil
}

// waitForNodeCount waits until a ClusterCIDR counts the given number of Nodes, and is Ready.
func waitForNodeCount(ctx context.Context, c client.Client, of *v1alpha1.ClusterCIDR, nodes int64) error {
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(of), of)
		return of.Status.Allocated == nodes && meta.IsStatusConditionTrue(of.Status.Conditions, v1alpha1.ReadyCondition), err
	})
	if err != nil {
		return fmt.Errorf("waiting for ClusterCIDR %s to count %d Nodes: %w", of.Name, nodes, err)
	}
	return nil
}

// runExplain runs the plugin as a user would.
func runExplain(ctx context.Context, cp *framework.ControlPlane, out io.Writer, object string) error {
	var stdout, stderr bytes.Buffer
	code := cli.Run(ctx, []string{"explain", object, "--kubeconfig=" + cp.Kubeconfig}, cli.EnvFromStreams(strings.NewReader(""), &stdout, &stderr, time.Now))
	if code > 1 { // exit code 1: the answer is no
		return fmt.Errorf("kubectl butler-ipam explain %s: %s", object, stderr.String())
	}
	fmt.Fprintf(out, "\n  $ kubectl butler-ipam explain %s\n", object)
	for line := range strings.Lines(stdout.String()) {
		fmt.Fprint(out, "  "+line)
	}
	return nil
}
