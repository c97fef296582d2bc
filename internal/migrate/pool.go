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

// open hands our pool to its manager. First its status goes: no grant can be committed any more on what was known
// before, and whoever serves the pool lists what exists, and grants nothing new for a while (R10).
func (m *Move) open(ctx context.Context, target pools.Key) error {
	var pool v1alpha1.Pool
	err := retry.RetryOnConflict(patience, func() (err error) {
		if pool, err = target.Get(ctx, m.Client); err != nil || !annotations.HasPaused(pool) {
			return err
		}
		*pool.PoolStatus() = v1alpha1.NetworkPoolStatus{}
		return m.Client.Status().Update(ctx, pool)
	})
	if err != nil {
		return fmt.Errorf("handing %s over (try again): %w", target, err)
	}
	if !annotations.HasPaused(pool) {
		return nil
	}
	return m.setPaused(ctx, pool, false)
}

// close takes our pool away from its manager. With its resourceVersion changed no grant can be committed that was
// planned before; one that is on its way must have landed.
func (m *Move) close(ctx context.Context, pool v1alpha1.Pool) error {
	if pool.GetAnnotations()[ImportAnnotation] != m.Source.String() {
		return fmt.Errorf("%s was not made by this import", pools.KeyOf(pool))
	}
	if !annotations.HasPaused(pool) {
		if err := m.setPaused(ctx, pool, true); err != nil {
			return err
		}
	}
	if s := pool.PoolStatus(); s.Allocator != nil && len(s.Allocator.InFlight) > 0 {
		return fmt.Errorf("%s is paused now, and has %d grants that are being written: try again", pools.KeyOf(pool), len(s.Allocator.InFlight))
	}
	return nil
}

// removePool deletes our pool, which nothing names any more. The finalizer of its manager is not waited for: there
// may be no manager, and one that runs can put it on again only before the deletion. A pool that was unpaused meanwhile may
// have granted something: what this run knows of it is old.
func (m *Move) removePool(ctx context.Context, target pools.Key, pool v1alpha1.Pool) error {
	uid := pool.GetUID()
	err := retry.RetryOnConflict(patience, func() error {
		pool, err := target.Get(ctx, m.Client)
		if err != nil || pool.GetUID() != uid || pool.GetDeletionTimestamp() != nil {
			return client.IgnoreNotFound(err)
		}
		if s := pool.PoolStatus(); !annotations.HasPaused(pool) || s.Allocator != nil && len(s.Allocator.InFlight) > 0 {
			return errors.New("it was unpaused meanwhile")
		}
		return client.IgnoreNotFound(exact.Delete(ctx, m.Client, pool))
	})
	if err != nil {
		return fmt.Errorf("deleting %s (run the same command again): %w", target, err)
	}
	err = retry.RetryOnConflict(patience, func() error {
		pool, err := target.Get(ctx, m.Client)
		if err != nil || pool.GetUID() != uid || len(pool.GetFinalizers()) == 0 {
			return client.IgnoreNotFound(err)
		}
		pool.SetFinalizers(nil)
		return client.IgnoreNotFound(m.Client.Update(ctx, pool))
	})
	if err != nil {
		return fmt.Errorf("deleting %s (try again): %w", target, err)
	}
	m.Say("%s deleted", target)
	return nil
}

// setPaused pauses or opens our pool, whatever its manager writes meanwhile: the answer is the pool as it is then.
func (m *Move) setPaused(ctx context.Context, pool v1alpha1.Pool, paused bool) error {
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
	if err := m.Client.Patch(ctx, pool, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("pausing or unpausing %s (try again): %w", pools.KeyOf(pool), err)
	}
	m.Say("%s %s", pools.KeyOf(pool), verb)
	return nil
}

// noneLate wants that nobody was given anything of a side meanwhile. Claims that came have nothing, and wait.
func (m *Move) noneLate(late users, s side) error {
	for i := range late.addresses {
		return fmt.Errorf("IPAddress %s of %s %s was created while the import ran; find out what created it, delete it with its claim, and run the same command again",
			client.ObjectKeyFromObject(&late.addresses[i]), s.ref.Kind, s.ref.Name)
	}
	for i := range late.claims {
		if late.claims[i].DeletionTimestamp == nil {
			m.Say("claim %s came meanwhile, and waits for %s %s", client.ObjectKeyFromObject(&late.claims[i]), s.ref.Kind, s.ref.Name)
		}
	}
	return nil
}

// knowAll wants that all that names our pool came with the import: what came later has no place to go back to.
func (m *Move) knowAll(ctx context.Context, j *journal, target pools.Key, ours side) error {
	known := map[client.ObjectKey]bool{}
	for _, e := range j.Entries {
		known[e.key()] = true
	}
	u, err := usersOf(ctx, m.Client, m.Source.Namespace, ours.ref)
	if err != nil {
		return err
	}
	for i := range u.claims {
		if key := client.ObjectKeyFromObject(&u.claims[i]); !known[key] {
			return fmt.Errorf("claim %s came after the import and cannot be rolled back with it: delete it first", key)
		}
	}
	blocks := &v1alpha1.IPAllocationList{}
	if err := m.Client.List(ctx, blocks, client.InNamespace(m.Source.Namespace)); err != nil {
		return fmt.Errorf("listing the IPAllocations: %w", err)
	}
	for i := range blocks.Items {
		if a := &blocks.Items[i]; pools.KeyOfAllocation(a) == target {
			return fmt.Errorf("IPAllocation %s came after the import and has no place to go back to: delete it first", client.ObjectKeyFromObject(a))
		}
	}
	leases := &v1alpha1.IPLeaseList{}
	if err := m.Client.List(ctx, leases, client.InNamespace(m.Source.Namespace)); err != nil {
		return fmt.Errorf("listing the IPLeases: %w", err)
	}
	for i := range leases.Items {
		if l := &leases.Items[i]; pools.KeyOfPool(l.Namespace, l.Spec.PoolRef) == target {
			return fmt.Errorf("IPLease %s came after the import and has no place to go back to: delete it first", client.ObjectKeyFromObject(l))
		}
	}
	return nil
}

// noteGone notes the entries that have been released since they were imported: they are not brought back.
func (m *Move) noteGone(ctx context.Context, j *journal) error {
	for _, e := range j.Entries {
		err := m.Client.Get(ctx, e.key(), &ipamv1.IPAddressClaim{})
		if apierrors.IsNotFound(err) {
			j.Released = append(j.Released, e.key().String())
		} else if err != nil {
			return fmt.Errorf("reading claim %s: %w", e.key(), err)
		}
	}
	return nil // written with the next phase
}
