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

// options bound a run: it goes on until there were so many kills and so many claims.
type options struct {
	seed                                                  uint64
	kills, claims                                         int64
	users, electing, active                               int
	life, apiServerEvery, progressEvery, restAfter, limit time.Duration
	manager, out                                          string
	// carved: all users ask carved pools.
	carved bool
	// nodes is how many Nodes come and go, in the place of claims; 0: none do.
	nodes int64
}

// result is what a run was and what it found.
type result struct {
	seed                            uint64
	kills, freezes, restarts, edits int64
	created, served, operations     int
	took                            time.Duration
	violations                      []string
}

// start starts a control plane, and builds the manager where none is given.
func start(ctx context.Context, o *options) (cp *framework.ControlPlane, c client.Client, err error) {
	ctrl.SetLogger(klog.Background())
	if cp, err = framework.Start(framework.Options{}); err != nil {
		return nil, nil, err
	}
	if c, err = cp.Client(); err == nil && o.manager == "" {
		o.manager, err = framework.BuildManager(ctx, cp.Dir)
	}
	if err != nil {
		return nil, nil, errors.Join(err, cp.Stop())
	}
	return cp, c, nil
}

// run has users and faults loose on a control plane, waits for rest, and checks what was seen and what is left.
func run(ctx context.Context, o options, say io.Writer) (res *result, err error) {
	cp, c, err := start(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err := prepare(ctx, c); err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	h := newHistory()
	if err := watch(watching, cp, h); err != nil {
		return nil, err
	}
	f := &faults{Client: c, cp: cp, h: h, binary: o.manager, life: o.life}
	stuck := churn(ctx, o, f, say)
	if stuck != nil && !errors.Is(stuck, context.DeadlineExceeded) {
		return nil, stuck
	}
	res = &result{seed: o.seed, kills: f.kills.Load(), freezes: f.freezes.Load(), restarts: f.restarts.Load(), edits: f.edits.Load(), took: time.Since(h.start)}
	if stuck != nil {
		res.violations = append(res.violations, fmt.Sprintf("not through after %s: %v", o.limit, stuck))
	}
	bad, err := rest(ctx, o, f)
	if err != nil {
		return nil, err
	}
	res.violations = append(res.violations, bad...)
	return res, check(o, h, res)
}

func prepare(ctx context.Context, c client.Client) error {
	about := metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}
	objs := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&clusterv1.Cluster{ObjectMeta: about, Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}}},
	}
	for _, p := range poolNamed {
		objs = append(objs, p.Obj())
	}
	objs = append(objs, carved()...)
	for _, obj := range objs {
		if err := c.Create(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}

// churn lasts until there were enough claims and enough kills, and all are gone again.
func churn(ctx context.Context, o options, f *faults, say io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	u := &users{Client: f.Client, history: f.h, carved: o.carved}
	u.enough = func() bool { return f.kills.Load() >= o.kills && u.created.Load() >= o.claims }
	random := func(n int) *rand.Rand { return rand.New(rand.NewPCG(o.seed, uint64(n))) }
	var lives, unrest errgroup.Group
	raging, calm := context.WithCancel(ctx)
	defer calm()
	for i := range o.users {
		lives.Go(func() error { return u.user(ctx, i, random(i)) })
	}
	for i := range o.electing + o.active {
		unrest.Go(func() error { return f.manager(raging, i < o.electing, random(o.users+i)) })
	}
	unrest.Go(func() error {
		err := f.apiServer(raging, o.apiServerEvery)
		if err != nil {
			fail(err) // nobody comes to an end without it
		}
		return err
	})
	unrest.Go(func() error { f.hands(raging, random(-1)); return nil })
	unrest.Go(func() error {
		for within(raging, nil, o.progressEvery); raging.Err() == nil; within(raging, nil, o.progressEvery) {
			fmt.Fprintf(say, "%4.0f s: %d created, %d kills, %d freezes, %d restarts of the API server, %d edits\n",
				time.Since(f.h.start).Seconds(), u.created.Load(), f.kills.Load(), f.freezes.Load(), f.restarts.Load(), f.edits.Load())
		}
		return nil
	})
	err := lives.Wait()
	calm()
	return errors.Join(err, unrest.Wait())
}

// rest has one manager alone until nothing is under way any more, and returns what is wrong then.
func rest(ctx context.Context, o options, f *faults) (bad []string, err error) {
	m, err := framework.StartManager(ctx, f.options(false))
	if err != nil {
		return []string{err.Error()}, nil // that it cannot start on what is left is a finding
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	left := &invariants.History{}
	for waited := time.Duration(0); waited < o.restAfter; waited += again {
		o, err := objects(ctx, f.Client)
		if err != nil {
			return nil, err
		}
		if bad = left.AtRest(o); len(bad) == 0 && len(o.Addresses)+len(o.Claims)+len(o.Allocations) == 0 {
			return nil, nil
		}
		if len(bad) == 0 {
			bad = []string{fmt.Sprintf("%d claims, %d IPAddresses and %d IPAllocations are left", len(o.Claims), len(o.Addresses), len(o.Allocations))}
		}
		within(ctx, nil, again)
	}
	return append(bad, m.LogTail(20)), nil
}

func objects(ctx context.Context, c client.Client) (o pools.Objects, err error) {
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

// check has porcupine look at the history. One that is wrong is drawn.
func check(o options, h *history, res *result) error {
	ops := h.operations()
	res.operations, res.created = len(ops), len(h.tenures)
	for _, t := range h.tenures {
		if t.seen > 0 {
			res.served++
		}
	}
	res.violations = append(res.violations, h.changed...)
	verdict, info := porcupine.CheckOperationsVerbose(register, ops, 10*time.Minute)
	if verdict == porcupine.Ok {
		return nil
	}
	res.violations = append(res.violations, "porcupine: the history of an address is "+string(verdict))
	path := filepath.Join(o.out, fmt.Sprintf("chaos-%d.html", o.seed))
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return porcupine.VisualizePath(register, info, path)
}
