package fleetcidr

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// numbersEvery bounds how often the numbers of a ClusterCIDR are written: many Clusters may use it.
const numbersEvery = time.Minute

// outdatedFor is how long a number stays wrong before the holder of its Cluster's Nodes counts as gone: longer than a write waits.
const outdatedFor = 2 * numbersEvery

// ranges has what is known of the ClusterCIDRs of Clusters. Its zero value knows nothing.
type ranges struct {
	mu sync.Mutex
	// found is what each Cluster was last seen to use.
	found map[nodeipam.Key]map[podcidr.Ref]nodeipam.Usage
	queue queue
	// written is when the status of each was written last.
	written map[types.UID]time.Time
}

// take takes what is known of a Cluster.
func (r *ranges) take(key nodeipam.Key, found nodeipam.Report) {
	was := r.replace(key, found.Ranges)
	for ref, usage := range found.Ranges {
		if old, known := was[ref]; !known || !old.Same(usage) {
			r.look(ref.Name)
		}
	}
}

func (r *ranges) replace(key nodeipam.Key, found map[podcidr.Ref]nodeipam.Usage) (was map[podcidr.Ref]nodeipam.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == nil {
		r.found = map[nodeipam.Key]map[podcidr.Ref]nodeipam.Usage{}
	}
	was, r.found[key] = r.found[key], found
	return was
}

// leave leaves what a Cluster uses to the manager that holds its Nodes: what this one has seen is soon outdated.
func (r *ranges) leave(key nodeipam.Key) { r.drop(key) }

// forget forgets what a Cluster was seen to use: it is gone, or another manager's, or wants nothing any more.
func (r *ranges) forget(key nodeipam.Key) {
	for ref := range r.drop(key) {
		r.look(ref.Name)
	}
}

func (r *ranges) drop(key nodeipam.Key) (was map[podcidr.Ref]nodeipam.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.found[key]
	delete(r.found, key)
	return was
}

// look has a ClusterCIDR looked at. Before its controller has started, all are.
func (r *ranges) look(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue != nil {
		r.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
}

func (r *ranges) start(q queue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = q
}

// of is what Clusters use of a ClusterCIDR, as far as this manager knows.
func (r *ranges) of(ref podcidr.Ref) map[nodeipam.Key]nodeipam.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[nodeipam.Key]nodeipam.Usage{}
	for key, all := range r.found {
		if usage, is := all[ref]; is {
			out[key] = usage
		}
	}
	return out
}

// says reports whether what a Cluster uses is known, and whether that is something of a ClusterCIDR.
func (r *ranges) says(key nodeipam.Key, ref podcidr.Ref) (known, says bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, known := r.found[key]
	_, says = all[ref]
	return known, says
}

// due reports whether numbers alone may be written, or how long until then; wrote notes that they were.
func (r *ranges) due(uid types.UID, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return numbersEvery - now.Sub(r.written[uid])
}

func (r *ranges) wrote(uid types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written == nil {
		r.written = map[types.UID]time.Time{}
	}
	maps.DeleteFunc(r.written, func(_ types.UID, at time.Time) bool { return now.Sub(at) > 2*numbersEvery })
	r.written[uid] = now
}

// reconcileRange says on a ClusterCIDR how Clusters use it, and lets go of it when it is being deleted and none does.
func (r *Reconciler) reconcileRange(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c := &v1alpha1.ClusterCIDR{}
	if err := r.Client.Get(ctx, req.NamespacedName, c); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if nodeipam.IsLocal(c) {
		return reconcile.Result{}, nil
	}
	next := c.DeepCopy()
	gone, silent, err := r.clustersOver(ctx, c)
	if err != nil {
		return reconcile.Result{}, err
	}
	next.Status.Clusters = slices.DeleteFunc(next.Status.Clusters, func(e v1alpha1.ClusterUse) bool {
		return gone[nodeipam.Key{Namespace: e.Namespace, Name: e.Name}]
	})
	entryGone := len(next.Status.Clusters) < len(c.Status.Clusters)
	if len(c.Status.Clusters) == 0 && c.DeletionTimestamp != nil {
		if !nodeipam.ObjectOf(c).Held {
			return reconcile.Result{}, nil // the finalizer of another keeps it
		}
		err := nodeipam.ClusterCIDRs{Client: r.Client, Live: r.Live}.Release(ctx, nodeipam.RefOf(c), "")
		return guard.Retry(err, "letting go of ClusterCIDR "+c.Name)
	}
	now := r.Now()
	by := r.ranges.of(nodeipam.RefOf(c))
	for key := range silent {
		by[key] = nodeipam.Usage{Blind: true}
	}
	changed, urgent := nodeipam.DescribeFleet(next, by, r.Shard.Whole(), now)
	urgent = urgent || entryGone
	if !changed && !urgent {
		return reconcile.Result{}, nil
	}
	if wait := r.ranges.due(c.UID, now); !urgent && wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	r.ranges.wrote(c.UID, now)
	err = client.IgnoreNotFound(r.Client.Status().Patch(ctx, next, guard.SinceRead(c)))
	return guard.Retry(err, "writing the status of ClusterCIDR "+c.Name)
}

// clustersOver are the Clusters of which a ClusterCIDR says something, and which do not exist: their Nodes are gone with them; and
// those of which nothing is to be said any more, as these too, unless this manager has something to say of them.
func (r *Reconciler) clustersOver(ctx context.Context, c *v1alpha1.ClusterCIDR) (gone, silent map[nodeipam.Key]bool, err error) {
	gone, silent = map[nodeipam.Key]bool{}, map[nodeipam.Key]bool{}
	for _, key := range nodeipam.SaidAbout(c) {
		cluster := &clusterv1.Cluster{}
		err := r.Client.Get(ctx, key, cluster)
		if apierrors.IsNotFound(err) {
			err = r.Live.Get(ctx, key, cluster) // the cache is behind, or does not show all namespaces
		}
		switch {
		case apierrors.IsNotFound(err):
			gone[key], silent[key] = true, true
		case err != nil:
			return nil, nil, fmt.Errorf("reading Cluster %s, which uses ClusterCIDR %s: %w", key, c.Name, err)
		case r.isSilent(cluster, c):
			silent[key] = true
		}
	}
	return gone, silent, nil
}

// isSilent reports whether nothing is to be said of a Cluster on a ClusterCIDR: no manager serves it, or its Nodes get nothing of
// that, or this manager serves it, and has nothing to say.
func (r *Reconciler) isSilent(cluster *clusterv1.Cluster, c *v1alpha1.ClusterCIDR) bool {
	key := client.ObjectKeyFromObject(cluster)
	switch {
	case guard.IsAnothers(cluster, r.WatchFilter):
		return false
	case guard.LeavesAlone(cluster, r.WatchFilter), guard.IsLeft(cluster):
		return true
	}
	known, says := r.ranges.says(key, nodeipam.RefOf(c))
	if known {
		return !says
	}
	_, concerns := nodeipam.ObjectFor(c, key, labelsOf(cluster))
	return !concerns
}
