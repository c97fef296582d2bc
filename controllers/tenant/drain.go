package tenant

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// settleTime is how far apart two sightings are that a Cluster has let go of a block: what MetalLB was doing at
// the first is done at the second.
const settleTime = 2 * time.Second

// mark writes which blocks have become idle or busy, and which are to be given up.
func (t *tenant) mark(ctx context.Context, described []elastic.Block, plan elastic.Plan, s settings) error {
	if !s.elastic {
		return nil
	}
	marks := plan.Marks
	for _, b := range described {
		// A new one is in use until it is seen not to be.
		if a := t.block(b.Name); b.Grown && b.Range.IsValid() && !b.Deleting && meta.FindStatusCondition(a.Status.Conditions, v1alpha1.InUseCondition) == nil {
			marks = append([]elastic.Mark{{Block: b.Name}}, marks...)
		}
	}
	for _, m := range marks {
		is := metav1.Condition{Type: v1alpha1.InUseCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.InUseReason, Message: "a Service has, or is about to get, one of its addresses"}
		if !m.IdleSince.IsZero() {
			is.Status, is.Reason = metav1.ConditionFalse, v1alpha1.IdleReason
			is.Message = fmt.Sprintf("no Service has any of its addresses; it is given up when that has been so for %s", s.Grace)
			is.LastTransitionTime = metav1.NewTime(m.IdleSince)
		}
		if err := t.patchStatus(ctx, t.block(m.Block), func(c *[]metav1.Condition) { meta.SetStatusCondition(c, is) }); err != nil {
			return err
		}
	}
	for _, name := range plan.Resume {
		t.notes.drop(t.block(name).UID)
		if err := t.patchStatus(ctx, t.block(name), draining(metav1.ConditionFalse, v1alpha1.InUseAgainReason, "a Service needs it again")); err != nil {
			return err
		}
	}
	for _, name := range plan.Drain {
		a := t.block(name)
		r, _ := rangeOf(a)
		user, err := metallb.User(ctx, t.live, r) // the cache may be behind
		if err != nil {
			return err
		}
		if user != "" {
			t.soon(time.Second)
			continue
		}
		if err := t.patchStatus(ctx, a, draining(metav1.ConditionTrue, v1alpha1.ConfirmingReason, "it is taken away from the Cluster")); err != nil {
			return err
		}
	}
	return nil
}

// draining says what becomes of a block. Some messages are what the workload cluster says.
func draining(status metav1.ConditionStatus, reason, message string) func(*[]metav1.Condition) {
	return func(c *[]metav1.Condition) {
		meta.SetStatusCondition(c, metav1.Condition{Type: v1alpha1.DrainingCondition, Status: status, Reason: reason, Message: text.Message(message)})
	}
}

