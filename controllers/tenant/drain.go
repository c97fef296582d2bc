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

// settleTime is how far apart two sightings are that a Cluster has let go of a block: what its load balancer was doing at
// the first is done at the second.
const settleTime = 2 * time.Second

// landTime is how long a block is being given up at least: what another manager had read of it before may be shown for
// showTime, and the request may be on its way for as long as a client of a Cluster waits (clustercache's default).
const landTime = showTime + 10*time.Second

// drain goes on with the blocks that are being given up: idle ones, and those that somebody deleted. A block is
// given back when its Cluster has let go of it, seen twice, or when an operator says so. Without a client nobody knows
// whether the Cluster has.
func (l *look) drain(ctx context.Context, live client.Client, s tenancy.Settings, all allocations) (_ allocations, next wait, err error) {
	var reads client.Reader
	if live != nil {
		reads = balancer.Once(live)
	}
	for _, a := range all {
		if !tenancy.Leaving(a) || tenancy.ShownTo(a) != l.serving.By {
			continue
		}
		_, granted := demand.RangeOf(a)
		if _, forced := a.Annotations[v1alpha1.ReleaseUnconfirmedAnnotation]; forced || !granted {
			if err := l.giveBack(ctx, a); err != nil {
				return all, next, err
			}
			continue
		}
		became, err := l.confirm(ctx, reads, s.Apart, a)
		if err != nil {
			return all, next, err
		}
		next = next.or(became.next)
		if became.message == "" {
			continue
		}
		if all, err = l.patchStatus(ctx, all, a, draining(metav1.ConditionTrue, became.reason, became.message)); err != nil {
			return all, next, err
		}
	}
	return all, next, nil
}

// waiting is what a block that is being given up waits for, and when to look again. Without a message nothing is said.
type waiting struct {
	reason, message string
	next            wait
}

// confirm gives a block back if its Cluster has let go of it, and says what it waits for if not. A block with a pool of
// its own has served its last Service before that pool is taken away.
func (l *look) confirm(ctx context.Context, live client.Reader, apart bool, a *v1alpha1.IPAllocation) (waiting, error) {
	leaving := l.now.Sub(l.notes.leavingSince(a.UID, l.now))
	if live == nil {
		return l.unknown(l.refused), nil
	}
	emptying := apart && !l.notes.isEmptied(a.UID)
	why, err := l.stillUsed(ctx, live, a, emptying)
	switch {
	case err != nil:
		l.notes.doubt(a.UID)
		if !workloads.IsRefusal(err) {
			err = nil
		}
		return l.unknown(err), nil // it is asked again
	case why != "":
		l.notes.doubt(a.UID)
		return waiting{v1alpha1.ConfirmingReason, why, askAgain(leaving)}, nil
	}
	if seen := l.now.Sub(l.notes.letGoSince(a.UID, l.now)); seen < settleTime {
		return waiting{v1alpha1.ConfirmingReason, "the Cluster no longer uses the block; the manager checks once more before it gives the block back", in(settleTime - seen)}, nil
	}
	if emptying {
		l.notes.doubt(a.UID)
		l.notes.setEmptied(a.UID)
		return waiting{next: atOnce}, nil
	}
	if leaving < landTime {
		return waiting{v1alpha1.ConfirmingReason, "the Cluster no longer uses the block; the manager waits until what another manager may have sent has arrived", in(landTime - leaving)}, nil
	}
	return waiting{}, l.giveBack(ctx, a)
}

// longestAsk is how long after each other a Cluster is asked at most whether it has let a block go that it has used for long.
const longestAsk = 10 * time.Second

// askAgain is when a Cluster is asked again of a block that it has been found to use for so long: a second later at first, and the
// later the longer it lasts. What its watches show wakes who waits before that.
func askAgain(so time.Duration) wait { return in(min(max(so/10, time.Second), longestAsk)) }

// stillUsed says what a Cluster still does with a block, or with the pool of its own that is being emptied.
func (l *look) stillUsed(ctx context.Context, live client.Reader, a *v1alpha1.IPAllocation, emptying bool) (string, error) {
	r, _ := demand.RangeOf(a)
	if emptying {
		return l.balancer().Empty(ctx, live, a.Name, r)
	}
	return l.balancer().LetGo(ctx, live, r)
}

// unknown is what a block waits for of which is not known whether it is in use: its Cluster refuses to say it, or does not answer.
func (l *look) unknown(refused error) waiting {
	out := waiting{v1alpha1.TenantUnreachableReason, unreachableHint, in(guard.WaitingBackstop)}
	if refused != nil {
		out.reason = v1alpha1.TenantRefusedReason
		out.message = workloads.Refusal(l.key, refused, "the manager cannot tell whether the block is still in use", rightsFiles[l.serving.By]).Error() + "; " + unconfirmedHint
	}
	return out
}

const unreachableHint = "the API server of the Cluster does not answer, so the manager cannot tell whether the block is still in use; " +
	"if the Cluster is gone for good, delete its Cluster object; " + unconfirmedHint

// unconfirmedHint is the way out that needs nothing of the Cluster.
const unconfirmedHint = "if you know that nothing uses the block any more, annotate this IPAllocation with " + v1alpha1.ReleaseUnconfirmedAnnotation

// giveBack deletes a block, as it was when that was decided, and lets go of it.
func (l *look) giveBack(ctx context.Context, a *v1alpha1.IPAllocation) error {
	if a.DeletionTimestamp.IsZero() {
		err := exact.Delete(ctx, l.Client, a)
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		current := &v1alpha1.IPAllocation{}
		if err := l.Live.Get(ctx, client.ObjectKeyFromObject(a), current); err != nil || current.UID != a.UID {
			return client.IgnoreNotFound(err)
		}
		a = current
		metrics.Shrinks.WithLabelValues(l.key.Namespace, l.key.Name).Inc()
		l.Recorder.Eventf(l.cluster, nil, corev1.EventTypeNormal, "LoadBalancerPoolShrunk", "Release",
			"%s is given back: no Service has used it for %s", a.Status.CIDR, l.Grace)
	}
	return l.letGo(ctx, a)
}
