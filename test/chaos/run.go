package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// options configure a run: it goes on until there were enough kills and enough claims.
type options struct {
	seed                                                                           uint64
	minKills, minClaims                                                            int64
	users, electingManagers, activeManagers                                        int
	managerLifetime, apiServerKillInterval, progressInterval, restTimeout, timeout time.Duration
	managerBinary, outDir                                                          string
	// carvedOnly reports whether all users request addresses of carved pools.
	carvedOnly bool
	// nodeCount is the number of Nodes to create and delete instead of claims; zero means claims.
	nodeCount int64
}

// result holds the parameters of a run and its findings.
type result struct {
	seed                            uint64
	kills, freezes, restarts, edits int64
	created, served, operations     int
	duration                        time.Duration
	violations                      []string
}

// startControlPlane starts a control plane, and builds the manager if no binary is given.
func startControlPlane(ctx context.Context, o *options) (cp *framework.ControlPlane, c client.Client, err error) {
	ctrl.SetLogger(klog.Background())
	if cp, err = framework.StartControlPlane(framework.Options{}); err != nil {
		return nil, nil, err
	}
	if c, err = cp.NewClient(); err == nil && o.managerBinary == "" {
		o.managerBinary, err = framework.BuildManager(ctx, cp.Dir)
	}
	if err != nil {
		return nil, nil, errors.Join(err, cp.Stop())
	}
	return cp, c, nil
}

// runClaimChaos runs users and faults on a control plane, waits until everything is idle, and checks the history and
// the remaining objects.
func runClaimChaos(ctx context.Context, o options, out io.Writer) (res *result, err error) {
	cp, c, err := startControlPlane(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err := createFixtures(ctx, c); err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	h := newHistory()
	if err := watchObjects(watching, cp, h); err != nil {
		return nil, err
	}
	f := &faultInjector{Client: c, controlPlane: cp, history: h, managerBinary: o.managerBinary, maxLifetime: o.managerLifetime}
	stuck := churnClaims(ctx, o, f, out)
	if stuck != nil && !errors.Is(stuck, context.DeadlineExceeded) {
		return nil, stuck
	}
	res = &result{seed: o.seed, kills: f.kills.Load(), freezes: f.freezes.Load(), restarts: f.restarts.Load(), edits: f.edits.Load(), duration: time.Since(h.startedAt)}
	if stuck != nil {
		res.violations = append(res.violations, fmt.Sprintf("not through after %s: %v", o.timeout, stuck))
	}
	bad, err := checkAtRest(ctx, o, f)
	if err != nil {
		return nil, err
	}
	res.violations = append(res.violations, bad...)
	return res, checkHistory(o, h, res)
}

func createFixtures(ctx context.Context, c client.Client) error {
	about := metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}
	objs := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&clusterv1.Cluster{ObjectMeta: about, Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}}},
	}
	for _, p := range poolsByName {
		objs = append(objs, p.Obj())
	}
	objs = append(objs, carvedPools()...)
	for _, obj := range objs {
		if err := c.Create(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}

// churnClaims runs until there were enough claims and enough kills, and all claims are gone again.
func churnClaims(ctx context.Context, o options, f *faultInjector, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	u := &users{Client: f.Client, history: f.history, carvedOnly: o.carvedOnly}
	u.isDone = func() bool { return f.kills.Load() >= o.minKills && u.createdCount.Load() >= o.minClaims }
	random := func(n int) *rand.Rand { return rand.New(rand.NewPCG(o.seed, uint64(n))) }
	var lives, unrest errgroup.Group
	raging, calm := context.WithCancel(ctx)
	defer calm()
	for i := range o.users {
		lives.Go(func() error { return u.runUser(ctx, i, random(i)) })
	}
	for i := range o.electingManagers + o.activeManagers {
		unrest.Go(func() error { return f.crashManager(raging, i < o.electingManagers, random(o.users+i)) })
	}
	unrest.Go(func() error {
		err := f.crashAPIServer(raging, o.apiServerKillInterval)
		if err != nil {
			fail(err) // no user can finish without the watch
		}
		return err
	})
	unrest.Go(func() error { f.editObjects(raging, random(-1)); return nil })
	unrest.Go(func() error {
		for waitWithin(raging, nil, o.progressInterval); raging.Err() == nil; waitWithin(raging, nil, o.progressInterval) {
			fmt.Fprintf(out, "%4.0f s: %d created, %d kills, %d freezes, %d restarts of the API server, %d edits\n",
				time.Since(f.history.startedAt).Seconds(), u.createdCount.Load(), f.kills.Load(), f.freezes.Load(), f.restarts.Load(), f.edits.Load())
		}
		return nil
	})
	err := lives.Wait()
	calm()
	return errors.Join(err, unrest.Wait())
}

// checkAtRest runs a single manager until it is idle, and returns the violations that remain.
func checkAtRest(ctx context.Context, o options, f *faultInjector) (bad []string, err error) {
	m, err := framework.StartManager(ctx, f.managerOptions(false))
	if err != nil {
		return []string{err.Error()}, nil // a manager that cannot start on the remaining objects is a finding
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	left := &invariants.History{}
	for waited := time.Duration(0); waited < o.restTimeout; waited += retryInterval {
		o, err := listObjects(ctx, f.Client)
		if err != nil {
			return nil, err
		}
		if bad = left.CheckAtRest(o); len(bad) == 0 && len(o.Addresses)+len(o.Claims)+len(o.Allocations) == 0 {
			return nil, nil
		}
		if len(bad) == 0 {
			bad = []string{fmt.Sprintf("%d claims, %d IPAddresses and %d IPAllocations are left", len(o.Claims), len(o.Addresses), len(o.Allocations))}
		}
		waitWithin(ctx, nil, retryInterval)
	}
	return append(bad, m.LogTail(20)), nil
}

func listObjects(ctx context.Context, c client.Client) (o pools.Objects, err error) {
	locals, claims, addresses, allocations := &v1alpha1.NetworkPoolList{}, &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}, &v1alpha1.IPAllocationList{}
	for _, l := range []client.ObjectList{locals, claims, addresses, allocations} {
		if err := c.List(ctx, l, client.InNamespace(namespace)); err != nil {
			return o, err
		}
	}
	for i := range locals.Items {
		o.Pools = append(o.Pools, &locals.Items[i])
	}
	o.Claims, o.Addresses, o.Allocations = claims.Items, addresses.Items, allocations.Items
	return o, nil
}

// checkHistory checks the history with porcupine. It draws a history that is wrong.
func checkHistory(o options, h *history, res *result) error {
	ops := h.toOperations()
	res.operations, res.created = len(ops), len(h.tenures)
	for _, t := range h.tenures {
		if t.seenAt > 0 {
			res.served++
		}
	}
	res.violations = append(res.violations, h.addressChanges...)
	outcome, info := porcupine.CheckOperationsVerbose(addressModel, ops, 10*time.Minute)
	if outcome == porcupine.Ok {
		return nil
	}
	res.violations = append(res.violations, "porcupine: the history of an address is "+string(outcome))
	path := filepath.Join(o.outDir, fmt.Sprintf("chaos-%d.html", o.seed))
	if err := os.MkdirAll(o.outDir, 0o755); err != nil {
		return err
	}
	return porcupine.VisualizePath(addressModel, info, path)
}
