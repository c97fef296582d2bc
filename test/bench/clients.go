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

	// metricsPeriod bounds both the error of a figure, a tenth of it, and what asking costs the manager.
	metricsPeriod = 200 * time.Millisecond
)

// clients talk to one control plane.
type clients struct {
	cp *framework.ControlPlane
	client.WithWatch
	watched *watched
}

func newClients(_ context.Context, cp *framework.ControlPlane) (*clients, error) {
	c, err := cp.Client()
	return &clients{cp: cp, WithWatch: c}, err
}

// manager starts a manager without its audit: every five minutes that lists everything, and it falls into anybody's turn.
func (c *clients) manager(ctx context.Context, binary string, args ...string) (*framework.Manager, error) {
	args = slices.Concat([]string{"--audit-interval=0"}, framework.Components(), args)
	return framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: c.cp.Kubeconfig, Args: args})
}

// managed starts a manager for what it is used for. An error comes with the end of its log.
func (c *clients) managed(ctx context.Context, binary string, use func(*framework.Manager) error, args ...string) error {
	m, err := c.manager(ctx, binary, args...)
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

func (c *clients) create(ctx context.Context, name string) error {
	return c.Create(ctx, framework.MakeClaim(namespace, name).Pool(poolName).Obj())
}

// each runs a step for 0 to n-1, so many at a time as a bare client would.
func each(ctx context.Context, n int, step func(context.Context, int) error) error {
	return eachOf(ctx, writers, n, step)
}

// eachOf is each of which so many steps are under way at a time.
func eachOf(ctx context.Context, atOnce, n int, step func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range n {
		g.Go(func() error { return step(ctx, i) })
	}
	return g.Wait()
}

// burst creates claims on a paused pool, unpauses it, and takes the time, and the manager's seconds of CPU, until every
// one is Ready.
func (c *clients) burst(ctx context.Context, m *framework.Manager, n int) (took time.Duration, cpu float64, err error) {
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").Annotate(clusterv1.PausedAnnotation, "").Obj()
	if err := c.Create(ctx, pool); err != nil {
		return 0, 0, err
	}
	if err := each(ctx, n, func(ctx context.Context, i int) error { return c.create(ctx, claimName(i)) }); err != nil {
		return 0, 0, err
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		return 0, 0, err
	}
	if err := allTold(ctx, m); err != nil {
		return 0, 0, err
	}
	before, err := m.Activity(ctx)
	if err != nil {
		return 0, 0, err
	}
	unpaused := pool.DeepCopy()
	delete(unpaused.Annotations, clusterv1.PausedAnnotation)
	start := time.Now()
	if err := c.Patch(ctx, unpaused, client.MergeFrom(pool)); err != nil {
		return 0, 0, err
	}
	if err := metric(ctx, m, fulfilment, float64(n)); err != nil {
		return 0, 0, err
	}
	took = time.Since(start)
	after, err := m.Activity(ctx)
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

// allTold waits until the manager has told the claims of a paused pool that it is paused: that is no part of a burst.
func allTold(ctx context.Context, m *framework.Manager) error {
	_, err := quiet(ctx, time.Second, func() (int, error) {
		does, err := m.Activity(ctx)
		return int(does.Requests), err
	})
	return err
}

// metric polls a counter of the manager until it has reached a value. A watch of the bench's own would be a load on the
// API server that the raw limit does not have. The manager is asked seldom, since that costs it, and more often the
// nearer the end is.
func metric(ctx context.Context, m *framework.Manager, name string, want float64) error {
	return untilCount(ctx, name, want, func(ctx context.Context) (float64, error) {
		got, err := m.Metric(ctx, name)
		if errors.Is(err, framework.ErrNoMetric) {
			err = nil // before the first
		}
		return got, err
	})
}

// untilCount asks for a counter until it has reached a value.
func untilCount(ctx context.Context, name string, want float64, ask func(context.Context) (float64, error)) error {
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
		if err := pause(ctx, next); err != nil {
			return fmt.Errorf("%s is %v, not %v: %w", name, got, want, err)
		}
	}
}

// release deletes claims and takes the time until a manager that has released nothing yet has
// released them.
func (c *clients) release(ctx context.Context, m *framework.Manager, n int) (time.Duration, error) {
	start := time.Now()
	deleting := make(chan error, 1)
	go func() {
		deleting <- each(ctx, n, func(ctx context.Context, i int) error {
			claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claimName(i)}}
			return c.Delete(ctx, claim)
		})
	}()
	err := metric(ctx, m, "butler_ipam_releases_total", float64(n))
	return time.Since(start), errors.Join(err, <-deleting)
}

// watched are the claims as a watch shows them; a watch that breaks is taken up again.
type watched struct {
	mu      sync.Mutex
	claims  map[string]*ipamv1.IPAddressClaim
	changed chan struct{}
}

// watchClaims starts to watch the claims.
func (c *clients) watchClaims(ctx context.Context) error {
	informers, err := cache.New(c.cp.Config, cache.Options{Scheme: c.Scheme()})
	if err != nil {
		return err
	}
	informer, err := informers.GetInformer(ctx, &ipamv1.IPAddressClaim{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	w := &watched{claims: map[string]*ipamv1.IPAddressClaim{}, changed: make(chan struct{}, 1)}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.set(obj) },
		UpdateFunc: func(_, obj any) { w.set(obj) },
		DeleteFunc: func(obj any) {
			if last, unknown := obj.(toolscache.DeletedFinalStateUnknown); unknown {
				obj = last.Obj
			}
			if claim, ok := obj.(*ipamv1.IPAddressClaim); ok {
				w.note(func() { delete(w.claims, claim.Name) })
			}
		},
	})
	if err != nil {
		return err
	}
	c.watched = w
	go func() { _ = informers.Start(ctx) }()
	if !informers.WaitForCacheSync(ctx) {
		return errors.New("the watch of claims did not start")
	}
	return nil
}

func (w *watched) set(obj any) {
	if claim, ok := obj.(*ipamv1.IPAddressClaim); ok {
		w.note(func() { w.claims[claim.Name] = claim })
	}
}

func (w *watched) note(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// waitReady waits until a claim has its address.
func (c *clients) waitReady(ctx context.Context, name string) error {
	return c.until(ctx, func(claims map[string]*ipamv1.IPAddressClaim) bool {
		return claims[name] != nil && isReady(claims[name])
	})
}

// serve creates a claim, and takes the time until it has its address.
func (c *clients) serve(ctx context.Context, claim *ipamv1.IPAddressClaim) (time.Duration, error) {
	start := time.Now()
	if err := c.Create(ctx, claim); err != nil {
		return 0, err
	}
	err := c.waitReady(ctx, claim.Name)
	return time.Since(start), err
}

// until waits, ten minutes at most, for the claims to be as wanted.
func (c *clients) until(ctx context.Context, done func(map[string]*ipamv1.IPAddressClaim) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		c.watched.mu.Lock()
		ok := done(c.watched.claims)
		c.watched.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.watched.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func isReady(claim *ipamv1.IPAddressClaim) bool {
	return meta.IsStatusConditionTrue(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition) && claim.Status.AddressRef.Name != ""
}
