package tenant

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// markBlocks writes which blocks have become idle or busy, and which begin to drain.
func (sc *scope) markBlocks(ctx context.Context, live client.Client, d demand.Decision, all allocations) (_ allocations, next requeueDelay, err error) {
	if !d.Settings.Elastic {
		return all, 0, nil
	}
	for _, m := range d.UsageChanges {
		if all, err = sc.patchConditions(ctx, all, all.findByName(m.Block), sc.setInUseCondition(m)); err != nil {
			return all, next, err
		}
	}
	for _, name := range d.BlocksToResume {
		a := all.findByName(name)
		sc.tracker.forgetBlock(a.UID)
		if all, err = sc.patchConditions(ctx, all, a, setDrainingCondition(metav1.ConditionFalse, v1alpha1.InUseAgainReason, "a Service needs the block again")); err != nil {
			return all, next, err
		}
	}
	for _, a := range all {
		if !slices.Contains(d.BlocksToDrain, a.Name) {
			sc.tracker.markUnused(a.UID)
		}
	}
	reads := balancer.NewMemoizedReader(live)
	for _, name := range d.BlocksToDrain {
		a := all.findByName(name)
		r, _ := demand.GrantedRange(a)
		user, err := balancer.FindRangeUser(ctx, reads, r) // the cache may be behind
		if err != nil {
			return all, next, err
		}
		if user != "" {
			next = next.minWait(recheckDelay(sc.now.Sub(sc.tracker.usedSince(a.UID, sc.now))))
			continue
		}
		sc.tracker.markUnused(a.UID)
		if all, err = sc.patchConditions(ctx, all, a, setDrainingCondition(metav1.ConditionTrue, v1alpha1.ConfirmingReason, "the block is being taken out of the "+sc.activeBalancer().Name()+" of the Cluster")); err != nil {
			return all, next, err
		}
	}
	return all, next, nil
}

// setInUseCondition returns a change that sets whether a block is in use.
func (sc *scope) setInUseCondition(m elastic.UsageChange) func(*[]metav1.Condition) {
	condition := metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.InUseReason, Message: "a Service has, or is about to get, one of its addresses"}
	if !m.IdleSince.IsZero() {
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.IdleReason
		condition.Message = fmt.Sprintf("no Service has any of its addresses; the block is released when it has been unused for %s", sc.GracePeriod)
		condition.LastTransitionTime = metav1.NewTime(m.IdleSince)
	}
	return func(c *[]metav1.Condition) { meta.SetStatusCondition(c, condition) }
}
