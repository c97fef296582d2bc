package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// maxProjectionTime is for how long blocks may be shown as they were read. What is created in the Cluster carries
// nothing of what it was decided on, by which the Cluster's API server could refuse it: a manager that was paused would
// show a block that another manager has released meanwhile.
const maxProjectionTime = 5 * time.Second

var errStaleRead = errors.New("observed state is stale; retrying")

// timeLimitedClient is a client that creates nothing later than maxProjectionTime after readAt.
type timeLimitedClient struct {
	client.Client

	clock  clock.PassiveClock
	readAt time.Time
}

func (t timeLimitedClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if term.ElapsedTime(t.readAt, t.clock.Now()) > maxProjectionTime {
		return errStaleRead
	}
	return t.Client.Create(ctx, obj, opts...)
}

// projectBlocks makes the pools of the load balancer match the blocks. Before it changes anything, it reads the
// existing blocks live: the watch may be behind what another manager has granted the Cluster, or taken away and
// released.
func (sc *scope) projectBlocks(ctx context.Context, live client.Client, observed balancer.ObservedCluster, want []elastic.DesiredPool, all allocations) (allocations, requeueDelay, error) {
	all, err := sc.addFinalizers(ctx, all)
	if err != nil {
		return all, 0, client.IgnoreNotFound(err)
	}
	changes := observed.PlanChanges(want)
	since := sc.Clock.Now()
	if changes.HasPoolChanges() {
		changed, err := sc.refreshBlocks(ctx, slices.Concat(all, sc.deferredBlocks))
		if err != nil {
			return all, 0, err
		}
		if changed {
			return all, requeueAtOnce, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, maxProjectionTime)
	defer cancel()
	if err := changes.ApplyChanges(ctx, timeLimitedClient{live, sc.Clock, since}); err != nil {
		return all, 0, fmt.Errorf("showing Cluster %s its blocks: %w", sc.clusterKey, err)
	}
	return all, 0, nil
}

// addFinalizers adds our finalizer to the blocks that the Cluster is about to be shown, so that they cannot be deleted
// without us.
func (sc *scope) addFinalizers(ctx context.Context, all allocations) (allocations, error) {
	for _, a := range all {
		if _, granted := demand.GrantedRange(a); !granted || tenancy.IsProjected(a) || tenancy.IsDrainingOrDeleting(a) {
			continue
		}
		updated := a.DeepCopy()
		controllerutil.AddFinalizer(updated, tenancy.ProjectionFinalizer(sc.loadBalancer.Active))
		if err := sc.Client.Patch(ctx, updated, guard.NewOptimisticPatch(a)); err != nil {
			return all, err
		}
		sc.Blocks.ObserveBlock(updated)
		all = all.withReplaced(updated)
	}
	return all, nil
}

// refreshBlocks reads the Cluster's blocks live, and reports whether they differ from the known ones.
func (sc *scope) refreshBlocks(ctx context.Context, known allocations) (changed bool, err error) {
	all, err := lookup.ListBlocks(ctx, sc.Live, sc.clusterRef, "")
	if err != nil {
		return false, err
	}
	versions, exist := map[types.UID]string{}, map[types.UID]struct{}{}
	for _, a := range known {
		versions[a.UID] = a.ResourceVersion
	}
	for _, a := range all {
		exist[a.UID] = struct{}{}
		if a.Spec.Type == v1alpha1.LoadBalancerAllocation {
			changed = changed || versions[a.UID] != a.ResourceVersion
			sc.Blocks.ObserveBlock(a)
		}
	}
	for _, a := range known {
		if _, does := exist[a.UID]; does {
			continue
		}
		current := &v1alpha1.IPAllocation{} // it may only have lost its labels
		err := sc.Live.Get(ctx, client.ObjectKeyFromObject(a), current)
		if apierrors.IsNotFound(err) || (err == nil && current.UID != a.UID) {
			changed = true
			sc.Blocks.ForgetBlock(a)
		} else if err != nil {
			return false, fmt.Errorf("reading IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
		}
	}
	return changed, nil
}
