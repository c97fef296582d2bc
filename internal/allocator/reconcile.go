package allocator

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

const (
	// maxGrantsPerCommit bounds the grants of one commit.
	maxGrantsPerCommit = 128
	// planningLowWaterMark is the number of grants being written below which more are planned, so that the writers
	// never run dry and a commit carries many grants when there is much to do.
	planningLowWaterMark = 96
	// confirmCommitDelay is how long the status of an idle pool may still list confirmed grants as in flight.
	confirmCommitDelay = time.Second
)

// Reconcile brings one pool forward: it updates the state of the pool, takes the pool over, plans, commits and
// dispatches writes. It must not run twice at once for one pool. The pool in seen comes from the cache; nil means that
// it does not exist.
func (a *Allocator) Reconcile(ctx context.Context, key pools.Key, seen v1alpha1.Pool) (reconcile.Result, error) {
	p := a.pools.getOrCreatePool(key)
	now := a.now()
	if !a.scope.isInShard(key) {
		a.unserved.observePoolOnly(p, seen, now)
		return reconcile.Result{}, nil
	}
	if refusal := a.scope.refusalIfUnserved(key, seen); refusal != nil {
		return a.unserved.reconcileUnservedPool(ctx, p, seen, refusal)
	}
	if seen == nil || pools.HasEnded(seen) {
		return a.reconcileMissingPool(ctx, p, seen, a.relations.missingPoolRefusal(ctx, p.Key))
	}
	m := p.Lock()
	m.Queues.ForgetNextReconcile()
	if m.RefreshBasePool(seen, a.ManagerID, now) {
		countLostTerm(p.Key)
	}
	m.Quotas.SetLimit(a.lookups.newQuotaLimits(ctx))
	m.Quarantine.SetManagementCluster(a.ManagementCluster)
	unanswered := m.Term.PendingCommit != nil
	m.Unlock()
	if unanswered {
		if err := a.status.sendCommit(ctx, p); err != nil {
			return a.resultForError(p, err)
		}
	}
	m = p.Lock()
	if m.Term.TakeRevalidation() {
		a.status.loseTerm(m)
	}
	holder := m.Term.Holder
	base := m.Base.Pool
	m.Unlock()
	a.relations.publishDeclaration(base) // whichever manager holds it
	parent := a.relations.parentForPool(base)
	m = p.Lock()
	m.Carved.SetParent(parent)
	a.relations.updateOverlap(m)
	a.relations.enqueueChildren(m)
	m.Unlock()
	a.exclusions.enqueueOlderPools(p)
	lookupWait := a.machines.startMachineLookups(p, now)
	if a.isPoolWriteRefused(p, now) {
		return reconcile.Result{RequeueAfter: term.MinWait(a.refuseAllWaiting(ctx, p, now), lookupWait)}, nil
	}
	if !holder {
		m = p.Lock()
		may, wait := m.MayTakeOver(now, a.Elected, a.ShrinkGrace, a.admission.newAdmissionFunc(ctx, m, now), a.admission.newReleaseAdmissionFunc(ctx, m))
		m.Claimants.Gone.Rotate(now)
		m.Unlock()
		if !may {
			return reconcile.Result{RequeueAfter: term.MinWait(wait, lookupWait)}, nil
		}
		if err := a.status.takeOverPool(ctx, p); err != nil {
			return a.handleTakeOverFailure(ctx, p, now, err)
		}
	}
	if done, err := a.metadata.reconcilePoolMetadata(ctx, p); done || err != nil {
		return a.handlePoolWriteFailure(ctx, p, now, err)
	}
	if err := a.arrivals.checkArrival(ctx, p); err != nil {
		return a.resultForError(p, err)
	}
	a.exclusions.excludeSharedRanges(ctx, p)

	next, err := a.reconcileBatch(ctx, p, now)
	if err != nil {
		return a.resultForError(p, err)
	}
	a.exclusions.enqueueOlderPools(p)
	return reconcile.Result{RequeueAfter: term.MinWait(next, lookupWait)}, nil
}

