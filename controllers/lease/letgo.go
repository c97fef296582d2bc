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

// askAgain is how long it takes until MetalLB is asked once more that has not let go.
const askAgain = 10 * time.Second

// letGo gives up the leases that are being deleted and that nobody shows any more (P6): two looks, some time apart, show
// that MetalLB has let go of the address; of what a host shows, its lock says so. An operator may say so instead.
func (l *look) letGo(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	for _, o := range l.leases {
		foreign := o.Status.ShownBy == "" && !l.MetalLB // somebody else's finalizer
		if l.leftAlone(o) || foreign || o.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) {
			continue
		}
		l.asked[o.UID] = true
		why, err := l.stillShown(ctx, o)
		if err != nil {
			return false, err
		}
		if why == (leaseports.Verdict{}) {
			next := o.DeepCopy()
			controllerutil.RemoveFinalizer(next, v1alpha1.LeaseShownFinalizer)
			if err := l.Client.Patch(ctx, next, guard.SinceRead(o)); err != nil {
				return false, fmt.Errorf("letting go of IPLease %s/%s: %w", o.Namespace, o.Name, err)
			}
			changed = true
			continue
		}
		told, err := l.tellDraining(ctx, o, why)
		if err != nil {
			return false, err
		}
		changed = changed || told
	}
	return changed, nil
}

// stillShown says what keeps a lease that is being deleted; the zero verdict: nothing any more.
func (l *look) stillShown(ctx context.Context, o *v1alpha1.IPLease) (leaseports.Verdict, error) {
	_, released := o.Annotations[v1alpha1.ReleaseUnconfirmedAnnotation]
	off := l.off(cmp.Or(o.Status.ShownBy, v1alpha1.ShownByMetalLB))
	switch {
	case released:
		return leaseports.Verdict{}, nil
	case len(o.Status.Ports) > 0:
		return confirming(fmt.Sprintf("Service %s still has a port of it", leaseports.LeaseOf(o).Table[0].Service)), nil
	case !addressOf(o).IsValid():
		return leaseports.Verdict{}, nil
	case off != "":
		return confirming(off + ", and does not find out whether the address of this lease is shown; set the flag"), nil
	case byHost(o):
		return l.stillOnHost(ctx, o)
	}
	why, err := l.stillInMetalLB(ctx, o)
	if why == "" || err != nil {
		return leaseports.Verdict{}, err
	}
	return confirming(why), nil
}

func confirming(why string) leaseports.Verdict {
	return leaseports.Verdict{Reason: v1alpha1.ConfirmingReason, Message: why}
}

// stillInMetalLB says what MetalLB still does with the address of a lease; empty: nothing.
func (l *look) stillInMetalLB(ctx context.Context, o *v1alpha1.IPLease) (string, error) {
	a := addressOf(o)
	why, err := metallb.LetGo(ctx, l.Live, netipx.IPRangeFrom(a, a))
	if err != nil || why != "" {
		l.wait = grants.Sooner(l.wait, askAgain) // what MetalLB does, no watch of this manager may show
		return why, err
	}
	if !l.twiceSeen(sight{lease: o.UID}) {
		return "MetalLB is asked once more, whether it has let go of the address", nil
	}
	return "", nil
}

// tellDraining says on a lease what keeps it.
func (l *look) tellDraining(ctx context.Context, o *v1alpha1.IPLease, why leaseports.Verdict) (changed bool, err error) {
	c := metav1.Condition{
		Type: v1alpha1.DrainingCondition, Status: metav1.ConditionTrue, Reason: why.Reason, ObservedGeneration: o.Generation,
		Message: text.Message(fmt.Sprintf("%s; if nobody shows the address any more, an administrator may say so by the annotation %s", why.Message, v1alpha1.ReleaseUnconfirmedAnnotation)),
	}
	next := o.DeepCopy()
	c.LastTransitionTime = metav1.NewTime(l.now)
	if !meta.SetStatusCondition(&next.Status.Conditions, c) {
		return false, nil
	}
	if changed, err = l.setConditions(ctx, next, o); err != nil {
		return false, fmt.Errorf("saying on IPLease %s/%s what keeps it: %w", o.Namespace, o.Name, err)
	}
	return changed, nil
}
