package tenant

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// allocations are the load-balancer blocks of a Cluster, oldest first: as they were read, or as they were written
// since.
type allocations []*v1alpha1.IPAllocation

// findByName returns the block with a name, nil if there is none.
func (all allocations) findByName(name string) *v1alpha1.IPAllocation {
	for _, a := range all {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// partitionProjected returns the blocks that are or were shown to a load balancer, and the others.
func (all allocations) partitionProjected() (shown, others allocations) {
	for _, a := range all {
		if tenancy.IsProjected(a) {
			shown = append(shown, a)
		} else {
			others = append(others, a)
		}
	}
	return shown, others
}

// withReplaced returns the blocks with one of them replaced by its current version.
func (all allocations) withReplaced(updated *v1alpha1.IPAllocation) allocations {
	out := slices.Clone(all)
	for i, a := range out {
		if a.UID == updated.UID {
			out[i] = updated
		}
	}
	return out
}

// patchConditions changes the conditions of a block. A block that another writer reverts is returned unchanged, and
// patched later.
func (sc *scope) patchConditions(ctx context.Context, all allocations, a *v1alpha1.IPAllocation, change func(*[]metav1.Condition)) (allocations, error) {
	updated := a.DeepCopy()
	change(&updated.Status.Conditions)
	if slices.EqualFunc(a.Status.Conditions, updated.Status.Conditions, func(x, y metav1.Condition) bool { return x == y }) {
		return all, nil
	}
	delayed, err := pace.SplitDelayed(sc.Client.Status().Patch(ctx, updated, guard.NewOptimisticPatch(a)))
	switch {
	case delayed > 0: // the other blocks of the Cluster do not wait for it
		sc.conditionDelay = sc.conditionDelay.minWait(newRequeueDelay(delayed))
		return all, nil
	case apierrors.IsNotFound(err):
		return all, nil
	case err != nil:
		return all, fmt.Errorf("writing the conditions of IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
	}
	sc.Blocks.ObserveBlock(updated)
	return all.withReplaced(updated), nil
}

// requeueDelay is after how long a Cluster must be reconciled again if nothing happens; 0 sets no limit.
type requeueDelay time.Duration

// requeueAtOnce is the shortest delay.
const requeueAtOnce = requeueDelay(time.Millisecond)

// newRequeueDelay returns the delay for a time that may be 0 or less.
func newRequeueDelay(d time.Duration) requeueDelay { return max(requeueDelay(d), requeueAtOnce) }

// requeueDelayUntil returns the delay until a moment; the zero time sets no limit.
func (sc *scope) requeueDelayUntil(at time.Time) requeueDelay {
	if at.IsZero() {
		return 0
	}
	return newRequeueDelay(at.Sub(sc.now))
}

// minWait returns the shorter of two delays.
func (w requeueDelay) minWait(other requeueDelay) requeueDelay {
	return requeueDelay(term.MinWait(time.Duration(w), time.Duration(other)))
}

// activeBalancer returns the load balancer to serve.
func (sc *scope) activeBalancer() balancer.Balancer { return balancers[sc.loadBalancer.Active] }

// setDrainingCondition returns a change that sets the condition Draining of a block. Some messages come from the
// workload cluster.
func setDrainingCondition(status metav1.ConditionStatus, reason, message string) func(*[]metav1.Condition) {
	return func(c *[]metav1.Condition) {
		meta.SetStatusCondition(c, metav1.Condition{Type: v1alpha1.DrainingCondition, Status: status, Reason: reason, Message: text.SanitizeMessage(message)})
	}
}
