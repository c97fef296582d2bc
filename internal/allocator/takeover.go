package allocator

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// loseTerm ends the term of a pool, and counts that.
func (a *Allocator) loseTerm(m *grants.Memory) {
	m.LoseTerm(a.now())
	countLostTerm(m.Key)
}

func countLostTerm(key pools.Key) {
	metrics.LostTerms.WithLabelValues(key.Kind, key.Namespace, key.Name).Inc()
}

// Fence makes this manager the holder of pools. It must be called before the lists with which the
// watches of claims and IPAddresses begin: whatever the holders before have granted is then in those
// lists or in flight, and a takeover needs none of its own. Pools for which the write fails are left
// to their takeover.
func (a *Allocator) Fence(ctx context.Context, all []v1alpha1.Pool) {
	var g errgroup.Group
	g.SetLimit(a.Writers)
	for _, obj := range all {
		key := pools.KeyOf(obj)
		a.publish(obj)
		if a.unserved(key, obj) != nil || obj.GetDeletionTimestamp() != nil {
			continue
		}
		if !a.serves(key) {
			a.observeOnly(a.pool(key), obj, a.now())
			continue
		}
		g.Go(func() error {
			p := a.pool(key)
			m := p.Lock()
			m.SetBase(obj)
			m.Unlock()
			term, err := a.fence(ctx, p)
			if err != nil {
				log.FromContext(ctx).V(1).Info("A pool is taken over later", "pool", key.String(), "because", err.Error())
				return nil
			}
			m = p.Lock()
			defer m.Unlock()
			m.FencedTerm = term
			return nil
		})
	}
	_ = g.Wait()
}

// fence writes this manager into the pool as its holder, and returns its term.
func (a *Allocator) fence(ctx context.Context, p *grants.Pool) (term int64, err error) {
	m := p.Lock()
	base := m.Base
	m.Unlock()
	old := base.PoolStatus().Allocator
	if old != nil && old.Holder == a.ID {
		return old.Term, nil
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	state := &v1alpha1.AllocatorStatus{Holder: a.ID, Term: 1}
	if old != nil {
		state.Term, state.InFlight = old.Term+1, old.InFlight
	}
	next.PoolStatus().Allocator = state
	unserved := wasUnserved(next)
	if old == nil || unserved {
		// Whoever comes after us must know, should we die before the first commit. Our finalizer, or our mark where a restore
		// has stripped that, shows that there was an allocator: a move or a restore brings a pool before what was given from it.
		ready := metav1.Condition{
			Type: v1alpha1.ReadyCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.AdoptingReason,
			Message: "the manager is reading the claims and addresses that this pool already has", ObservedGeneration: next.GetGeneration(), LastTransitionTime: metav1.NewTime(a.APITime(a.now())),
		}
		marked := next.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] != ""
		if unserved || marked || controllerutil.ContainsFinalizer(next, v1alpha1.PoolFinalizer) {
			ready.Status = metav1.ConditionFalse
		}
		grants.SetCondition(&next.PoolStatus().Conditions, ready)
	}
	if err := a.updateStatus(ctx, next); err != nil {
		return 0, fmt.Errorf("taking over %s: %w", p.Key, err)
	}
	m = p.Lock()
	defer m.Unlock()
	m.UntoldAdopting = old == nil || unserved
	m.SetBase(next)
	return state.Term, nil
}

// takeOver makes this manager the pool's holder: first the write, then the list, so that whatever
// the old holder granted is in the list or in flight, and its next commit fails.
func (a *Allocator) takeOver(ctx context.Context, p *grants.Pool) error {
	m := p.Lock()
	is, done, took := m.Base.PoolStatus().Allocator, m.FencedTerm, m.ListTook
	m.FencedTerm = 0
	m.Unlock()
	found := &grants.Listed{}
	if done == 0 || is == nil || is.Holder != a.ID || is.Term != done {
		var err error
		if done, err = a.fence(ctx, p); err != nil {
			return err
		}
		start := a.now()
		if found, err = a.lists.list(ctx, p.Key); err != nil {
			return fmt.Errorf("listing what %s has given: %w", p.Key, err)
		}
		took = a.now().Sub(start)
	}
	m = p.Lock()
	defer m.Unlock()
	m.ListTook = took
	m.Adopting = m.WasAdopting() != nil
	m.Rebuild(found)
	m.Holder, m.TriedOnce, m.Term = true, true, done
	for _, b := range found.Blocks {
		m.Verify(b.UID, b.Name, grants.Term{Pool: m.Base.GetUID(), Term: done}) // the list began after the fence
	}
	m.Quarantine(a.now(), a.Quarantine)
	m.QuarantineAfterOther(a.now(), a.Quarantine)
	m.ExtendQuarantine(a.now(), a.Quarantine)
	metrics.Takeovers.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	log.FromContext(ctx).Info("Took the pool over", "pool", p.Key.String(), "term", m.Term,
		"claims", len(m.Claimants), "addresses", len(m.Attached), "inFlight", len(m.Grants))
	m.AloneSince = a.now().Add(a.Quarantine)
	if _, mirror := incluster.MirroredBy(p.Key.Kind, p.Key.Name); mirror {
		metrics.Strangers.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Add(0) // or nobody would see it increase to 1
	}
	return nil
}
