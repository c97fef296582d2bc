package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	namespace = "default"
	poolName  = "bench"
	writers   = 16

	// metricsPeriod bounds both the error of a measurement, to a tenth of it, and the load of the reads on the
	// manager.
	metricsPeriod = 200 * time.Millisecond
)

// clients are clients of one control plane.
type clients struct {
	controlPlane *framework.ControlPlane
	client.WithWatch
	claimWatch *claimWatcher
}

func newClients(_ context.Context, cp *framework.ControlPlane) (*clients, error) {
	c, err := cp.NewClient()
	return &clients{controlPlane: cp, WithWatch: c}, err
}

// startManager starts a manager without its audit, which would list everything each five minutes, in an arbitrary
// turn.
func (c *clients) startManager(ctx context.Context, binary string, args ...string) (*framework.Manager, error) {
	args = slices.Concat([]string{"--audit-interval=0"}, framework.ComponentFlags(), args)
	return framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: c.controlPlane.Kubeconfig, Args: args})
}

// withManager starts a manager, passes it to use, and kills it. It adds the end of the log to an error.
func (c *clients) withManager(ctx context.Context, binary string, use func(*framework.Manager) error, args ...string) error {
	m, err := c.startManager(ctx, binary, args...)
	if err != nil {
		return err
	}
	defer func() { _ = m.Kill() }()
	if err := use(m); err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	return nil
}

func claimName(i int) string { return fmt.Sprintf("claim-%05d", i) }

func (c *clients) createClaim(ctx context.Context, name string) error {
	return c.Create(ctx, framework.MakeClaim(namespace, name).Pool(poolName).Obj())
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

// runClaimBurst creates claims in a paused pool, unpauses it, and returns the time until all are Ready, and the
// manager's seconds of CPU.
func (c *clients) runClaimBurst(ctx context.Context, m *framework.Manager, n int) (took time.Duration, cpu float64, err error) {
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").Annotate(clusterv1.PausedAnnotation, "").Obj()
	if err := c.Create(ctx, pool); err != nil {
		return 0, 0, err
	}
	if err := runEach(ctx, n, func(ctx context.Context, i int) error { return c.createClaim(ctx, claimName(i)) }); err != nil {
		return 0, 0, err
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		return 0, 0, err
	}
	if err := waitForPausedConditions(ctx, m); err != nil {
		return 0, 0, err
	}
	before, err := m.ReadActivity(ctx)
	if err != nil {
		return 0, 0, err
	}
	unpaused := pool.DeepCopy()
	delete(unpaused.Annotations, clusterv1.PausedAnnotation)
	start := time.Now()
	if err := c.Patch(ctx, unpaused, client.MergeFrom(pool)); err != nil {
		return 0, 0, err
	}
	if err := waitForMetric(ctx, m, fulfilmentMetric, float64(n)); err != nil {
		return 0, 0, err
	}
	took = time.Since(start)
	after, err := m.ReadActivity(ctx)
	if err != nil {
		return 0, 0, err
	}
	list := &ipamv1.IPAddressClaimList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return 0, 0, err
	}
	for i := range list.Items {
		if !isReady(&list.Items[i]) {
			return 0, 0, fmt.Errorf("claim %s is not Ready", list.Items[i].Name)
		}
	}
	return took, after.Since(before).CPU, nil
}

// waitForPausedConditions waits until the manager has set the conditions of the claims of a paused pool: these writes
// are not part of a burst.
func waitForPausedConditions(ctx context.Context, m *framework.Manager) error {
	_, err := waitUntilStable(ctx, time.Second, func() (int, error) {
		does, err := m.ReadActivity(ctx)
		return int(does.Requests), err
	})
	return err
}

