package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// contender gives all Nodes their CIDRs; withKubelets: while kubelets write the status of the Nodes.
type contender struct {
	name         string
	withKubelets bool
	serve        func(*nodeFleet, context.Context) (pace, error)
	// baseline is the index of the bare client to compare with; a bare client has its own index.
	baseline int
}

// compareContenders runs all contenders in alternation, and adds the rate of each.
func (f *nodeFleet) compareContenders(ctx context.Context, t *table) error {
	const bare, busyBare = 0, 2
	by := func(patch func(cidr string) client.Patch) func(*nodeFleet, context.Context) (pace, error) {
		return func(f *nodeFleet, ctx context.Context) (pace, error) { return f.runBareClient(ctx, patch) }
	}
	all := []contender{
		bare: {"bare client of the same patch, 32 at a time", false, by(podCIDRPatchWithOrigin), bare},
		{"manager, in turns with it", false, (*nodeFleet).runManager, bare},
		busyBare: {"bare client of the same patch, beside status writes", true, by(podCIDRPatchWithOrigin), busyBare},
		{"manager, beside status writes", true, (*nodeFleet).runManager, busyBare},
		{"bare client of spec.podCIDRs alone", false, by(podCIDRPatch), bare},
		{"kube-controller-manager without its limit of requests", false, (*nodeFleet).runNodeIPAM, bare},
	}
	took := make([][]pace, len(all))
	// The first writes of every client are slow, so a round that is not counted comes first.
	few := *f
	few.nodeCount = min(f.nodeCount, 10*nodeWriters)
	if _, err := few.runContender(ctx, all[bare]); err != nil {
		return fmt.Errorf("a few, by a bare client: %w", err)
	}
	for range nodeRounds {
		for i, p := range all {
			got, err := f.runContender(ctx, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			took[i] = append(took[i], got)
		}
	}
	for i, p := range all {
		f.addPace(t, p, took[i], took[p.baseline])
	}
	return nil
}

// addPace adds the rate of a contender over all its turns, and for the manager the time from its start to the first
// grant.
func (f *nodeFleet) addPace(t *table, p contender, took, bare []pace) {
	what := fmt.Sprintf("%d Nodes: %s", f.nodeCount, p.name)
	sum := t.addPace(what, f.nodeCount*len(took), took, bare)
	if sum.start > 0 {
		t.add(what+": start to first grant", fmt.Sprintf("%.2f s", sum.start.Seconds()/float64(len(took))),
			fmt.Sprintf("mean of %d; goal %.0f s", len(took), goalStart))
	}
}

// runContender creates new Nodes and lets a contender give them their CIDRs.
func (f *nodeFleet) runContender(ctx context.Context, p contender) (pace, error) {
	if err := f.registerAll(ctx); err != nil {
		return pace{}, err
	}
	if err := f.collectGarbage(ctx); err != nil {
		return pace{}, err
	}
	stop := func() error { return nil }
	if p.withKubelets {
		stop = f.startKubelets(ctx)
	}
	got, err := p.serve(f, ctx)
	if err := errors.Join(err, stop()); err != nil {
		return pace{}, err
	}
	if err := f.checkNodeCIDRs(ctx); err != nil {
		return pace{}, err
	}
	return got, f.removeAll(ctx)
}

// runBareClient measures the time of a bare client, which does nothing but the writes, with the watch open that any
// provider needs.
func (f *nodeFleet) runBareClient(ctx context.Context, patch func(string) client.Patch) (pace, error) {
	stop, err := f.drainWatch(ctx, &corev1.NodeList{})
	if err != nil {
		return pace{}, err
	}
	defer stop()
	var out pace
	err = f.recordServerCPU(ctx, &out, func() error {
		own, start := processCPU(), time.Now()
		err := runEachLimited(ctx, nodeWriters, f.nodeCount, func(ctx context.Context, i int) error {
			return f.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}, patch(nodeCIDR(i)))
		})
		out.n, out.duration, out.clientCPU = f.nodeCount, time.Since(start), processCPU()-own
		return err
	})
	return out, err
}

// runManager measures the time of a manager that finds the Nodes when it starts.
func (f *nodeFleet) runManager(ctx context.Context) (out pace, err error) {
	err = f.withManagerServing(ctx, f.nodeCount, func(_ *framework.Manager, got pace) error {
		out = got
		return nil
	})
	return out, err
}

// runNodeIPAM measures the time of a kube-controller-manager that finds the Nodes when it starts. Its default limit
// of 20 requests a second is lifted.
func (f *nodeFleet) runNodeIPAM(ctx context.Context) (out pace, err error) {
	err = f.recordServerCPU(ctx, &out, func() error { return f.timeNodeIPAM(ctx, &out) })
	return out, err
}

func (f *nodeFleet) timeNodeIPAM(ctx context.Context, out *pace) error {
	start := time.Now()
	peer, err := f.controlPlane.StartNodeIPAM(nodeRange, 32-nodeHostBits)
	if err != nil {
		return err
	}
	defer func() { _ = peer.Kill() }()
	patched := func(ctx context.Context) (done float64, err error) {
		done, out.clientCPU, err = peer.ReadProgress(ctx)
		return done, err
	}
	first, err := waitForFirstCount(ctx, patched)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, peer.LogTail(20))
	}
	began := time.Now()
	if err := waitForCount(ctx, "Nodes with CIDRs", float64(f.nodeCount), patched); err != nil {
		return fmt.Errorf("%w\n%s", err, peer.LogTail(20))
	}
	out.n, out.duration, out.start = f.nodeCount-int(first), time.Since(began), began.Sub(start)
	return nil
}
