package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// newClusterCIDRs returns the ClusterCIDRs that Nodes get their CIDRs from: two sizes in one range, where the Nodes
// with a label take the larger, and one of both IP families. They are slightly too small for 80 users, and twice as
// large for twice as many.
func newClusterCIDRs(users int) []client.Object {
	more := bits.Len(uint(users-1) / 80)
	of := func(name string, hostBits int32, ipv4, ipv6, size string) client.Object {
		c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: hostBits, IPv4: ipv4, IPv6: ipv6}
		if size != "" {
			c.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpIn, Values: []string{size}}},
			}}}
		}
		return c
	}
	shared, rest := fmt.Sprintf("10.1.0.0/%d", 22-more), fmt.Sprintf("10.3.0.0/%d", 24-more)
	return []client.Object{
		of("small", 4, shared, "", "small"), of("big", 6, shared, "", "big"),
		of("both", 4, fmt.Sprintf("10.2.0.0/%d", 24-more), fmt.Sprintf("fd00:2::/%d", 120-more), "both"), of("rest", 4, rest, "", ""),
	}
}

var nodeSizes = []string{"small", "big", "both", "any"}

// nodeWatcher holds the state that the watch of Nodes has shown: the CIDRs of each Node, and the goroutines that wait
// for one.
type nodeWatcher struct {
	mu         sync.Mutex
	nodesByUID map[types.UID]*corev1.Node
	waiters    map[types.UID]chan struct{}
	// overlaps lists pairs of Nodes that the watch has shown with overlapping CIDRs at one time. Events of a watch
	// are in order, so each pair is a violation unless the watch was interrupted: then deletions are shown late.
	overlaps    []string
	servedCount int
}

func (s *nodeWatcher) observeNode(o any) {
	n, ok := o.(*corev1.Node)
	if !ok || len(n.Spec.PodCIDRs) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodesByUID[n.UID] == nil {
		s.servedCount++
		for _, other := range s.nodesByUID {
			if cidrsOverlap(n, other) {
				s.overlaps = append(s.overlaps, fmt.Sprintf("the watch shows %s (%v) and %s (%v)", n.Name, n.Spec.PodCIDRs, other.Name, other.Spec.PodCIDRs))
			}
		}
	}
	s.nodesByUID[n.UID] = n
	if c := s.waiters[n.UID]; c != nil {
		close(c)
		delete(s.waiters, n.UID)
	}
}

func (s *nodeWatcher) observeDeletion(o any) {
	if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	if n, ok := o.(*corev1.Node); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.nodesByUID, n.UID)
	}
}

// waitForCIDRs returns a channel that is closed when the Node has CIDRs.
func (s *nodeWatcher) waitForCIDRs(uid types.UID) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	if s.nodesByUID[uid] != nil {
		close(c)
	} else {
		s.waiters[uid] = c
	}
	return c
}

func cidrsOverlap(a, b *corev1.Node) bool {
	for _, x := range a.Spec.PodCIDRs {
		for _, y := range b.Spec.PodCIDRs {
			if netip.MustParsePrefix(x).Overlaps(netip.MustParsePrefix(y)) {
				return true
			}
		}
	}
	return false
}

// findOverlaps returns the Nodes that exist now and have overlapping CIDRs, and the number of Nodes. A list is
// consistent; the events of a watch that was interrupted are not.
func findOverlaps(ctx context.Context, c client.Client) (bad []string, left int, err error) {
	var all corev1.NodeList
	if err := c.List(ctx, &all); err != nil {
		return nil, 0, err
	}
	for i := range all.Items {
		for j := range i {
			if a, b := &all.Items[i], &all.Items[j]; cidrsOverlap(a, b) {
				bad = append(bad, fmt.Sprintf("Nodes %s (%v) and %s (%v) overlap", a.Name, a.Spec.PodCIDRs, b.Name, b.Spec.PodCIDRs))
			}
		}
	}
	return bad, len(all.Items), nil
}

