package lease

import (
	"context"
	"fmt"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// finalizerWriter holds each lease by our finalizer from before it is shown until it is shown by no load balancer any
// more (P6), so that its address is not released before that.
type finalizerWriter struct {
	schedule     *schedule
	observations *observations
	api          *api
	locks        *hostLocks
	decider      *leaseDecider
}

// addFinalizers adds our finalizer to the leases that are about to be shown.
func (f *finalizerWriter) addFinalizers(ctx context.Context) (changed bool, err error) {
	for _, o := range f.decider.findLeasesToHold() {
		next := o.DeepCopy()
		controllerutil.AddFinalizer(next, v1alpha1.LeaseShownFinalizer)
		if err := f.api.Client.Patch(ctx, next, guard.NewOptimisticPatch(o)); err != nil {
			return false, fmt.Errorf("adding the finalizer to IPLease %s/%s before its address is announced: %w", o.Namespace, o.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// releaseDeletedLeases removes our finalizer from the leases that are being deleted and that are not shown any more:
// two checks, some time apart, show that MetalLB has released the address; if hosts show it, its lock shows that. An
// operator may confirm it instead.
func (f *finalizerWriter) releaseDeletedLeases(ctx context.Context) (changed bool, err error) {
	for _, o := range f.decider.findDrainingLeases() {
		f.observations.checkedLeases[o.UID] = true
		why, ask := f.decider.drainingReason(o)
		if ask {
			if why, err = f.askBackend(ctx, o); err != nil {
				return false, err
			}
		}
		if why == (leaseports.Reason{}) {
			next := o.DeepCopy()
			controllerutil.RemoveFinalizer(next, v1alpha1.LeaseShownFinalizer)
			if err := f.api.Client.Patch(ctx, next, guard.NewOptimisticPatch(o)); err != nil {
				return false, fmt.Errorf("removing the finalizer from IPLease %s/%s: %w", o.Namespace, o.Name, err)
			}
			changed = true
			continue
		}
		updated, err := f.setDrainingCondition(ctx, o, why)
		if err != nil {
			return false, err
		}
		changed = changed || updated
	}
	return changed, nil
}

// askBackend returns why the load balancer that shows a lease keeps it; the zero Reason if it does not any more.
func (f *finalizerWriter) askBackend(ctx context.Context, o *v1alpha1.IPLease) (leaseports.Reason, error) {
	if isShownByHost(o) {
		return f.locks.releaseLocks(ctx, o)
	}
	a := leaseAddress(o)
	why, err := metallb.CheckReleased(ctx, f.api.Live, netipx.IPRangeFrom(a, a))
	switch {
	case err != nil || why != "":
		f.schedule.requeueWithin(recheckInterval) // no watch of this manager may show what MetalLB does
	case !f.observations.confirmedTwice(observation{leaseUID: o.UID}):
		why = "waiting for a second check that MetalLB has released the address"
	default:
		return leaseports.Reason{}, nil
	}
	return newConfirmingReason(why), err
}

// setDrainingCondition sets the condition Draining of a lease: what keeps it.
func (f *finalizerWriter) setDrainingCondition(ctx context.Context, o *v1alpha1.IPLease, why leaseports.Reason) (changed bool, err error) {
	c := metav1.Condition{
		Type: v1alpha1.DrainingCondition, Status: metav1.ConditionTrue, Reason: why.Reason, ObservedGeneration: o.Generation, LastTransitionTime: metav1.NewTime(f.schedule.now),
		Message: text.SanitizeMessage(fmt.Sprintf("%s; if the address is no longer announced, an administrator can set annotation %s to release it", why.Message, v1alpha1.ReleaseUnconfirmedAnnotation)),
	}
	next := o.DeepCopy()
	if !meta.SetStatusCondition(&next.Status.Conditions, c) {
		return false, nil
	}
	if changed, err = f.api.patchConditions(ctx, next, o); err != nil {
		return false, fmt.Errorf("setting the condition Draining of IPLease %s/%s: %w", o.Namespace, o.Name, err)
	}
	return changed, nil
}