// handleTakeOverFailure handles a failed takeover: an edit of the pool by a user does not end our term, a write of
// another manager does.
func (a *Allocator) handleTakeOverFailure(ctx context.Context, p *grants.Pool, now time.Time, err error) (reconcile.Result, error) {
	if !apierrors.IsConflict(err) {
		return a.handlePoolWriteFailure(ctx, p, now, err)
	}
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	live, err := p.Key.GetPool(ctx, a.Live)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the watch brings its end
	}
	m := p.Lock()
	defer m.Unlock()
	if grants.ReadBackFor(m.Base.Pool, m.Base.Pool, live).Outcome() != term.TermLost {
		m.SetBasePool(live)
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	a.status.loseTerm(m)
	return reconcile.Result{RequeueAfter: m.Term.Takeover.Backoff}, nil
}

// handlePoolWriteFailure ends a reconcile in which the pool itself could not be written. Where the API server refuses
// the write for good, or this manager may not take the pool over, the waiting claims get the refusal, and the write is
// tried again after a pause. Any other error is returned, for a backoff.
func (a *Allocator) handlePoolWriteFailure(ctx context.Context, p *grants.Pool, now time.Time, err error) (reconcile.Result, error) {
	var unknown unknownKindError
	m := p.Lock()
	switch {
	case errors.As(err, &unknown):
		m.Term.RecordUnknownKind(unknown.kind, now)
		m.Unlock()
		a.queue.logFailure(ctx, p.Key, err, "Failed to take a pool over; retrying")
	case term.IsPermanentRefusal(err):
		m.Term.RecordWriteRefusal(err, now)
		m.Unlock()
		a.reports.recordPoolRefusedEvent(p)
	default:
		m.Unlock()
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: a.refuseAllWaiting(ctx, p, now)}, nil
}

// isPoolWriteRefused reports whether the pool can do nothing but report a refusal: it should be taken over, or get our
// finalizer, and the API server has just refused that write.
func (a *Allocator) isPoolWriteRefused(p *grants.Pool, now time.Time) bool {
	m := p.Lock()
	defer m.Unlock()
	return m.Term.IsWriteRefused(now) && (!m.Term.Holder || !controllerutil.ContainsFinalizer(m.Base.Pool, v1alpha1.PoolFinalizer))
}

// refuseAllWaiting writes to the waiting claims that the pool cannot be written, and returns the delay until the next
// try.
func (a *Allocator) refuseAllWaiting(ctx context.Context, p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	m.BeginReconcile()
	refused := m.Planner.RefusalsForPending(now, a.admission.newAdmissionFunc(ctx, m, now))
	m.Unlock()
	for c, refusal := range refused {
		a.jobs.refuseClaimant(p, c, *refusal)
	}
	m = p.Lock()
	defer m.Unlock()
	return m.EndReconcile(now, m.NextWakeDelay(now, m.Queues.NextRetryDelay(now)))
}