// runNodeChaos creates and deletes Nodes while managers are killed, frozen and active concurrently.
func runNodeChaos(ctx context.Context, o options, out io.Writer) (res *result, err error) {
	cp, c, err := startControlPlane(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	for _, r := range newClusterCIDRs(o.users) {
		if err := c.Create(ctx, r); err != nil {
			return nil, err
		}
	}
	s := &nodeWatcher{nodesByUID: map[types.UID]*corev1.Node{}, waiters: map[types.UID]chan struct{}{}}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if err := s.startWatch(watching, cp); err != nil {
		return nil, err
	}
	f := &faultInjector{Client: c, controlPlane: cp, managerBinary: o.managerBinary, nodesOnly: true, maxLifetime: o.managerLifetime}
	res = &result{seed: o.seed}
	begin := time.Now()
	created, bad, stuck := churnNodes(ctx, o, f, s, out)
	res.created, res.violations = int(created), bad
	if stuck != nil {
		res.violations = append(res.violations, fmt.Sprintf("not through after %s: %v", o.timeout, stuck))
	}
	m, err := framework.StartManager(ctx, f.managerOptions(false))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	left, n, err := findOverlaps(ctx, c)
	if err != nil {
		return nil, err
	}
	res.violations = append(res.violations, left...)
	if n > 0 {
		res.violations = append(res.violations, fmt.Sprintf("%d Nodes are left", n))
	}
	if bad := waitForFreeRanges(ctx, o, c); len(bad) > 0 {
		grants := &corev1.ConfigMap{}
		err := c.Get(ctx, client.ObjectKey{Namespace: fence.ConfigMapNamespace, Name: fence.ConfigMapName}, grants)
		fmt.Fprintf(out, "the record (%v): %v %v\nthe manager:\n%s\n", err, grants.Annotations, grants.Data, m.LogTail(60))
		res.violations = append(res.violations, bad...)
	}
	res.kills, res.freezes, res.restarts, res.edits, res.duration = f.kills.Load(), f.freezes.Load(), f.restarts.Load(), f.edits.Load(), time.Since(begin)
	s.mu.Lock()
	defer s.mu.Unlock()
	res.served, res.operations = s.servedCount, s.servedCount
	if res.restarts == 0 {
		res.violations = append(res.violations, s.overlaps...)
	}
	return res, nil
}

func (s *nodeWatcher) startWatch(ctx context.Context, cp *framework.ControlPlane) error {
	scheme, err := framework.NewScheme()
	if err != nil {
		return err
	}
	c, err := cache.New(cp.Config, cache.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	informer, err := c.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: s.observeNode, UpdateFunc: func(_, o any) { s.observeNode(o) }, DeleteFunc: s.observeDeletion}); err != nil {
		return err
	}
	go func() { _ = c.Start(ctx) }() // it ends with ctx
	if !c.WaitForCacheSync(ctx) {
		return errors.New("the cache did not sync")
	}
	return nil
}

