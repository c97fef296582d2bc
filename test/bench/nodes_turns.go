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

// party gives all Nodes their CIDRs, busy: while their kubelets write.
type party struct {
	name  string
	busy  bool
	serve func(*fleet, context.Context) (pace, error)
	// of is the index of the bare client that it compares with; its own: it is one.
	of int
}

// inTurns has all parties take turns, and adds how fast each was.
func (f *fleet) inTurns(ctx context.Context, t *table) error {
	const bare, busyBare = 0, 2
	by := func(patch func(cidr string) client.Patch) func(*fleet, context.Context) (pace, error) {
		return func(f *fleet, ctx context.Context) (pace, error) { return f.bareCIDRs(ctx, patch) }
	}
	all := []party{
		bare: {"bare client of the same patch, 32 at a time", false, by(podCIDRFrom), bare},
		{"manager, in turns with it", false, (*fleet).managedCIDRs, bare},
		busyBare: {"bare client of the same patch, beside status writes", true, by(podCIDRFrom), busyBare},
		{"manager, beside status writes", true, (*fleet).managedCIDRs, busyBare},
		{"bare client of spec.podCIDRs alone", false, by(podCIDR), bare},
		{"kube-controller-manager without its limit of requests", false, (*fleet).peerCIDRs, bare},
	}
	took := make([][]pace, len(all))
	// The first writes of anybody are slow: round 0 is not counted.
	few := *f
	few.n = min(f.n, 10*nodeWriters)
	if _, err := few.turn(ctx, all[bare]); err != nil {
		return fmt.Errorf("a few, by a bare client: %w", err)
	}
	for range nodeRounds {
		for i, p := range all {
			got, err := f.turn(ctx, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			took[i] = append(took[i], got)
		}
	}
	for i, p := range all {
		f.addPace(t, p, took[i], took[p.of])
	}
	return nil
}

// addPace adds how fast a party was in all its turns, and of the manager how soon.
func (f *fleet) addPace(t *table, p party, took, bare []pace) {
	what := fmt.Sprintf("%d Nodes: %s", f.n, p.name)
	sum := t.pace(what, f.n*len(took), took, bare)
	if sum.start > 0 {
		t.add(what+": start to first grant", fmt.Sprintf("%.2f s", sum.start.Seconds()/float64(len(took))),
			fmt.Sprintf("mean of %d; goal %.0f s", len(took), goalStart))
	}
}

// turn has a party give new Nodes their CIDRs.
func (f *fleet) turn(ctx context.Context, p party) (pace, error) {
	if err := f.registerAll(ctx); err != nil {
		return pace{}, err
	}
	if err := f.collectGarbage(ctx); err != nil {
		return pace{}, err
	}
	stop := func() error { return nil }
	if p.busy {
		stop = f.kubelets(ctx)
	}
	got, err := p.serve(f, ctx)
	if err := errors.Join(err, stop()); err != nil {
		return pace{}, err
	}
	if err := f.check(ctx); err != nil {
		return pace{}, err
	}
	return got, f.removeAll(ctx)
}

// bareCIDRs takes the time that a bare client needs, which does nothing but the writes, with the watch open that any
// provider needs.
func (f *fleet) bareCIDRs(ctx context.Context, patch func(string) client.Patch) (pace, error) {
	stop, err := f.drain(ctx, &corev1.NodeList{})
	if err != nil {
		return pace{}, err
	}
	defer stop()
	var out pace
	err = f.spends(ctx, &out, func() error {
		own, start := selfCPU(), time.Now()
		err := eachOf(ctx, nodeWriters, f.n, func(ctx context.Context, i int) error {
			return f.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}, patch(cidrOf(i)))
		})
		out.n, out.took, out.own = f.n, time.Since(start), selfCPU()-own
		return err
	})
	return out, err
}

// managedCIDRs takes the time of a manager that finds the Nodes when it starts.
func (f *fleet) managedCIDRs(ctx context.Context) (out pace, err error) {
	err = f.served(ctx, f.n, func(_ *framework.Manager, got pace) error {
		out = got
		return nil
	})
	return out, err
}

// peerCIDRs takes the time of a kube-controller-manager that finds the Nodes when it starts. By default it sends 20
// requests a second.
func (f *fleet) peerCIDRs(ctx context.Context) (out pace, err error) {
	err = f.spends(ctx, &out, func() error { return f.byPeer(ctx, &out) })
	return out, err
}

func (f *fleet) byPeer(ctx context.Context, out *pace) error {
	start := time.Now()
	peer, err := f.cp.StartNodeIPAM(nodeRange, 32-nodeHostBits)
	if err != nil {
		return err
	}
	defer func() { _ = peer.Kill() }()
	patched := func(ctx context.Context) (done float64, err error) {
		done, out.own, err = peer.Done(ctx)
		return done, err
	}
	first, err := firstOf(ctx, patched)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, peer.LogTail(20))
	}
	began := time.Now()
	if err := untilCount(ctx, "Nodes with CIDRs", float64(f.n), patched); err != nil {
		return fmt.Errorf("%w\n%s", err, peer.LogTail(20))
	}
	out.n, out.took, out.start = f.n-int(first), time.Since(began), began.Sub(start)
	return nil
}
