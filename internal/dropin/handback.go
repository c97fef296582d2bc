package dropin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// HandBack gives all pools back to the in-cluster provider.
type HandBack struct {
	Client client.Client
	Now    func() time.Time
	// WithoutRests gives up what rests.
	WithoutRests bool
	// Say is told what is done.
	Say func(format string, args ...any)
}

// ErrProblems says that something stands in the way: the Plan has it.
var ErrProblems = errors.New("something stands in the way of handing the pools back")

// Plan tells what a hand-back would do. It writes nothing.
func (h *HandBack) Plan(ctx context.Context) (*Plan, error) {
	in, err := gather(ctx, h.Client)
	if err != nil {
		return nil, err
	}
	return plan(in, h.Now(), h.WithoutRests), nil
}

// Apply removes the mirrors, and then the pause of the pools that were handed over for good: in this order the
// in-cluster provider serves no pool of which a mirror may be named. It can be repeated.
func (h *HandBack) Apply(ctx context.Context) (*Plan, error) {
	in, err := gather(ctx, h.Client)
	if err != nil {
		return nil, err
	}
	p := plan(in, h.Now(), h.WithoutRests)
	if len(p.Problems) > 0 {
		return p, ErrProblems
	}
	for _, mirror := range in.mirrors {
		if err := h.forget(ctx, mirror); err != nil {
			return p, fmt.Errorf("opening what %s mirrors: %w", pools.KeyOf(mirror), err)
		}
		if err := h.remove(ctx, mirror); err != nil {
			return p, fmt.Errorf("removing %s: %w", pools.KeyOf(mirror), err)
		}
		h.Say("%s removed", pools.KeyOf(mirror))
	}
	for _, s := range in.given {
		if err := h.release(ctx, s); err != nil {
			return p, fmt.Errorf("opening %s: %w", s, err)
		}
		h.Say("%s opened", s)
	}
	return p, nil
}

// remove takes our finalizer off a mirror and deletes it, as it is then. Without the finalizer and not deleted, as a
// crash in between leaves it, a manager with the flag takes it up again.
func (h *HandBack) remove(ctx context.Context, mirror v1alpha1.Pool) error {
	key, uid := pools.KeyOf(mirror), mirror.GetUID()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		is, err := key.Get(ctx, h.Client)
		if err != nil || is.GetUID() != uid {
			return client.IgnoreNotFound(err)
		}
		if !equality.Semantic.DeepEqual(is.PoolStatus().Allocator, mirror.PoolStatus().Allocator) {
			return errors.New("a manager serves it meanwhile")
		}
		if controllerutil.RemoveFinalizer(is, v1alpha1.PoolFinalizer) {
			if err := h.Client.Update(ctx, is); err != nil {
				return client.IgnoreNotFound(err)
			}
		}
		return client.IgnoreNotFound(exact.Delete(ctx, h.Client, is))
	})
}

// forget takes off the pool of a mirror what says that it has one: the next manager may make it anew.
func (h *HandBack) forget(ctx context.Context, mirror v1alpha1.Pool) error {
	s, _ := sourceOf(mirror)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pool := s.kind.New()
		if err := h.Client.Get(ctx, s.ObjectKey, pool); err != nil || !incluster.Noted(pool) {
			return client.IgnoreNotFound(err)
		}
		before := pool.DeepCopy()
		incluster.Forget(pool)
		return client.IgnoreNotFound(h.Client.Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
	})
}

// release takes both annotations of a handover off a pool, in one write.
func (h *HandBack) release(ctx context.Context, s source) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pool := s.kind.New()
		if err := h.Client.Get(ctx, s.ObjectKey, pool); err != nil || !incluster.Given(pool) {
			return client.IgnoreNotFound(err)
		}
		before := pool.DeepCopy()
		marks := maps.Clone(pool.GetAnnotations())
		delete(marks, incluster.HandedOverAnnotation)
		delete(marks, clusterv1.PausedAnnotation)
		pool.SetAnnotations(marks)
		return client.IgnoreNotFound(h.Client.Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
	})
}
