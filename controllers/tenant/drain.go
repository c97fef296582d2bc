package tenant

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// minDrainTime is how long a block drains at least: another manager may show what it had read of the block before for
// maxProjectionTime, and its request may be in flight for as long as a client of a Cluster waits (clustercache's
// default).
const minDrainTime = maxProjectionTime + 10*time.Second

// drainBlocks continues with the blocks that drain: idle ones, and those that a user deleted. A block is released when
// its Cluster no longer uses it, checked twice, or when an operator confirms it. If live is nil, it is unknown whether
// the Cluster still uses the block.
func (sc *scope) drainBlocks(ctx context.Context, live client.Client, s tenancy.LoadBalancerSettings, all allocations) (_ allocations, next requeueDelay, err error) {
	var reads client.Reader
	if live != nil {
		reads = balancer.NewMemoizedReader(live)
	}
	for _, a := range all {
		if !tenancy.IsDrainingOrDeleting(a) || tenancy.ProjectedTo(a) != sc.loadBalancer.Active {
			continue
		}
		_, granted := demand.GrantedRange(a)
		if _, forced := a.Annotations[v1alpha1.ReleaseUnconfirmedAnnotation]; forced || !granted {
			if err := sc.deleteBlock(ctx, a); err != nil {
				return all, next, err
			}
			continue
		}
		became, err := sc.confirmRelease(ctx, reads, s.PoolPerAllocation, a)
		if err != nil {
			return all, next, err
		}
		next = next.minWait(became.requeueAfter)
		if became.message == "" {
			continue
		}
		if all, err = sc.patchConditions(ctx, all, a, setDrainingCondition(metav1.ConditionTrue, became.reason, became.message)); err != nil {
			return all, next, err
		}
	}
	return all, next, nil
}

// drainProgress is what a block that drains waits for, and when to check again. If message is empty, no condition is
// set.
type drainProgress struct {
	reason, message string
	requeueAfter    requeueDelay
}

// confirmRelease deletes a block if its Cluster has released it, and otherwise returns what the block waits for. A
// block with a pool of its own has served its last Service before that pool is removed.
func (sc *scope) confirmRelease(ctx context.Context, live client.Reader, hasOwnPool bool, a *v1alpha1.IPAllocation) (drainProgress, error) {
	leaving := sc.now.Sub(sc.tracker.drainingSince(a.UID, sc.now))
	if live == nil {
		return sc.unknownUseProgress(sc.refusalError), nil
	}
	emptying := hasOwnPool && !sc.tracker.isEmptied(a.UID)
	why, err := sc.describeBlockUse(ctx, live, a, emptying)
	switch {
	case err != nil:
		sc.tracker.resetReleased(a.UID)
		if !workloads.IsAccessError(err) {
			err = nil
		}
		return sc.unknownUseProgress(err), nil // it is checked again
	case why != "":
		sc.tracker.resetReleased(a.UID)
		return drainProgress{v1alpha1.ConfirmingReason, why, recheckDelay(leaving)}, nil
	}
	if wait := sc.tracker.confirmReleased(a.UID, sc.now, sc.Clock.Now()); wait > 0 {
		return drainProgress{v1alpha1.ConfirmingReason, "the Cluster no longer uses the block; the manager checks once more before it gives the block back", newRequeueDelay(wait)}, nil
	}
	if emptying {
		sc.tracker.resetReleased(a.UID)
		sc.tracker.markEmptied(a.UID)
		return drainProgress{requeueAfter: requeueAtOnce}, nil
	}
	if leaving < minDrainTime {
		return drainProgress{v1alpha1.ConfirmingReason, "the Cluster no longer uses the block; waiting for in-flight requests of a previous manager to expire", newRequeueDelay(minDrainTime - leaving)}, nil
	}
	return drainProgress{}, sc.deleteBlock(ctx, a)
}

// maxRecheckDelay is the longest time between two checks whether a Cluster has released a block that it has used for
// long.
const maxRecheckDelay = 10 * time.Second

// recheckDelay returns after how long to check again a block that the Cluster was found to use for the time so: a
// second at first, and more the longer that lasts. What the watches show enqueues the Cluster earlier.
func recheckDelay(so time.Duration) requeueDelay {
	return newRequeueDelay(min(max(so/10, time.Second), maxRecheckDelay))
}

// describeBlockUse returns how a Cluster still uses a block, or the pool of its own that is being emptied; empty if it
// does not.
func (sc *scope) describeBlockUse(ctx context.Context, live client.Reader, a *v1alpha1.IPAllocation, emptying bool) (string, error) {
	r, _ := demand.GrantedRange(a)
	if emptying {
		return sc.activeBalancer().CheckPoolEmpty(ctx, live, a.Name, r)
	}
	return sc.activeBalancer().CheckReleased(ctx, live, r)
}

// unknownUseProgress returns what a block waits for if it is unknown whether it is in use: its Cluster refuses access,
// or does not answer.
func (sc *scope) unknownUseProgress(refused error) drainProgress {
	out := drainProgress{v1alpha1.TenantUnreachableReason, unreachableMessage, newRequeueDelay(guard.WaitingResyncPeriod)}
	if refused != nil {
		out.reason = v1alpha1.TenantRefusedReason
		out.message = workloads.NewAccessError(sc.clusterKey, refused, "the manager cannot determine whether the block is still in use", sc.activeBalancer().RoleFile()).Error() + "; " + unconfirmedHint
	}
	return out
}

const unreachableMessage = "the API server of the Cluster does not answer, so the manager cannot determine whether the block is still in use; " +
	"if the Cluster is gone for good, delete its Cluster object; " + unconfirmedHint

// unconfirmedHint is the way out that needs nothing of the Cluster.
const unconfirmedHint = "if the block is no longer in use, annotate this IPAllocation with " + v1alpha1.ReleaseUnconfirmedAnnotation

// deleteBlock deletes a block, as it was when that was decided, and removes our finalizer.
func (sc *scope) deleteBlock(ctx context.Context, a *v1alpha1.IPAllocation) error {
	if a.DeletionTimestamp.IsZero() {
		err := exact.DeleteWithPreconditions(ctx, sc.Client, a)
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		current := &v1alpha1.IPAllocation{}
		if err := sc.Live.Get(ctx, client.ObjectKeyFromObject(a), current); err != nil || current.UID != a.UID {
			return client.IgnoreNotFound(err)
		}
		a = current
		metrics.TenantShrinks.WithLabelValues(sc.clusterKey.Namespace, sc.clusterKey.Name).Inc()
		sc.Recorder.Eventf(sc.cluster, nil, corev1.EventTypeNormal, "LoadBalancerPoolShrunk", "Release",
			"%s is released: no Service has used it for %s", a.Status.CIDR, sc.GracePeriod)
	}
	return sc.removeFinalizer(ctx, a)
}
