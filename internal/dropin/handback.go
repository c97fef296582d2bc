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

// HandBack returns all pools to the in-cluster provider.
type HandBack struct {
	Client client.Client
	Now    func() time.Time
	// IgnoreCooling permits a hand-back that loses the rests of released addresses.
	IgnoreCooling bool
	// Reportf reports each step that is done.
	Reportf func(format string, args ...any)
}

// ErrProblems reports that a hand-back is not possible: Plan.Problems lists the obstacles.
var ErrProblems = errors.New("the pools cannot be handed back yet")

// Plan returns the effect of a hand-back. It writes nothing.
func (h *HandBack) Plan(ctx context.Context) (*Plan, error) {
	in, err := gatherInput(ctx, h.Client)
	if err != nil {
		return nil, err
	}
	return newPlan(in, h.Now(), h.IgnoreCooling), nil
}

// Apply removes the mirrors, and then the pause of the pools that were handed over for good: in this order the
// in-cluster provider serves no pool whose mirror claims may still name. It returns the plan, and ErrProblems where
// that has problems. It can be repeated.
func (h *HandBack) Apply(ctx context.Context) (*Plan, error) {
	in, err := gatherInput(ctx, h.Client)
	if err != nil {
		return nil, err
	}
	p := newPlan(in, h.Now(), h.IgnoreCooling)
	if len(p.Problems) > 0 {
		return p, ErrProblems
	}
	for _, mirror := range in.mirrors {
		if err := h.removeMirrorRecord(ctx, mirror); err != nil {
			return p, fmt.Errorf("opening what %s mirrors: %w", pools.KeyForPool(mirror), err)
		}
		if err := h.deleteMirror(ctx, mirror); err != nil {
			return p, fmt.Errorf("removing %s: %w", pools.KeyForPool(mirror), err)
		}
		h.Reportf("%s removed", pools.KeyForPool(mirror))
	}
	for _, s := range in.handedOver {
		if err := h.reopenPool(ctx, s); err != nil {
			return p, fmt.Errorf("opening %s: %w", s, err)
		}
		h.Reportf("%s opened", s)
	}
	return p, nil
}

// deleteMirror removes our finalizer from a mirror and deletes it at the version of that write. A crash in between
// leaves a mirror without the finalizer, which a manager with the flag serves again.
func (h *HandBack) deleteMirror(ctx context.Context, mirror v1alpha1.Pool) error {
	key, uid := pools.KeyForPool(mirror), mirror.GetUID()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		current, err := key.GetPool(ctx, h.Client)
		if err != nil || current.GetUID() != uid {
			return client.IgnoreNotFound(err)
		}
		if !equality.Semantic.DeepEqual(current.PoolStatus().Allocator, mirror.PoolStatus().Allocator) {
			return errors.New("a manager serves it meanwhile")
		}
		if controllerutil.RemoveFinalizer(current, v1alpha1.PoolFinalizer) {
			if err := h.Client.Update(ctx, current); err != nil {
				return client.IgnoreNotFound(err)
			}
		}
		return client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, h.Client, current))
	})
}

// removeMirrorRecord removes the annotations that record the mirror from its source pool: the next manager may create
// the mirror again.
func (h *HandBack) removeMirrorRecord(ctx context.Context, mirror v1alpha1.Pool) error {
	s, _ := sourceForMirror(mirror)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pool := s.kind.NewPool()
		if err := h.Client.Get(ctx, s.ObjectKey, pool); err != nil || !incluster.HasMirrorRecord(pool) {
			return client.IgnoreNotFound(err)
		}
		before := pool.DeepCopy()
		incluster.RemoveMirrorRecord(pool)
		return client.IgnoreNotFound(h.Client.Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
	})
}

// reopenPool removes both annotations of a handover from a pool, in one write.
func (h *HandBack) reopenPool(ctx context.Context, s sourcePool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pool := s.kind.NewPool()
		if err := h.Client.Get(ctx, s.ObjectKey, pool); err != nil || !incluster.HasHandedOverAnnotation(pool) {
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
