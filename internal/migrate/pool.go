package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// openTargetPool hands our pool over to its manager. It clears the status first: a grant that was planned on the
// earlier state cannot be committed any more, and the manager that serves the pool lists the existing objects and
// grants nothing new for a while (R10).
func (im *Import) openTargetPool(ctx context.Context, target pools.Key) error {
	var pool v1alpha1.Pool
	err := retry.RetryOnConflict(conflictBackoff, func() (err error) {
		if pool, err = target.GetPool(ctx, im.Client); err != nil || !annotations.HasPaused(pool) {
			return err
		}
		*pool.PoolStatus() = v1alpha1.NetworkPoolStatus{}
		return im.Client.Status().Update(ctx, pool)
	})
	if err != nil {
		return fmt.Errorf("handing %s over (try again): %w", target, err)
	}
	if !annotations.HasPaused(pool) {
		return nil
	}
	return im.setPaused(ctx, pool, false)
}

// closeTargetPool pauses our pool. As that changes its resourceVersion, a grant that was planned before cannot be
// committed any more; grants in flight must be finished first.
func (im *Import) closeTargetPool(ctx context.Context, pool v1alpha1.Pool) error {
	if pool.GetAnnotations()[ImportAnnotation] != im.Source.String() {
		return fmt.Errorf("%s was not made by this import", pools.KeyForPool(pool))
	}
	if !annotations.HasPaused(pool) {
		if err := im.setPaused(ctx, pool, true); err != nil {
			return err
		}
	}
	if s := pool.PoolStatus(); s.Allocator != nil && len(s.Allocator.InFlight) > 0 {
		return fmt.Errorf("%s is paused now, and has %d grants that are being written: try again", pools.KeyForPool(pool), len(s.Allocator.InFlight))
	}
	return nil
}

// deleteTargetPool deletes our pool, which no object names any more. It does not wait for the manager to remove its
// finalizer: there may be no manager, and a running one can add it again only before the deletion. It refuses to delete
// a pool that was unpaused meanwhile, which may have granted an address that this run does not know.
func (im *Import) deleteTargetPool(ctx context.Context, target pools.Key, pool v1alpha1.Pool) error {
	uid := pool.GetUID()
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		pool, err := target.GetPool(ctx, im.Client)
		if err != nil || pool.GetUID() != uid || pool.GetDeletionTimestamp() != nil {
			return client.IgnoreNotFound(err)
		}
		if s := pool.PoolStatus(); !annotations.HasPaused(pool) || s.Allocator != nil && len(s.Allocator.InFlight) > 0 {
			return errors.New("it was unpaused meanwhile")
		}
		return client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, im.Client, pool))
	})
	if err != nil {
		return fmt.Errorf("deleting %s (run the same command again): %w", target, err)
	}
	err = retry.RetryOnConflict(conflictBackoff, func() error {
		pool, err := target.GetPool(ctx, im.Client)
		if err != nil || pool.GetUID() != uid || len(pool.GetFinalizers()) == 0 {
			return client.IgnoreNotFound(err)
		}
		pool.SetFinalizers(nil)
		return client.IgnoreNotFound(im.Client.Update(ctx, pool))
	})
	if err != nil {
		return fmt.Errorf("deleting %s (try again): %w", target, err)
	}
	im.Reportf("%s deleted", target)
	return nil
}

// setPaused pauses or unpauses our pool, whatever its manager writes meanwhile. It updates pool to the result.
func (im *Import) setPaused(ctx context.Context, pool v1alpha1.Pool, paused bool) error {
	mark, verb := any(nil), "unpaused"
	if paused {
		mark, verb = "", "paused"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pool.GetUID(), "annotations": map[string]any{clusterv1.PausedAnnotation: mark},
	}})
	if err != nil {
		return err
	}
	if err := im.Client.Patch(ctx, pool, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("pausing or unpausing %s (try again): %w", pools.KeyForPool(pool), err)
	}
	im.Reportf("%s %s", pools.KeyForPool(pool), verb)
	return nil
}

// requireNoLateAddresses returns an error if an address of a side was given meanwhile. Claims that were created
// meanwhile have none and wait.
func (im *Import) requireNoLateAddresses(late poolUsers, s poolSide) error {
	for i := range late.addresses {
		return fmt.Errorf("IPAddress %s of %s %s was created while the import ran; find out what created it, delete it with its claim, and run the same command again",
			client.ObjectKeyFromObject(&late.addresses[i]), s.poolRef.Kind, s.poolRef.Name)
	}
	for i := range late.claims {
		if late.claims[i].DeletionTimestamp == nil {
			im.Reportf("claim %s came meanwhile, and waits for %s %s", client.ObjectKeyFromObject(&late.claims[i]), s.poolRef.Kind, s.poolRef.Name)
		}
	}
	return nil
}

// requireOnlyImported returns an error if a claimant names our pool that was not imported: it has no pool to go back
// to.
func (im *Import) requireOnlyImported(ctx context.Context, j *journal, target pools.Key, side poolSide) error {
	known := map[client.ObjectKey]bool{}
	for _, e := range j.Entries {
		known[e.key()] = true
	}
	u, err := readUsersForPool(ctx, im.Client, im.Source.Namespace, side.poolRef)
	if err != nil {
		return err
	}
	for i := range u.claims {
		if key := client.ObjectKeyFromObject(&u.claims[i]); !known[key] {
			return fmt.Errorf("claim %s came after the import and cannot be rolled back with it: delete it first", key)
		}
	}
	blocks := &v1alpha1.IPAllocationList{}
	if err := im.Client.List(ctx, blocks, client.InNamespace(im.Source.Namespace)); err != nil {
		return fmt.Errorf("listing the IPAllocations: %w", err)
	}
	for i := range blocks.Items {
		if a := &blocks.Items[i]; pools.KeyFromAllocation(a) == target {
			return fmt.Errorf("IPAllocation %s came after the import and has no place to go back to: delete it first", client.ObjectKeyFromObject(a))
		}
	}
	leases := &v1alpha1.IPLeaseList{}
	if err := im.Client.List(ctx, leases, client.InNamespace(im.Source.Namespace)); err != nil {
		return fmt.Errorf("listing the IPLeases: %w", err)
	}
	for i := range leases.Items {
		if l := &leases.Items[i]; pools.KeyFromPoolReference(l.Namespace, l.Spec.PoolRef) == target {
			return fmt.Errorf("IPLease %s came after the import and has no place to go back to: delete it first", client.ObjectKeyFromObject(l))
		}
	}
	return nil
}

// recordReleased records the entries that have been released since the import: they are not restored.
func (im *Import) recordReleased(ctx context.Context, j *journal) error {
	for _, e := range j.Entries {
		err := im.Client.Get(ctx, e.key(), &ipamv1.IPAddressClaim{})
		if apierrors.IsNotFound(err) {
			j.Released = append(j.Released, e.key().String())
		} else if err != nil {
			return fmt.Errorf("reading claim %s: %w", e.key(), err)
		}
	}
	return nil // written with the next phase
}