// drain goes on with the blocks that are being given up: idle ones, and those that somebody deleted. A block is
// given back when its Cluster has let go of it, seen twice, or when an operator says so.
func (t *tenant) drain(ctx context.Context) error {
	for _, a := range t.blocks {
		if staying(a) || !tenancy.Projected(a) {
			continue
		}
		_, granted := rangeOf(a)
		_, forced := a.Annotations[v1alpha1.ReleaseUnconfirmedAnnotation]
		if forced || !granted {
			if err := t.giveBack(ctx, a); err != nil {
				return err
			}
			continue
		}
		if err := t.confirm(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// confirm gives a block back if its Cluster has let go of it, and says what it waits for if not.
func (t *tenant) confirm(ctx context.Context, a *v1alpha1.IPAllocation) error {
	r, _ := rangeOf(a)
	if t.live == nil {
		t.soon(guard.WaitingBackstop)
		return t.patchStatus(ctx, a, draining(metav1.ConditionTrue, v1alpha1.TenantUnreachableReason, unreachableHint))
	}
	ask, next := metallb.LetGo, t.giveBack
	if t.settings().projection == v1alpha1.PoolPerAllocationProjection && !t.notes.quiet(a.UID) {
		ask = func(ctx context.Context, live client.Reader, r netipx.IPRange) (string, error) {
			return metallb.Empty(ctx, live, a.Name, r)
		}
		next = func(context.Context, *v1alpha1.IPAllocation) error {
			t.notes.unsee(a.UID)
			t.notes.empty(a.UID)
			t.soon(0)
			return nil
		}
	}
	why, err := ask(ctx, t.live, r)
	switch {
	case err != nil:
		t.notes.unsee(a.UID)
		t.soon(guard.WaitingBackstop)
		return t.patchStatus(ctx, a, draining(metav1.ConditionTrue, v1alpha1.TenantUnreachableReason, unreachableHint))
	case why != "":
		t.notes.unsee(a.UID)
		t.soon(time.Second)
		return t.patchStatus(ctx, a, draining(metav1.ConditionTrue, v1alpha1.ConfirmingReason, why))
	}
	if seen := t.now.Sub(t.notes.see(a.UID, t.now)); seen < settleTime {
		t.soon(settleTime - seen)
		return t.patchStatus(ctx, a, draining(metav1.ConditionTrue, v1alpha1.ConfirmingReason, "the Cluster has let go of it; it is looked at once more"))
	}
	return next(ctx, a)
}

const unreachableHint = "the API server of the Cluster does not answer, so nobody knows whether it still uses the block; " +
	"if the Cluster is gone for good, delete it, or annotate this IPAllocation with " + v1alpha1.ReleaseUnconfirmedAnnotation

// giveBack deletes a block, as it was when that was decided, and lets go of it.
func (t *tenant) giveBack(ctx context.Context, a *v1alpha1.IPAllocation) error {
	shrunk := living(a)
	if shrunk {
		err := t.Client.Delete(ctx, a, client.Preconditions{UID: &a.UID, ResourceVersion: &a.ResourceVersion})
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		current := &v1alpha1.IPAllocation{}
		if err := t.Live.Get(ctx, client.ObjectKeyFromObject(a), current); err != nil || current.UID != a.UID {
			return client.IgnoreNotFound(err)
		}
		a = current
		metrics.Shrinks.WithLabelValues(t.key.Namespace, t.key.Name).Inc()
		t.Recorder.Eventf(t.cluster, nil, corev1.EventTypeNormal, "LoadBalancerPoolShrunk", "Release",
			"%s is given back: no Service has used it for %s", a.Status.CIDR, t.Grace)
	}
	return t.letGo(ctx, a)
}

// letGo takes our finalizer off a block.
func (r *Reconciler) letGo(ctx context.Context, a *v1alpha1.IPAllocation) error {
	before := a.DeepCopy()
	if !controllerutil.RemoveFinalizer(a, v1alpha1.TenantPoolFinalizer) {
		return nil
	}
	err := r.Client.Patch(ctx, a, guard.SinceRead(before))
	if err == nil {
		r.notes.drop(a.UID)
	}
	return client.IgnoreNotFound(err)
}

// end lets go of the blocks of a Cluster whose machines are gone.
func (t *tenant) end(ctx context.Context) error {
	for _, a := range t.blocks {
		if !living(a) && tenancy.Projected(a) {
			if err := t.letGo(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// endIfGone does so for a Cluster that a live read does not find.
func (t *tenant) endIfGone(ctx context.Context) error {
	deleting := func(a *v1alpha1.IPAllocation) bool { return tenancy.Projected(a) && !living(a) }
	if !slices.ContainsFunc(t.blocks, deleting) {
		return nil
	}
	err := t.Live.Get(ctx, t.key, &clusterv1.Cluster{})
	switch {
	case apierrors.IsNotFound(err):
		return t.end(ctx)
	case err != nil:
		return fmt.Errorf("reading Cluster %s: %w", t.key, err)
	}
	return nil // it is not ours to see, or its watch is behind
}
