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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// mark writes which blocks have become idle or busy, and which are to be given up.
func (l *look) mark(ctx context.Context, live client.Client, d demand.Decision, all allocations) (_ allocations, next wait, err error) {
	if !d.Settings.Elastic {
		return all, 0, nil
	}
	for _, m := range d.Marks {
		if all, err = l.patchStatus(ctx, all, all.named(m.Block), l.inUse(m)); err != nil {
			return all, next, err
		}
	}
	for _, name := range d.Resume {
		a := all.named(name)
		l.notes.forgetBlock(a.UID)
		if all, err = l.patchStatus(ctx, all, a, draining(metav1.ConditionFalse, v1alpha1.InUseAgainReason, "a Service needs the block again")); err != nil {
			return all, next, err
		}
	}
	for _, a := range all {
		if !slices.Contains(d.Drain, a.Name) {
			l.notes.unused(a.UID)
		}
	}
	reads := balancer.Once(live)
	for _, name := range d.Drain {
		a := all.named(name)
		r, _ := demand.RangeOf(a)
		user, err := balancer.User(ctx, reads, r) // the cache may be behind
		if err != nil {
			return all, next, err
		}
		if user != "" {
			next = next.or(askAgain(l.now.Sub(l.notes.usedSince(a.UID, l.now))))
			continue
		}
		l.notes.unused(a.UID)
		if all, err = l.patchStatus(ctx, all, a, draining(metav1.ConditionTrue, v1alpha1.ConfirmingReason, "the block is being taken out of the "+l.balancer().Name()+" of the Cluster")); err != nil {
			return all, next, err
		}
	}
	return all, next, nil
}

// inUse says whether a block is in use.
func (l *look) inUse(m elastic.Mark) func(*[]metav1.Condition) {
	is := metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.InUseReason, Message: "a Service has, or is about to get, one of its addresses"}
	if !m.IdleSince.IsZero() {
		is.Status, is.Reason = metav1.ConditionFalse, v1alpha1.IdleReason
		is.Message = fmt.Sprintf("no Service has any of its addresses; the block is given back when it has been unused for %s", l.Grace)
		is.LastTransitionTime = metav1.NewTime(m.IdleSince)
	}
	return func(c *[]metav1.Condition) { meta.SetStatusCondition(c, is) }
}

// draining says what becomes of a block. Some messages are what the workload cluster says.
func draining(status metav1.ConditionStatus, reason, message string) func(*[]metav1.Condition) {
	return func(c *[]metav1.Condition) {
		meta.SetStatusCondition(c, metav1.Condition{Type: v1alpha1.DrainingCondition, Status: status, Reason: reason, Message: text.Message(message)})
	}
}
