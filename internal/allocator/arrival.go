package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// maxNamedClusters is how many Clusters of its namespace a pool names. One would do: clusterctl moves all of them, and
// unpauses none before everything is there. With a few, the end of one costs no write.
const maxNamedClusters = 4

// seeArrival finds out whether all is here that came, or comes, along with a pool (R10). clusterctl creates Clusters
// paused, and unpauses them when all else is there; a restore is asked to do the same. So the proof is a Cluster that was
// with the pool before, and is not paused, where no other of the namespace is. It is read live, and what is in use is
// listed after that. The pool owes that list from when it lacks a proof until a list has succeeded: the proof may be on
// record by then, by this manager or by hand. What the API server refuses for good leaves the pool closed, and the rest of
// the turn is done.
func (a *Allocator) seeArrival(ctx context.Context, p *grants.Pool) error {
	now := a.now()
	m := p.Lock()
	m.BeginQuarantine(now, a.Quarantine)
	m.ExtendQuarantine(now, a.Quarantine)
	quiet := !m.QuarantineUntil.After(now)
	base, came := m.Base, m.CameFromElsewhere()
	owes := m.Arriving.Unlisted || m.Arriving.Lacks != ""
	arrives := m.Arrives() && (came || !m.Arriving.Opened) && base.GetDeletionTimestamp() == nil
	rests := m.Arriving.TryAfter.After(now)
	m.Unlock()
	if base.GetNamespace() == "" || rests {
		return nil // of what is in no namespace a person decides
	}
	lacks := ""
	if arrives {
		lacks = a.lackOf(ctx, a.Client, base, came)
	}
	owes = owes || lacks != "" || (arrives && came)
	proven := owes && lacks == "" && (quiet || !came)
	if proven && arrives {
		timedCtx, cancel := timed(ctx)
		lacks = a.lackOf(timedCtx, a.Live, base, came)
		cancel()
	}
	m = p.Lock()
	m.Arriving.Lacks, m.Arriving.Unlisted = lacks, owes
	m.Unlock()
	if !proven || lacks != "" {
		return nil
	}
	err := a.open(ctx, p, base, came)
	if !term.RefusedForGood(err) {
		return err
	}
	m = p.Lock()
	defer m.Unlock()
	m.Arriving.Lacks = text.Message(fmt.Sprintf("all is here that came along with the pool, and the API server refuses what opens it: %v; "+
		"change the quota, policy or right that refuses it", err))
	m.Arriving.TryAfter = now.Add(openPause)
	return nil
}

// openPause is how long a pool rests that the API server does not let open.
const openPause = time.Minute

// open notes that all is here which came along with a pool, and lists what is in use: the list begins after the proof.
func (a *Allocator) open(ctx context.Context, p *grants.Pool, base v1alpha1.Pool, came bool) error {
	if came {
		if err := a.arrived(ctx, p, base); err != nil {
			return err
		}
	}
	return a.takeOver(ctx, p)
}

// lackOf says what is missing as a proof that all is here which came along with a pool; empty: nothing.
func (a *Allocator) lackOf(ctx context.Context, from client.Reader, pool v1alpha1.Pool, came bool) string {
	const open = "; if all is here, remove the annotation " + v1alpha1.ManagementClusterAnnotation + " from the pool to open it"
	clusters := &clusterv1.ClusterList{}
	if err := from.List(ctx, clusters, client.InNamespace(pool.GetNamespace())); err != nil {
		return fmt.Sprintf("the pool was moved or restored, and the Clusters of its namespace, which would show that all has arrived, cannot be read: %v", err)
	}
	named := namedClusters(pool)
	here := len(named) == 0 && !came
	slices.SortFunc(clusters.Items, func(a, b clusterv1.Cluster) int { return cmp.Compare(a.Name, b.Name) })
	for i := range clusters.Items {
		c := &clusters.Items[i]
		if annotations.IsPaused(c, c) {
			return fmt.Sprintf("the pool was moved or restored, and what has its addresses may still arrive while Cluster %s is paused; end the move, which unpauses it, or unpause it when the restore is over", c.Name) + open
		}
		here = here || slices.Contains(named, c.Name)
	}
	switch {
	case here:
		return ""
	case len(named) == 0:
		return "the pool came from another management cluster, and names no Cluster that would show that all has arrived" + open
	}
	return fmt.Sprintf("the pool was moved or restored, and no Cluster that was with it (%s) is here: what has its addresses may still arrive; resume the move or the restore", strings.Join(named, ", ")) + open
}

// arrived notes that this management cluster serves a pool that came from another one.
func (a *Allocator) arrived(ctx context.Context, p *grants.Pool, base v1alpha1.Pool) error {
	next := base.DeepCopyObject().(v1alpha1.Pool)
	marks := next.GetAnnotations()
	marks[v1alpha1.ManagementClusterAnnotation] = a.ManagementCluster
	delete(marks, incluster.MovedFromAnnotation) // it speaks of another cluster
	next.SetAnnotations(marks)
	ctx, cancel := timed(ctx)
	defer cancel()
	err := a.Client.Patch(ctx, next, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return errGone // the watch brings the newer pool
	case err != nil:
		return fmt.Errorf("noting on %s that it has arrived: %w", p.Key, err)
	}
	log.FromContext(ctx).Info("All has arrived that came along with the pool", "pool", p.Key.String())
	m := p.Lock()
	defer m.Unlock()
	m.SetBase(next)
	return nil
}

// newClusters are the Clusters of its namespace that a pool is to name, where it names others; empty: it does not. Where
// there are none it names those that it has named: in the middle of a move they are gone.
func (a *Allocator) newClusters(ctx context.Context, pool v1alpha1.Pool) string {
	if pool.GetNamespace() == "" || a.ManagementCluster == "" {
		return ""
	}
	named := namedClusters(pool)
	kept := slices.DeleteFunc(slices.Clone(named), func(name string) bool {
		return apierrors.IsNotFound(a.Client.Get(ctx, client.ObjectKey{Namespace: pool.GetNamespace(), Name: name}, &clusterv1.Cluster{}))
	})
	if len(kept) >= maxNamedClusters {
		return ""
	}
	clusters := &clusterv1.ClusterList{}
	if err := a.Client.List(ctx, clusters, client.InNamespace(pool.GetNamespace())); err != nil || len(clusters.Items) == 0 {
		return ""
	}
	slices.SortFunc(clusters.Items, func(a, b clusterv1.Cluster) int { return cmp.Compare(a.Name, b.Name) })
	for i := range clusters.Items {
		if name := clusters.Items[i].Name; len(kept) < maxNamedClusters && !slices.Contains(kept, name) {
			kept = append(kept, name)
		}
	}
	if slices.Equal(kept, named) {
		return ""
	}
	return strings.Join(kept, ",")
}

func namedClusters(pool v1alpha1.Pool) []string {
	return strings.FieldsFunc(pool.GetAnnotations()[v1alpha1.ClustersAnnotation], func(r rune) bool { return r == ',' || r == ' ' })
}
