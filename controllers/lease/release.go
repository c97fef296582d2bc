package lease

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// recheckInterval is how long it takes until the controller checks again what no watch shows, for example whether
// MetalLB has released an address.
const recheckInterval = 10 * time.Second

// releaseDeletedLeases removes our finalizer from the leases that are being deleted and that are not shown any more
// (P6): two checks, some time apart, show that MetalLB has released the address; if hosts show it, its lock shows that.
// An operator may confirm it instead.
func (l *scope) releaseDeletedLeases(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	for _, o := range l.leases {
		foreign := o.Status.ShownBy == "" && !l.MetalLB // the finalizer of another manager
		if l.isUnmanaged(o) || foreign || o.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) {
			continue
		}
		l.checkedLeases[o.UID] = true
		why, err := l.drainingReason(ctx, o)
		if err != nil {
			return false, err
		}
		if why == (leaseports.Reason{}) {
			next := o.DeepCopy()
			controllerutil.RemoveFinalizer(next, v1alpha1.LeaseShownFinalizer)
			if err := l.Client.Patch(ctx, next, guard.NewOptimisticPatch(o)); err != nil {
				return false, fmt.Errorf("letting go of IPLease %s/%s: %w", o.Namespace, o.Name, err)
			}
			changed = true
			continue
		}
		updated, err := l.setDrainingCondition(ctx, o, why)
		if err != nil {
			return false, err
		}
		changed = changed || updated
	}
	return changed, nil
}

// drainingReason returns what keeps a lease that is being deleted; the zero Reason if nothing does any more.
func (l *scope) drainingReason(ctx context.Context, o *v1alpha1.IPLease) (leaseports.Reason, error) {
	_, released := o.Annotations[v1alpha1.ReleaseUnconfirmedAnnotation]
	off := l.disabledMessage(cmp.Or(o.Status.ShownBy, v1alpha1.ShownByMetalLB))
	switch {
	case released:
		return leaseports.Reason{}, nil
	case len(o.Status.Ports) > 0:
		return newConfirmingReason(fmt.Sprintf("Service %s still has a port of it", leaseports.NewLease(o).PortTable[0].Service)), nil
	case !leaseAddress(o).IsValid():
		return leaseports.Reason{}, nil
	case off != "":
		return newConfirmingReason(off + "; it cannot verify that the address is no longer announced. Set the flag"), nil
	case isShownByHost(o):
		return l.hostDrainingReason(ctx, o)
	}
	why, err := l.describeMetalLBUse(ctx, o)
	if why == "" || err != nil {
		return leaseports.Reason{}, err
	}
	return newConfirmingReason(why), nil
}

func newConfirmingReason(why string) leaseports.Reason {
	return leaseports.Reason{Reason: v1alpha1.ConfirmingReason, Message: why}
}

// describeMetalLBUse returns how MetalLB still uses the address of a lease, empty if it does not.
func (l *scope) describeMetalLBUse(ctx context.Context, o *v1alpha1.IPLease) (string, error) {
	a := leaseAddress(o)
	why, err := metallb.CheckReleased(ctx, l.Live, netipx.IPRangeFrom(a, a))
	if err != nil || why != "" {
		l.requeueAfter = grants.MinWait(l.requeueAfter, recheckInterval) // no watch of this manager may show what MetalLB does
		return why, err
	}
	if !l.confirmedTwice(observation{leaseUID: o.UID}) {
		return "waiting for a second check that MetalLB has released the address", nil
	}
	return "", nil
}

// setDrainingCondition sets the condition Draining of a lease: what keeps it.
func (l *scope) setDrainingCondition(ctx context.Context, o *v1alpha1.IPLease, why leaseports.Reason) (changed bool, err error) {
	c := metav1.Condition{
		Type: v1alpha1.DrainingCondition, Status: metav1.ConditionTrue, Reason: why.Reason, ObservedGeneration: o.Generation,
		Message: text.SanitizeMessage(fmt.Sprintf("%s; if the address is no longer announced, an administrator can set annotation %s to release it", why.Message, v1alpha1.ReleaseUnconfirmedAnnotation)),
	}
	next := o.DeepCopy()
	c.LastTransitionTime = metav1.NewTime(l.now)
	if !meta.SetStatusCondition(&next.Status.Conditions, c) {
		return false, nil
	}
	if changed, err = l.patchConditions(ctx, next, o); err != nil {
		return false, fmt.Errorf("saying on IPLease %s/%s what keeps it: %w", o.Namespace, o.Name, err)
	}
	return changed, nil
}
