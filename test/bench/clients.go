package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	namespace = "default"
	poolName  = "bench"
	// writers is the number of concurrent writes of a bare client.
	writers = 16

	// metricsPeriod bounds both the error of a measurement, to a tenth of it, and the load of the reads on the
	// manager.
	metricsPeriod = 200 * time.Millisecond
	// longTimeout bounds each wait.
	longTimeout = 10 * time.Minute
)

// clients are clients of one control plane.
type clients struct {
	controlPlane *framework.ControlPlane
	client.WithWatch
	// pausedPools are the pools that are resumed for each turn of the manager.
	pausedPools []string
}

// withControlPlane starts a new control plane for use: no measurement inherits the data of another.
func withControlPlane(use func(*clients) error) error {
	// Every five minutes the API server lists each kind from etcd to compare it with its cache. With 50,000 claims
	// that takes it some 20 s of CPU, in an arbitrary turn.
	cp, err := framework.StartControlPlane(framework.Options{APIServerArgs: map[string]string{"feature-gates": "DetectCacheInconsistency=false"}})
	if err != nil {
		return err
	}
	defer func() { _ = cp.Stop() }()
	c, err := cp.NewClient()
	if err != nil {
		return err
	}
	return use(&clients{controlPlane: cp, WithWatch: c})
}

// startManager starts a manager without its audit, which would list everything every five minutes, in an arbitrary
// turn.
func (c *clients) startManager(ctx context.Context, opts framework.ManagerOptions) (*framework.Manager, error) {
	opts.Kubeconfig = c.controlPlane.Kubeconfig
	opts.Args = append([]string{"--audit-interval=0"}, opts.Args...)
	return framework.StartManager(ctx, opts)
}

// withManager starts a manager, passes it to use, and kills it. It adds the end of the log to an error.
func (c *clients) withManager(ctx context.Context, opts framework.ManagerOptions, use func(*framework.Manager) error) error {
	m, err := c.startManager(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { _ = m.Kill() }()
	if err := use(m); err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	return nil
}

// createPausedPool creates a pool that is paused except during the turns of the manager.
func (c *clients) createPausedPool(ctx context.Context, pool *v1alpha1.NetworkPool) error {
	metav1.SetMetaDataAnnotation(&pool.ObjectMeta, clusterv1.PausedAnnotation, "")
	c.pausedPools = append(c.pausedPools, pool.Name)
	return c.Create(ctx, pool)
}

// pausePools pauses or resumes the pools.
func (c *clients) pausePools(ctx context.Context, paused bool) error {
	annotations := map[string]any{clusterv1.PausedAnnotation: nil}
	if paused {
		annotations[clusterv1.PausedAnnotation] = ""
	}
	return runEach(ctx, len(c.pausedPools), func(ctx context.Context, i int) error {
		return c.Patch(ctx, framework.MakePool(c.pausedPools[i]).Namespace(namespace).Obj(), metadataPatch(map[string]any{annotationsField: annotations}))
	})
}

// runEach runs a step for 0 to n-1, with as many concurrent writes as a bare client has.
func runEach(ctx context.Context, n int, step func(context.Context, int) error) error {
	return runEachLimited(ctx, writers, n, step)
}

// runEachLimited runs a step for 0 to n-1, with at most atOnce steps at a time.
func runEachLimited(ctx context.Context, atOnce, n int, step func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range n {
		g.Go(func() error { return step(ctx, i) })
	}
	return g.Wait()
}

// waitForMetric polls a counter of the manager until it has reached a value. A watch in the benchmark would put a
// load on the API server that the bare client does not have. A read costs the manager time, so the polls are rare,
// and more frequent near the end.
func waitForMetric(ctx context.Context, m *framework.Manager, name string, want float64) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	start, first := time.Now(), -1.0
	for {
		got, err := m.ReadMetric(ctx, name)
		if err != nil && !errors.Is(err, framework.ErrMetricNotFound) { // not exported before the first event
			return err
		}
		if got >= want {
			return nil
		}
		if first < 0 {
			first = got
		}
		next := metricsPeriod
		if got > first {
			left := time.Duration(float64(time.Since(start)) * (want - got) / (got - first))
			next = min(max(left/2, metricsPeriod/10), 10*metricsPeriod)
		}
		if err := sleepContext(ctx, next); err != nil {
			return fmt.Errorf("%s is %v, not %v: %w", name, got, want, err)
		}
	}
}

func sleepContext(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchUntil opens a watch of an object, calls do, and waits until the watch shows the wanted state.
func watchUntil[T client.Object](ctx context.Context, c *clients, list client.ObjectList, o T, do func() error, wanted func(T) bool) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	w, err := c.Watch(ctx, list, client.InNamespace(o.GetNamespace()), client.MatchingFields{metav1.ObjectNameField: o.GetName()})
	if err != nil {
		return err
	}
	defer w.Stop()
	if err := do(); err != nil {
		return err
	}
	for e := range w.ResultChan() {
		if seen, is := e.Object.(T); is && wanted(seen) {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("the watch of %s ended", o.GetName()), ctx.Err())
}

// timeUntil creates an object, calls then, and returns the time until a watch shows the wanted state: since the request
// for the creation, and since its response.
func timeUntil[T client.Object](ctx context.Context, c *clients, list client.ObjectList, o T, then func() error, wanted func(T) bool) (requested, answered time.Duration, err error) {
	var start, created time.Time
	err = watchUntil(ctx, c, list, o, func() error {
		start = time.Now()
		err := c.Create(ctx, o)
		created = time.Now()
		if err != nil {
			return err
		}
		return then()
	}, wanted)
	return time.Since(start), time.Since(created), err
}

func doNothing() error { return nil }

// drainWatches opens watches and reads their events, for the cost of decoding them, until the context ends.
func (c *clients) drainWatches(ctx context.Context, lists ...client.ObjectList) error {
	for _, list := range lists {
		w, err := c.Watch(ctx, list)
		if err != nil {
			return err
		}
		go func() {
			defer w.Stop()
			events := 0
			for range w.ResultChan() {
				events++
			}
		}()
	}
	return nil
}

// checkUnique returns an error if two of the objects have the same address.
func checkUnique(o pools.Objects) error {
	if bad := (&invariants.History{}).CheckMoment(o); len(bad) > 0 {
		return errors.New(strings.Join(bad, "\n"))
	}
	return nil
}