// resultForError turns the end of a term or a changed spec into a retry without an error, the end of the pool into a
// wait for the watch event that shows it, and every other error into a backoff.
func (a *Allocator) resultForError(p *grants.Pool, err error) (reconcile.Result, error) {
	var refused *commitRefusedError
	switch {
	case errors.As(err, &refused):
		a.reports.recordPoolRefusedEvent(p)
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil // claims get a refusal; the commit has its own time
	case errors.Is(err, errTermLost), errors.Is(err, errPoolChanged):
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	case errors.Is(err, errPoolGone):
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

// reconcileBatch plans and commits one batch and dispatches the writes. It returns the delay until the next reconcile
// if nothing happens before.
func (a *Allocator) reconcileBatch(ctx context.Context, p *grants.Pool, now time.Time) (time.Duration, error) {
	m := p.Lock()
	mustWait := now.Before(m.Term.CommitAfter)
	if !mustWait {
		m.Held.ReleaseHeldRanges()
	}
	admission := a.admission.newAdmissionFunc(ctx, m, now)
	m.BeginReconcile()
	m.Releases.ExpireCooling(now)
	m.EndAdoption(now)
	m.Claimants.Gone.Rotate(now)
	before := m.Base.Pool
	m.Carved.ResetShortfall()
	m.Growth.DrainLostBlocks(now, a.ShrinkGrace)
	granted, refused := a.planBatch(m, now, admission)
	m.Grants.EndBlockedGrants(admission)
	m.Growth.PlanBlocks(now, a.ShrinkGrace)
	cooled := !mustWait && m.Releases.CoolReleases(now, a.admission.newReleaseAdmissionFunc(ctx, m))
	freed := m.Queues.HasBlockingGrant()
	next := m.PrepareCommit(now)
	differs, urgent := next.HasChanges(m.Base.Pool)
	due := granted > 0 || cooled || freed || m.Grants.HasStaleGrants(now) || urgent || (differs && now.Sub(m.Term.LastCommitAt) >= confirmCommitDelay)
	m.Unlock()

	reopened, committed := false, due && !mustWait
	if committed {
		if err := a.status.commitGrants(ctx, p, next); err != nil {
			return 0, err
		}
		// A commit counts the grants that it ends: the next one removes those of dead claims from the counts.
		differs = len(next.ConfirmedUIDs) > 0
		reopened = grants.BlocksChanged(before, next.Pool)
		a.relations.enqueueParent(before, next.Pool)
		metrics.GrantedAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Add(float64(granted))
	}
	a.reports.reportPoolStatus(p, before)
	for c, refusal := range refused {
		a.jobs.refuseClaimant(p, c, *refusal)
	}
	wait, err := a.dispatchJobs(ctx, p, now, admission)
	if err != nil {
		return 0, err
	}
	wait = term.MinWait(wait, a.requests.dispatchBlockRequests(p, now))
	a.jobs.dispatchPendingConditions(ctx, p, admission)
	wait = term.MinWait(wait, a.owners.sweepOrphans(ctx, p, now))
	m = p.Lock()
	defer m.Unlock()
	if reopened || (freed && committed && m.Queues.Waiting.Len() > 0) {
		wait = time.Millisecond // for the claims for which nothing was free before the commit
	}
	if m.Grants.ActiveGrantCount() > 0 || (!mustWait && (differs || m.Grants.HasConfirmedGrant())) {
		wait = term.MinWait(wait, confirmCommitDelay)
	}
	return m.EndReconcile(now, m.NextWakeDelay(now, wait)), nil
}

// planBatch grants to the waiting claims, unless nothing can be committed now, or enough is being written. It returns
// how many claims were granted something, and why others were not.
func (a *Allocator) planBatch(m *grants.PoolState, now time.Time, admission grants.AdmissionFunc) (granted int, refused map[*grants.Claimant]*grants.Refusal) {
	if m.Term.IsWriteRefused(now) {
		return 0, m.Planner.RefusalsForPending(now, admission)
	}
	working, room := m.Grants.ActiveGrantCount(), min(maxGrantsPerCommit, grants.MaxInFlightGrants-m.Grants.UnconfirmedGrantCount())
	ahead := working > planningLowWaterMark || (working >= a.Writers && m.Queues.Waiting.Len() < maxGrantsPerCommit/2)
	if annotations.HasPaused(m.Base.Pool) || (room <= 0 && !m.Grants.HasStuckGrants()) || ahead {
		return 0, nil
	}
	begun := a.now()
	m.Conditions.ResetBlockingClusters() // the plan records those that still wait
	granted, refused = m.Planner.PlanGrants(now, room, admission)
	metrics.PlanningSeconds.WithLabelValues().Add(a.now().Sub(begun).Seconds())
	return granted, refused
}

// dispatchJobs dispatches the writes that are due. It returns how long until the next one that has to wait is due.
func (a *Allocator) dispatchJobs(ctx context.Context, p *grants.Pool, now time.Time, admission grants.AdmissionFunc) (time.Duration, error) {
	m := p.Lock()
	todo, wait := m.ListDueWrites(now, grants.MaxJobs-m.Queues.ActiveJobs, a.OrphanGrace, admission, a.admission.newReleaseAdmissionFunc(ctx, m))
	base, holder := m.Base.Pool, m.Term.Holder
	var moves grants.UnfinishedMoves
	if holder || base == nil {
		room := grants.MaxJobs - m.Queues.ActiveJobs - len(todo.ServeClaimants) - len(todo.ReleaseClaimants) - len(todo.ResolveOrphans)
		moves = m.Moves.UnfinishedMoves(now, room)
	}
	m.Unlock()

	if len(todo.ReleaseClaimants)+len(moves.Claimants)+len(moves.Addresses) > 0 && holder {
		// Only the holder removes finalizers (R6): a live read right before, once for all of them.
		timed, cancel := withRequestTimeout(ctx)
		live, err := p.Key.GetPool(timed, a.Live)
		cancel()
		if err != nil {
			return 0, client.IgnoreNotFound(err)
		}
		if grants.ReadBackFor(base, base, live).Outcome() == term.TermLost {
			m = p.Lock()
			defer m.Unlock()
			a.status.loseTerm(m)
			return 0, errTermLost
		}
	}
	m = p.Lock()
	defer m.Unlock()
	// Busy from now on, and not before: the term may have ended in between.
	for _, uid := range todo.ServeClaimants {
		a.jobs.startClaimantJob(m, uid, serveJob, a.jobs.serveClaimant)
	}
	for _, uid := range todo.ReleaseClaimants {
		a.jobs.startClaimantJob(m, uid, releaseJob, a.jobs.releaseClaimant)
	}
	for _, addr := range todo.ResolveOrphans {
		if o := m.Addresses.Orphans[addr.Key()]; o != nil && o.UID == addr.UID && !o.Busy {
			o.Begin()
			m.Queues.BeginJob()
			a.queue.submitJob(p.Key, func(ctx context.Context) { a.addresses.runOrphanJob(ctx, p, addr) })
		}
	}
	for _, uid := range moves.Claimants {
		a.jobs.startClaimantJob(m, uid, releaseJob, a.jobs.finishClaimantMove)
	}
	for _, addr := range moves.Addresses {
		m.Queues.BeginJob()
		a.queue.submitJob(p.Key, func(ctx context.Context) { a.addresses.finishAddressMove(ctx, p, addr) })
	}
	wait = term.MinWait(wait, moves.Wait)
	return wait, nil
}

// reconcileMissingPool serves the claims of a pool that does not exist, or that has lost our finalizer while another
// controller's keeps it: they get a refusal, and their addresses are released when they are deleted. No manager can
// grant from that pool.
func (a *Allocator) reconcileMissingPool(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, refusal *grants.Refusal) (reconcile.Result, error) {
	m := p.Lock()
	if m.ClearBasePool() {
		metrics.DeletePoolGauges(p.Key.Kind, p.Key.Namespace, p.Key.Name)
	}
	a.relations.withdrawDeclaration(p.Key)
	m.Conditions.ResetBlockingClusters()
	m.BeginReconcile()
	m.Claimants.Gone.Rotate(a.now())
	admission := a.admission.newAdmissionFunc(ctx, m, a.now())
	var toRefuse []*grants.Claimant
	m.Queues.Waiting.Scan(func(c *grants.Claimant) bool {
		admitted := admission(c)
		if c.IsDue(a.now()) && !admitted.Wait && admitted.Refusal == nil && !c.HasPublished(*refusal) {
			toRefuse = append(toRefuse, c)
		}
		return true
	})
	m.Unlock()
	if len(toRefuse) > 0 {
		// A pool that has lost our finalizer while another controller's keeps it exists, and no manager grants from it.
		if seen == nil {
			if exists, err := a.poolExists(ctx, p.Key); exists || err != nil {
				return reconcile.Result{}, err // the cache is behind; its watch brings the pool
			}
		}
		a.jobs.refuseClaimants(p, toRefuse, refusal)
	}
	wait, err := a.dispatchJobs(ctx, p, a.now(), admission)
	wait = term.MinWait(wait, a.requests.dispatchBlockRequests(p, a.now()))
	a.jobs.dispatchPendingConditions(ctx, p, admission)
	m = p.Lock()
	wait = m.EndReconcile(a.now(), wait)
	m.Unlock()
	a.pools.dropUnusedPool(p)
	return reconcile.Result{RequeueAfter: wait}, err
}

// poolExists reports, by a live read, whether a pool exists.
func (a *Allocator) poolExists(ctx context.Context, key pools.Key) (bool, error) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	_, err := key.GetPool(ctx, a.Live)
	return err == nil, client.IgnoreNotFound(err)
}
