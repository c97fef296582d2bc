package allocator

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// runOrphanJob handles an IPAddress whose claim is unknown. With proof that the claim is gone the IPAddress is void and
// is removed: at once if it blocks a claim, otherwise after a grace, since a restore may bring the claim after its
// address (R2).
func (a *Allocator) runOrphanJob(ctx context.Context, p *grants.Pool, addr *grants.Address) {
	kept, err := a.resolveOrphan(ctx, p, addr)
	m := p.Lock()
	var again time.Time
	changed := true
	if s := m.Addresses.Orphans[addr.Key()]; s != nil && s.UID == addr.UID {
		s.Busy = false
		if !kept {
			s.RecordAttempt(err, a.now())
			again, changed = s.RetryAt, false
		}
	}
	wake := m.Queues.EndJob(again) || changed
	m.Unlock()
	if err != nil && !errors.Is(err, errStateChanged) && ctx.Err() == nil {
		a.logFailure(ctx, p.Key, err, "Failed to settle an IPAddress without a claim; retrying", "address", addr.Key().String())
	}
	if wake {
		a.enqueuePool(p.Key)
	}
}

// requestOrphanCleanup has a pool settle at once what an earlier claim of a name has left: a claim of another pool
// needs the name.
func (a *Allocator) requestOrphanCleanup(key pools.Key, name types.NamespacedName) {
	m := a.lockPool(key)
	defer m.Unlock()
	if s := m.Addresses.Orphans[name]; s != nil && !s.Conflicts {
		s.Conflicts = true
		a.enqueuePool(key)
	}
}

// resolveOrphan removes an orphan, or reports that it is kept for now.
func (a *Allocator) resolveOrphan(ctx context.Context, p *grants.Pool, addr *grants.Address) (kept bool, err error) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	live := grants.WithName(addr.Kind.NewObject(), addr.Namespace, addr.Name)
	err = a.Live.Get(ctx, addr.Key(), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	arrives := a.mayRestoreArrive(ctx, p, addr.Namespace)
	m := p.Lock()
	if err == nil {
		if key, _ := addr.Kind.PoolKeyFor(live); key == p.Key {
			m.ObserveClaimant(addr.Kind.NewClaimant(live))
		}
	}
	current := m.Addresses.Orphans[addr.Key()]
	if current == nil || current.UID != addr.UID || (!m.Record.Holder && m.Base.Pool != nil) {
		m.Unlock()
		return false, nil
	}
	if c := m.Claimants.ByName[addr.Key()]; m.Addresses.KeepsManualAddress(current) || (c != nil && m.Inventory.IsAdoptable(c, current.Address)) {
		if c != nil {
			m.Queues.QueueClaimant(c)
		}
		m.Unlock()
		return false, nil
	}
	if current.OrphanedSince.IsZero() || m.Quarantine.IsQuarantined(a.now()) || arrives {
		current.OrphanedSince = a.now() // its claim may still arrive
	}
	current.Conflicts = current.Conflicts || err == nil
	conflicts := m.Inventory.IsOrphanConflicting(current)
	event := orphanGCReason
	if conflicts {
		event = "VoidAddressRemoved"
	}
	kept = !conflicts && a.now().Before(current.OrphanedSince.Add(a.OrphanGrace))
	current.ProvenOrphan = !kept
	if m.Releases.OrphanNeedsCooling(current, a.now()) {
		kept = true // until the commit has recorded it, which the next reconcile makes
	}
	addr, base := current.Address, m.Base.Pool
	m.Unlock()
	if kept {
		return true, nil
	}
	if err := a.removeOrphanAddress(ctx, p, addr); err != nil {
		return false, err
	}
	if addr.CreatedManually { // a user has deleted it, and needs no event
		return false, nil
	}
	metrics.VoidedAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, nil, corev1.EventTypeNormal, event, "Release",
			"%s was removed: the claim it was made for is gone", addr.DisplayName())
	}
	return false, nil
}

// mayRestoreArrive reports whether a restore may still bring the pool of an IPAddress, with its claim: the pool does
// not exist, and a Cluster of the namespace is paused, or it is unknown whether one is (R10).
func (a *Allocator) mayRestoreArrive(ctx context.Context, p *grants.Pool, namespace string) bool {
	m := p.Lock()
	exists := m.Base.Pool != nil
	m.Unlock()
	if exists {
		return false
	}
	around := a.newNamespacePauseLookup(ctx)(namespace)
	return around == grants.OwnerSeenPaused || around == grants.OwnerUnknown
}

// finishClaimantMove removes our finalizers from a claimant that clusterctl has moved.
func (a *Allocator) finishClaimantMove(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	if a.isForOtherManager(&c) {
		return nil
	}
	return a.runSteps(ctx, p, c, func(m *grants.PoolState, c *grants.Claimant, _ *grants.Attempt) (grants.Step, bool) {
		if (!m.Record.Holder && m.Base.Pool != nil) || !m.Moves.CanFinishMove(c) {
			return grants.Step{}, false
		}
		return grants.FinishMoveStep(c), true
	})
}

// finishAddressMove removes our finalizer from an IPAddress that clusterctl has moved.
func (a *Allocator) finishAddressMove(ctx context.Context, p *grants.Pool, o *grants.Address) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	t := &grants.Attempt{}
	err := a.patchAddress(ctx, p, grants.RemoveAddressStep(o, t), t)
	m := p.Lock()
	again := m.Moves.RecordMoveFinish(o.UID, err, a.now())
	wake := m.Queues.EndJob(again) || again.IsZero()
	m.Unlock()
	if err != nil && !errors.Is(err, errStateChanged) && ctx.Err() == nil {
		a.logFailure(ctx, p.Key, err, "Failed to finish the move of an IPAddress; retrying", "address", o.Key().String())
	}
	if wake {
		a.enqueuePool(p.Key)
	}
}