// waitForMetric polls a counter of the manager until it has reached a value. A watch in the benchmark would put a
// load on the API server that the raw limit does not include. A read costs the manager time, so the polls are rare,
// and more frequent near the end.
func waitForMetric(ctx context.Context, m *framework.Manager, name string, want float64) error {
	return waitForCount(ctx, name, want, func(ctx context.Context) (float64, error) {
		got, err := m.ReadMetric(ctx, name)
		if errors.Is(err, framework.ErrMetricNotFound) {
			err = nil // not exported before the first event
		}
		return got, err
	})
}

// waitForCount polls a counter until it has reached a value.
func waitForCount(ctx context.Context, name string, want float64, ask func(context.Context) (float64, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	start, first := time.Now(), -1.0
	for {
		got, err := ask(ctx)
		if err != nil || got >= want {
			return err
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

// timeRelease deletes claims and returns the time until the manager has released them; it must have released none
// before.
func (c *clients) timeRelease(ctx context.Context, m *framework.Manager, n int) (time.Duration, error) {
	start := time.Now()
	deleting := make(chan error, 1)
	go func() {
		deleting <- runEach(ctx, n, func(ctx context.Context, i int) error {
			claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claimName(i)}}
			return c.Delete(ctx, claim)
		})
	}()
	err := waitForMetric(ctx, m, "butler_ipam_releases_total", float64(n))
	return time.Since(start), errors.Join(err, <-deleting)
}

// claimWatcher holds the claims that a watch shows; a watch that breaks is started again.
type claimWatcher struct {
	mu      sync.Mutex
	claims  map[string]*ipamv1.IPAddressClaim
	changed chan struct{}
}

// watchClaims starts to watch the claims.
func (c *clients) watchClaims(ctx context.Context) error {
	informers, err := cache.New(c.controlPlane.Config, cache.Options{Scheme: c.Scheme()})
	if err != nil {
		return err
	}
	informer, err := informers.GetInformer(ctx, &ipamv1.IPAddressClaim{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	w := &claimWatcher{claims: map[string]*ipamv1.IPAddressClaim{}, changed: make(chan struct{}, 1)}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.setClaim(obj) },
		UpdateFunc: func(_, obj any) { w.setClaim(obj) },
		DeleteFunc: func(obj any) {
			if last, unknown := obj.(toolscache.DeletedFinalStateUnknown); unknown {
				obj = last.Obj
			}
			if claim, ok := obj.(*ipamv1.IPAddressClaim); ok {
				w.applyChange(func() { delete(w.claims, claim.Name) })
			}
		},
	})
	if err != nil {
		return err
	}
	c.claimWatch = w
	go func() { _ = informers.Start(ctx) }()
	if !informers.WaitForCacheSync(ctx) {
		return errors.New("the watch of claims did not start")
	}
	return nil
}

func (w *claimWatcher) setClaim(obj any) {
	if claim, ok := obj.(*ipamv1.IPAddressClaim); ok {
		w.applyChange(func() { w.claims[claim.Name] = claim })
	}
}

func (w *claimWatcher) applyChange(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// waitForClaim waits until a claim has its address.
func (c *clients) waitForClaim(ctx context.Context, name string) error {
	return c.waitForClaims(ctx, func(claims map[string]*ipamv1.IPAddressClaim) bool {
		return claims[name] != nil && isReady(claims[name])
	})
}

// timeNewClaim creates a claim, and returns the time until it has its address.
func (c *clients) timeNewClaim(ctx context.Context, claim *ipamv1.IPAddressClaim) (time.Duration, error) {
	start := time.Now()
	if err := c.Create(ctx, claim); err != nil {
		return 0, err
	}
	err := c.waitForClaim(ctx, claim.Name)
	return time.Since(start), err
}

// waitForClaims waits until done returns true for the claims, for ten minutes at most.
func (c *clients) waitForClaims(ctx context.Context, done func(map[string]*ipamv1.IPAddressClaim) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		c.claimWatch.mu.Lock()
		ok := done(c.claimWatch.claims)
		c.claimWatch.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.claimWatch.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func isReady(claim *ipamv1.IPAddressClaim) bool {
	return meta.IsStatusConditionTrue(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition) && claim.Status.AddressRef.Name != ""
}