// churnNodes runs until there were enough Nodes and enough kills, and all Nodes are gone again.
func churnNodes(ctx context.Context, o options, f *faultInjector, s *nodeWatcher, out io.Writer) (created int64, bad []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	var made atomic.Int64
	random := func(n int) *rand.Rand { return rand.New(rand.NewPCG(o.seed, uint64(n))) }
	raging, calm := context.WithCancel(ctx)
	defer calm()
	var lives, unrest errgroup.Group
	for i := range o.users {
		r := random(i)
		lives.Go(func() error {
			for f.kills.Load() < o.minKills || made.Load() < o.nodeCount {
				if err := runNodeLifecycle(ctx, f.Client, s, r, fmt.Sprintf("n%d-%d", i, r.IntN(3)), &made); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range o.electingManagers + o.activeManagers {
		unrest.Go(func() error { return f.crashManager(raging, i < o.electingManagers, random(o.users+i)) })
	}
	unrest.Go(func() error { return f.crashAPIServer(raging, o.apiServerKillInterval) })
	unrest.Go(func() error { f.editNodeObjects(raging, random(-1), newClusterCIDRs(o.users)); return nil })
	var found []string
	unrest.Go(func() error {
		for waitWithin(raging, nil, time.Second); raging.Err() == nil; waitWithin(raging, nil, time.Second) {
			if now, _, err := findOverlaps(raging, f.Client); err == nil {
				found = append(found, now...)
			}
		}
		return nil
	})
	unrest.Go(func() error {
		for waitWithin(raging, nil, o.progressInterval); raging.Err() == nil; waitWithin(raging, nil, o.progressInterval) {
			fmt.Fprintf(out, "%d Nodes created, %d kills, %d freezes, %d restarts of the API server, %d edits\n",
				made.Load(), f.kills.Load(), f.freezes.Load(), f.restarts.Load(), f.edits.Load())
		}
		return nil
	})
	err = lives.Wait()
	calm()
	err = errors.Join(err, unrest.Wait())
	return made.Load(), found, err
}

// runNodeLifecycle creates a Node, waits for its CIDRs, and deletes it, sometimes with a finalizer that keeps it for
// a while. Its name is used again at once.
func runNodeLifecycle(ctx context.Context, c client.Client, s *nodeWatcher, r *rand.Rand, name string, made *atomic.Int64) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"size": nodeSizes[r.IntN(len(nodeSizes))]}}}
	keeps, quits := r.IntN(4) == 0, r.IntN(8) == 0
	if keeps {
		n.Finalizers = []string{"karpenter.sh/termination"}
	}
	err := retryUntilDone(ctx, func() error {
		err := c.Create(ctx, n)
		if apierrors.IsAlreadyExists(err) { // the answer to the first try was lost: no other user takes this name
			return c.Get(ctx, client.ObjectKeyFromObject(n), n)
		}
		return err
	})
	if err != nil {
		return err
	}
	made.Add(1)
	if !quits { // else it is deleted before it is served, or meanwhile
		select {
		case <-s.waitForCIDRs(n.UID):
		case <-ctx.Done():
			return fmt.Errorf("no pod CIDRs for Node %s: %w", name, ctx.Err())
		}
	}
	if err := retryUntilDone(ctx, func() error { return client.IgnoreNotFound(c.Delete(ctx, n)) }); err != nil || !keeps {
		return err
	}
	waitWithin(ctx, nil, time.Duration(r.IntN(300))*time.Millisecond)
	return retryUntilDone(ctx, func() error {
		return client.IgnoreNotFound(c.Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	})
}

// retryUntilDone retries until do succeeds: the API server is down now and then.
func retryUntilDone(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		waitWithin(ctx, nil, 100*time.Millisecond)
	}
}

// editNodeObjects acts as users who touch the ConfigMap, and delete ClusterCIDRs in use and create them again.
func (f *faultInjector) editNodeObjects(ctx context.Context, r *rand.Rand, all []client.Object) {
	for n := 0; ctx.Err() == nil; n++ {
		waitWithin(ctx, nil, time.Duration(200+r.IntN(800))*time.Millisecond)
		some := func() client.Object { return all[r.IntN(len(all))].DeepCopyObject().(client.Object) }
		err := f.Create(ctx, some())
		switch r.IntN(3) {
		case 0:
			o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fence.ConfigMapNamespace, Name: fence.ConfigMapName}}
			err = f.Patch(ctx, o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, n)))
		case 1:
			if r.IntN(4) == 0 {
				err = f.Delete(ctx, some())
			}
		}
		if err == nil {
			f.edits.Add(1)
		}
	}
}

// waitForFreeRanges waits until every range is free again, and returns those that are not.
func waitForFreeRanges(ctx context.Context, o options, c client.Client) (bad []string) {
	for waited := time.Duration(0); waited < o.restTimeout; waited += retryInterval {
		var all v1alpha1.ClusterCIDRList
		if err := c.List(ctx, &all); err != nil {
			return []string{err.Error()}
		}
		bad = nil
		for _, r := range all.Items {
			if r.DeletionTimestamp != nil || r.Status.Allocated != 0 || r.Status.Free != r.Status.Capacity {
				bad = append(bad, fmt.Sprintf("ClusterCIDR %s has %d Nodes and %d of %d free, deleted: %v", r.Name, r.Status.Allocated, r.Status.Free, r.Status.Capacity, r.DeletionTimestamp))
			}
		}
		if len(bad) == 0 {
			return nil
		}
		waitWithin(ctx, nil, retryInterval)
	}
	return bad
}
