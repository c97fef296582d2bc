package tenant

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// allocations are the load-balancer blocks of a Cluster, oldest first: as they were read, or as they were written
// since.
type allocations []*v1alpha1.IPAllocation

// named finds a block by name; nil: there is none.
func (all allocations) named(name string) *v1alpha1.IPAllocation {
	for _, a := range all {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// shown are the blocks that a load balancer is shown, or was, and the others.
func (all allocations) shown() (shown, others allocations) {
	for _, a := range all {
		if tenancy.Projected(a) {
			shown = append(shown, a)
		} else {
			others = append(others, a)
		}
	}
	return shown, others
}

// with returns the blocks with one as it is now.
func (all allocations) with(is *v1alpha1.IPAllocation) allocations {
	out := slices.Clone(all)
	for i, a := range out {
		if a.UID == is.UID {
			out[i] = is
		}
	}
	return out
}

// patchStatus changes the conditions of a block. One that another writer reverts is returned as it is, and changed later.
func (l *look) patchStatus(ctx context.Context, all allocations, a *v1alpha1.IPAllocation, change func(*[]metav1.Condition)) (allocations, error) {
	is := a.DeepCopy()
	change(&is.Status.Conditions)
	if slices.EqualFunc(a.Status.Conditions, is.Status.Conditions, func(x, y metav1.Condition) bool { return x == y }) {
		return all, nil
	}
	delayed, err := pace.Split(l.Client.Status().Patch(ctx, is, guard.SinceRead(a)))
	switch {
	case delayed > 0: // the others of the Cluster do not wait for that
		l.delayed = l.delayed.or(in(delayed))
		return all, nil
	case apierrors.IsNotFound(err):
		return all, nil
	case err != nil:
		return all, fmt.Errorf("writing the conditions of IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
	}
	l.Blocks.Observe(is)
	return all.with(is), nil
}

// wait is how long a Cluster need not be looked at if nothing happens; 0: as long as others say.
type wait time.Duration

// atOnce is the shortest wait.
const atOnce = wait(time.Millisecond)

// in waits for a time, or for none.
func in(d time.Duration) wait { return max(wait(d), atOnce) }

// until waits for a moment; none: as long as others say.
func (l *look) until(at time.Time) wait {
	if at.IsZero() {
		return 0
	}
	return in(at.Sub(l.now))
}

// or returns the shorter of two waits.
func (w wait) or(other wait) wait {
	if w == 0 || (other != 0 && other < w) {
		return other
	}
	return w
}
