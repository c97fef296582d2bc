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
func (a *Allocator) loseTerm(m *grants.PoolState) {
	m.LoseTerm(a.now())
	countLostTerm(m.Base.Key)
}

func countLostTerm(key pools.Key) {
	metrics.LostTerms.WithLabelValues(key.Kind, key.Namespace, key.Name).Inc()
}

// FencePools makes this manager the holder of pools. It must be called before the lists with which the watches of
// claims and IPAddresses begin: whatever earlier holders have granted is then in those lists or in flight, and a
// takeover needs no list of its own. Pools for which the write fails are left to their takeover.
func (a *Allocator) FencePools(ctx context.Context, all []v1alpha1.Pool) {
	var g errgroup.Group
	g.SetLimit(a.Writers)
	for _, obj := range all {
		key := pools.KeyForPool(obj)
		a.publishDeclaration(obj)
		if a.refusalIfUnserved(key, obj) != nil || obj.GetDeletionTimestamp() != nil {
			continue
		}
		if !a.isInShard(key) {
			a.observePoolOnly(a.getOrCreatePool(key), obj, a.now())
			continue
		}
		g.Go(func() error {
			p := a.getOrCreatePool(key)
			m := p.Lock()
			m.SetBasePool(obj)
			m.Unlock()
			term, err := a.fencePool(ctx, p)
			if err != nil {
				log.FromContext(ctx).V(1).Info("Deferred the takeover of a pool", "pool", key.String(), "because", err.Error())
				return nil
			}
			m = p.Lock()
			defer m.Unlock()
			m.Record.FencedTerm = term
			return nil
		})
	}
	_ = g.Wait()
}

// fencePool writes this manager into the pool as its holder, and returns the term of this manager.
func (a *Allocator) fencePool(ctx context.Context, p *grants.Pool) (term int64, err error) {
	m := p.Lock()
	base := m.Base.Pool
	m.Unlock()
	old := base.PoolStatus().Allocator
	if old != nil && old.Holder == a.ManagerID {
		return old.Term, nil
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	state := &v1alpha1.AllocatorStatus{Holder: a.ManagerID, Term: 1}
	if old != nil {
		state.Term, state.InFlight = old.Term+1, old.InFlight
	}
	next.PoolStatus().Allocator = state
	unserved := wasUnserved(next)
	if old == nil || unserved {
		// The next holder must know, should this manager die before the first commit. Our finalizer, or our mark where
		// a restore has removed the finalizer, shows that there was an allocator: a move or a restore brings a pool
		// before the objects that it granted to.
		ready := metav1.Condition{
			Type: v1alpha1.ReadyCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.AdoptingReason,
			Message: "the manager is reading the claims and addresses that this pool already has", ObservedGeneration: next.GetGeneration(), LastTransitionTime: metav1.NewTime(a.APITime(a.now())),
		}
		marked := next.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] != ""
		if unserved || marked || controllerutil.ContainsFinalizer(next, v1alpha1.PoolFinalizer) {
			ready.Status = metav1.ConditionFalse
		}
		grants.SetPoolCondition(&next.PoolStatus().Conditions, ready)
	}
	if err := a.updatePoolStatus(ctx, next); err != nil {
		return 0, fmt.Errorf("taking over %s: %w", p.Key, err)
	}
	m = p.Lock()
	defer m.Unlock()
	m.Quarantine.AdoptionEventPending = old == nil || unserved
	m.SetBasePool(next)
	return state.Term, nil
}

// takeOverPool makes this manager the pool's holder: it writes first and lists after that, so that whatever the old
// holder granted is in the list or in flight, and the old holder's next commit fails.
func (a *Allocator) takeOverPool(ctx context.Context, p *grants.Pool) error {
	m := p.Lock()
	status, done, took := m.Base.Pool.PoolStatus().Allocator, m.Record.FencedTerm, m.Record.ListDuration
	m.Record.FencedTerm = 0
	m.Unlock()
	found := &grants.ListedObjects{}
	if done == 0 || status == nil || status.Holder != a.ManagerID || status.Term != done {
		var err error
		if done, err = a.fencePool(ctx, p); err != nil {
			return err
		}
		start := a.now()
		if found, err = a.poolLister.listPool(ctx, p.Key); err != nil {
			return fmt.Errorf("listing the grants of %s: %w", p.Key, err)
		}
		took = a.now().Sub(start)
	}
	m = p.Lock()
	defer m.Unlock()
	m.Record.ListDuration = took
	m.Quarantine.Adopting = m.Quarantine.AdoptingCondition() != nil
	m.RebuildLedger(found)
	m.Record.Holder, m.Record.TakeoverChecked, m.Record.Term = true, true, done
	for _, b := range found.Blocks {
		m.Carved.VerifyBlock(b.UID, b.Name, grants.PoolTerm{PoolUID: m.Base.Pool.GetUID(), Term: done}) // the list began after the fence
	}
	m.Quarantine.RestoreQuarantine(a.now(), a.Quarantine)
	m.Quarantine.QuarantineAfterOtherProvider(a.now(), a.Quarantine)
	m.Quarantine.ExtendQuarantine(a.now(), a.Quarantine)
	metrics.PoolTakeovers.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	log.FromContext(ctx).Info("Took the pool over", "pool", p.Key.String(), "term", m.Record.Term,
		"claims", len(m.Claimants.ByUID), "addresses", len(m.Addresses.ByName), "inFlight", len(m.Grants.ByClaimant))
	m.Quarantine.SoleWriterSince = a.now().Add(a.Quarantine)
	if _, mirror := incluster.RefForMirror(p.Key.Kind, p.Key.Name); mirror {
		// The series begins with 0: otherwise no query would see its increase to 1.
		metrics.ForeignAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Add(0)
	}
	return nil
}
