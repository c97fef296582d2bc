package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// poolMetadata writes the metadata of pools: our finalizer, the mark of the management cluster, and the names of
// Clusters. The finalizer of a pool stays until a list shows that no object has an address of the pool.
type poolMetadata struct {
	*Options
	lister *sharedPoolLister
}

// reconcilePoolMetadata keeps our finalizer on a pool while it lives, the mark of the management cluster, and the names
// of Clusters. It removes the finalizer from a deleted pool when no object has an address of it any more. gone reports
// whether the pool is gone, or has changed, so that the reconcile ends.
func (pm *poolMetadata) reconcilePoolMetadata(ctx context.Context, p *grants.Pool) (gone bool, err error) {
	m := p.Lock()
	base := m.Base.Pool
	m.Unlock()
	if base.GetDeletionTimestamp() != nil {
		return pm.finalizePool(ctx, p, base)
	}
	return pm.protectPool(ctx, p, base)
}

// finalizePool removes the finalizer from a deleted pool that no object has an address of. A pool that clusterctl moves
// away goes as it is.
func (pm *poolMetadata) finalizePool(ctx context.Context, p *grants.Pool, base v1alpha1.Pool) (gone bool, err error) {
	if !controllerutil.ContainsFinalizer(base, v1alpha1.PoolFinalizer) {
		return false, nil
	}
	if !ending.IsMoved(base) {
		if used, err := pm.isPoolUsed(ctx, p, base); used || err != nil {
			return false, err
		}
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	controllerutil.RemoveFinalizer(next, v1alpha1.PoolFinalizer)
	if patched, err := pm.patchPool(ctx, base, next); !patched {
		return err == nil, err
	}
	m := p.Lock()
	defer m.Unlock()
	m.SetBasePool(next)
	return true, nil
}

// patchPool writes the metadata of a pool, if the pool is unchanged. It reports false without an error if the pool is
// gone or has changed: the watch brings the newer one.
func (pm *poolMetadata) patchPool(ctx context.Context, base, next v1alpha1.Pool) (patched bool, err error) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	err = pm.Client.Patch(ctx, next, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// isPoolUsed reports whether an object has an address of the pool, or a block of it is open. The watch may lag behind an
// object that another manager wrote: a list decides.
func (pm *poolMetadata) isPoolUsed(ctx context.Context, p *grants.Pool, base v1alpha1.Pool) (bool, error) {
	m := p.Lock()
	used := m.Space.Ledger.Counts().Owners > 0 || len(m.Grants.ByClaimant) > 0 || m.Carved.HasBlocks()
	m.Unlock()
	if used {
		return true, nil
	}
	found, err := pm.lister.listPool(ctx, p.Key)
	if err != nil {
		return false, err
	}
	for _, c := range found.Claimants {
		used = used || c.HasRecord() || c.PublishedRange.IsValid()
	}
	for _, b := range found.Blocks {
		// A block in another namespace that is not open, or that was carved for another pool of the name, ends without
		// this pool.
		used = used || (b.HasFinalizer && !b.InOtherNamespace && base.PoolSpec().Carve != nil)
	}
	return used || len(found.Addresses) > 0, nil
}

// protectPool adds the finalizer, the mark of the management cluster, and the names of Clusters that a pool lacks.
func (pm *poolMetadata) protectPool(ctx context.Context, p *grants.Pool, base v1alpha1.Pool) (gone bool, err error) {
	now := pm.now()
	m := p.Lock()
	mark, mayName, isPostponed := m.Quarantine.NeedsManagementClusterMark(base), !m.Quarantine.IsArriving(), now.Before(m.Term.AddFinalizerAfter)
	m.Unlock()
	names := ""
	if mayName {
		names = pm.nextClustersAnnotation(ctx, base)
	}
	if isPostponed || (controllerutil.ContainsFinalizer(base, v1alpha1.PoolFinalizer) && !mark && names == "") {
		return false, nil
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	controllerutil.AddFinalizer(next, v1alpha1.PoolFinalizer)
	if names != "" {
		annotations.AddAnnotations(next, map[string]string{v1alpha1.ClustersAnnotation: names})
	}
	if mark {
		m = p.Lock()
		m.Quarantine.MarkManagementCluster(next)
		m.Unlock()
	}
	if patched, err := pm.patchPool(ctx, base, next); !patched {
		return err == nil, err
	}
	m = p.Lock()
	defer m.Unlock()
	m.SetBasePool(next)
	if !controllerutil.ContainsFinalizer(next, v1alpha1.PoolFinalizer) {
		m.Term.PostponeFinalizer(now.Add(term.MaxRetryPause))
		reverted := &grants.WriteRevertedError{ObjectName: p.Key.String()}
		pm.Recorder.Eventf(next, nil, corev1.EventTypeWarning, "WriteUndone", "Allocate", "%s", reverted.Error())
	}
	if mark {
		m.Quarantine.RecordOpened()
	}
	return false, nil
}

// maxNamedClusters is how many Clusters of its namespace a pool names. One would do: clusterctl moves all of them, and
// unpauses none before everything is there. With a few, the deletion of one costs no write.
const maxNamedClusters = 4

// nextClustersAnnotation returns the Clusters of its namespace that a pool should name, comma-separated, if it names
// others; empty means no change. Where there are no Clusters the pool keeps the names that it has: in the middle of a
// move the Clusters are gone.
func (pm *poolMetadata) nextClustersAnnotation(ctx context.Context, pool v1alpha1.Pool) string {
	if pool.GetNamespace() == "" || pm.ManagementCluster == "" {
		return ""
	}
	named := clustersFromAnnotation(pool)
	kept := slices.DeleteFunc(slices.Clone(named), func(name string) bool {
		return apierrors.IsNotFound(pm.Client.Get(ctx, client.ObjectKey{Namespace: pool.GetNamespace(), Name: name}, &clusterv1.Cluster{}))
	})
	if len(kept) >= maxNamedClusters {
		return ""
	}
	clusters := &clusterv1.ClusterList{}
	if err := pm.Client.List(ctx, clusters, client.InNamespace(pool.GetNamespace())); err != nil || len(clusters.Items) == 0 {
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

func clustersFromAnnotation(pool v1alpha1.Pool) []string {
	return strings.FieldsFunc(pool.GetAnnotations()[v1alpha1.ClustersAnnotation], func(r rune) bool { return r == ',' || r == ' ' })
}

// recordArrival records that this management cluster serves a pool that came from another one.
func (pm *poolMetadata) recordArrival(ctx context.Context, p *grants.Pool, base v1alpha1.Pool) error {
	next := base.DeepCopyObject().(v1alpha1.Pool)
	marks := next.GetAnnotations()
	marks[v1alpha1.ManagementClusterAnnotation] = pm.ManagementCluster
	delete(marks, incluster.MovedFromAnnotation) // it is about another cluster
	next.SetAnnotations(marks)
	switch patched, err := pm.patchPool(ctx, base, next); {
	case err != nil:
		return fmt.Errorf("recording on %s that it has arrived: %w", p.Key, err)
	case !patched:
		return errPoolGone // the watch brings the newer pool
	}
	log.FromContext(ctx).Info("Everything that came along with the pool has arrived", "pool", p.Key.String())
	m := p.Lock()
	defer m.Unlock()
	m.SetBasePool(next)
	return nil
}

// removeMirrorFinalizer removes our finalizer from a deleted mirror that no manager serves, unless a claimant has
// something under the mirror's own name, or a grant of the mirror is not finished and its claim lives. Addresses that
// the in-cluster provider has granted are no reason to keep the mirror: that provider's own finalizer keeps its pool.
func (pm *poolMetadata) removeMirrorFinalizer(ctx context.Context, key pools.Key, seen v1alpha1.Pool) error {
	if !controllerutil.ContainsFinalizer(seen, v1alpha1.PoolFinalizer) {
		return nil
	}
	found, err := pm.lister.listPool(ctx, key)
	if err != nil {
		return err
	}
	waits := sets.New[types.UID]() // for the IPAddress that it was granted, if any
	for _, c := range found.Claimants {
		if !c.Deleting {
			waits.Insert(c.Owner.UID)
		}
		if !c.UsesMirroredPool && (c.HasRecord() || c.PublishedRange.IsValid()) {
			return nil
		}
	}
	for _, a := range found.Addresses {
		waits.Delete(a.ClaimantUID)
		if !a.UsesMirroredPool {
			return nil
		}
	}
	if slices.ContainsFunc(grants.InFlightFromStatus(seen.PoolStatus()), func(g v1alpha1.Grant) bool { return waits.Has(types.UID(g.UID)) }) {
		return nil
	}
	next := seen.DeepCopyObject().(v1alpha1.Pool)
	controllerutil.RemoveFinalizer(next, v1alpha1.PoolFinalizer)
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	err = pm.Client.Patch(ctx, next, client.MergeFromWithOptions(seen, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil // the watch brings the newer one
	}
	return client.IgnoreNotFound(err)
}
