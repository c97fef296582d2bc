package tenant

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// growBlocks does the next steps of growth.
func (sc *scope) growBlocks(ctx context.Context, d demand.Decision, all allocations) (next requeueDelay, err error) {
	cluster := sc.cluster
	for _, s := range d.GrowthSteps {
		if cluster, err = sc.recordAttempts(ctx, cluster, s.Attempts); err != nil {
			return 0, err
		}
		switch s.Action {
		case tenancy.ActionCreate:
			creating, err := sc.createGrowthBlock(ctx, d.ProviderConfig, s.Decision, all)
			if err != nil {
				return 0, err
			}
			next = next.minWait(creating)
		case tenancy.ActionReplace:
			a := s.PendingAllocation
			err := exact.DeleteWithPreconditions(ctx, sc.Client, a)
			if err := client.IgnoreNotFound(err); err != nil {
				return 0, err
			}
		case tenancy.ActionDone, tenancy.ActionWait, tenancy.ActionExhausted:
		}
	}
	return next, nil
}

// createGrowthBlock creates the block under the first free name: a number is used again when no block has it.
func (sc *scope) createGrowthBlock(ctx context.Context, config *v1alpha1.ProviderConfig, d tenancy.Decision, all allocations) (requeueDelay, error) {
	for n := 1; ; n++ {
		name := tenancy.GrowthBlockName(sc.clusterRef, n)
		if all.findByName(name) != nil {
			continue
		}
		a := tenancy.NewAllocation(sc.clusterRef, config, name, v1alpha1.GrowthRole, d.Pool, d.Count)
		guard.AddWatchLabel(a, sc.WatchFilter)
		err := sc.Client.Create(ctx, a)
		if apierrors.IsAlreadyExists(err) {
			owned, err := sc.observeIfOwned(ctx, client.ObjectKeyFromObject(a))
			if err != nil || owned {
				return requeueAtOnce, err // our watch is behind
			}
			continue // the names of another Cluster result in the same name
		}
		if err != nil {
			return 0, fmt.Errorf("asking for %d addresses: %w", d.Count, err)
		}
		sc.Blocks.ObserveBlock(a)
		metrics.TenantGrowths.WithLabelValues(sc.clusterKey.Namespace, sc.clusterKey.Name).Inc()
		sc.Recorder.Eventf(sc.cluster, a, corev1.EventTypeNormal, "LoadBalancerPoolGrowing", "Allocate",
			"Services wait for addresses: asking %s %s for %d", d.Pool.Kind, d.Pool.Name, d.Count)
		return 0, nil
	}
}

// observeIfOwned reports whether an existing IPAllocation belongs to the Cluster, and adds it to the index then. It
// also returns true if the IPAllocation is gone meanwhile: the caller tries again.
func (sc *scope) observeIfOwned(ctx context.Context, key client.ObjectKey) (bool, error) {
	a := &v1alpha1.IPAllocation{}
	if err := sc.Live.Get(ctx, key, a); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	if tenancy.OwnsAllocation(sc.clusterRef, a) {
		sc.Blocks.ObserveBlock(a)
		return true, nil
	}
	return false, nil
}

// recordAttempts records on the Cluster which pools had no addresses for it, before the next pool is tried.
func (sc *scope) recordAttempts(ctx context.Context, cluster *clusterv1.Cluster, tried []tenancy.PoolAttempt) (*clusterv1.Cluster, error) {
	updated := cluster.DeepCopy()
	if !tenancy.SetAttemptsAnnotation(updated, v1alpha1.TriedGrowthPoolsAnnotation, tried) {
		return cluster, nil
	}
	return updated, sc.Client.Patch(ctx, updated, guard.NewOptimisticPatch(cluster))
}
