package allocator

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// addressJobs runs the jobs for IPAddresses that no job of a claimant writes: their claim is gone, or clusterctl has
// moved them. An IPAddress without a claim is removed only after a live read of the claim (R2).
type addressJobs struct {
	*Options
	queue   *workQueue
	lookups *cacheLookups
	writer  *objectWriter
}

// orphanGCReason is the reason of the event for an object that was removed because its owner is gone.
const orphanGCReason = "OrphanedAllocationGC"

// runOrphanJob handles an IPAddress whose claim is unknown. With proof that the claim is gone the IPAddress is void and
// is removed: at once if it blocks a claim, otherwise after a grace, since a restore may bring the claim after its
// address (R2).
func (aj *addressJobs) runOrphanJob(ctx context.Context, p *grants.Pool, addr *grants.Address) {
	kept, err := aj.resolveOrphan(ctx, p, addr)
	m := p.Lock()
	var again time.Time
	changed := true
	if s := m.Addresses.Orphans[addr.Key()]; s != nil && s.UID == addr.UID {
		s.End()
		if !kept {
			s.RecordAttempt(err, aj.now())
			again, changed = s.RetryAt, false
		}
	}
	wake := m.Queues.EndJob(again) || changed
	m.Unlock()
	if err != nil && !errors.Is(err, errStateChanged) && ctx.Err() == nil {
		aj.queue.logFailure(ctx, p.Key, err, "Failed to settle an IPAddress without a claim; retrying", "address", addr.Key().String())
	}
	if wake {
		aj.queue.enqueuePool(p.Key)
	}
}

// resolveOrphan removes an orphan, or reports that it is kept for now.
func (aj *addressJobs) resolveOrphan(ctx context.Context, p *grants.Pool, addr *grants.Address) (kept bool, err error) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	live := grants.WithName(addr.Kind.NewObject(), addr.Namespace, addr.Name)
	err = aj.Live.Get(ctx, addr.Key(), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	arrives := aj.mayRestoreArrive(ctx, p, addr.Namespace)
	m := p.Lock()
	if err == nil {
		if key, _ := addr.Kind.PoolKeyFor(live); key == p.Key {
			m.ObserveClaimant(addr.Kind.NewClaimant(live))
		}
	}
	current := m.Addresses.Orphans[addr.Key()]
	if current == nil || current.UID != addr.UID || (!m.Term.Holder && m.Base.Pool != nil) {
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
	if current.OrphanedSince.IsZero() || m.Quarantine.IsQuarantined(aj.now()) || arrives {
		current.OrphanedSince = aj.now() // its claim may still arrive
	}
	current.Conflicts = current.Conflicts || err == nil
	conflicts := m.Inventory.IsOrphanConflicting(current)
	event := orphanGCReason
	if conflicts {
		event = "VoidAddressRemoved"
	}
	kept = !conflicts && aj.now().Before(current.OrphanedSince.Add(aj.OrphanGrace))
	current.ProvenOrphan = !kept
	if m.Releases.OrphanNeedsCooling(current, aj.now()) {
		kept = true // until the commit has recorded it, which the next reconcile makes
	}
	addr, base := current.Address, m.Base.Pool
	m.Unlock()
	if kept {
		return true, nil
	}
	if err := aj.removeOrphanAddress(ctx, p, addr); err != nil {
		return false, err
	}
	if addr.CreatedManually { // a user has deleted it, and needs no event
		return false, nil
	}
	metrics.VoidedAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	if base != nil {
		aj.Recorder.Eventf(base, nil, corev1.EventTypeNormal, event, "Release",
			"%s was removed: the claim it was made for is gone", addr.DisplayName())
	}
	return false, nil
}

// mayRestoreArrive reports whether a restore may still bring the pool of an IPAddress, with its claim: the pool does
// not exist, and a Cluster of the namespace is paused, or it is unknown whether one is (R10).
func (aj *addressJobs) mayRestoreArrive(ctx context.Context, p *grants.Pool, namespace string) bool {
	m := p.Lock()
	exists := m.Base.Pool != nil
	m.Unlock()
	if exists {
		return false
	}
	around := aj.lookups.newNamespacePauseLookup(ctx)(namespace)
	return around == grants.OwnerSeenPaused || around == grants.OwnerUnknown
}

// removeOrphanAddress removes an attached object that has no claimant.
func (aj *addressJobs) removeOrphanAddress(ctx context.Context, p *grants.Pool, o *grants.Address) error {
	t := &grants.Attempt{}
	if o.HasFinalizer {
		if err := aj.writer.patchAddress(ctx, p, grants.RemoveAddressStep(o, t), t); err != nil || t.AddressGone {
			return err
		}
		// Delete the object of the answer, not the current one: a claimant may have adopted it meanwhile (R2, R3).
		o = t.PatchedAddress
	}
	return aj.writer.deleteAddress(ctx, p, o, t)
}

// finishAddressMove removes our finalizer from an IPAddress that clusterctl has moved.
func (aj *addressJobs) finishAddressMove(ctx context.Context, p *grants.Pool, o *grants.Address) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	t := &grants.Attempt{}
	err := aj.writer.patchAddress(ctx, p, grants.RemoveAddressStep(o, t), t)
	m := p.Lock()
	again := m.Moves.RecordMoveFinish(o.UID, err, aj.now())
	wake := m.Queues.EndJob(again) || again.IsZero()
	m.Unlock()
	if err != nil && !errors.Is(err, errStateChanged) && ctx.Err() == nil {
		aj.queue.logFailure(ctx, p.Key, err, "Failed to finish the move of an IPAddress; retrying", "address", o.Key().String())
	}
	if wake {
		aj.queue.enqueuePool(p.Key)
	}
}
