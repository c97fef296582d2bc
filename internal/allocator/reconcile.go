package allocator

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Reconcile brings one pool forward: it updates the state of the pool, takes the pool over, plans, commits and
// dispatches writes. It must not run twice at once for one pool. The pool in seen comes from the cache; nil means that
// it does not exist.
func (a *Allocator) Reconcile(ctx context.Context, key pools.Key, seen v1alpha1.Pool) (reconcile.Result, error) {
	p := a.getOrCreatePool(key)
	now := a.now()
	if !a.isInShard(key) {
		a.observePoolOnly(p, seen, now)
		return reconcile.Result{}, nil
	}
	if refusal := a.refusalIfUnserved(key, seen); refusal != nil {
		return a.reconcileUnservedPool(ctx, p, seen, refusal)
	}
	if seen == nil || pools.HasEnded(seen) {
		return a.reconcileMissingPool(ctx, p, seen, a.missingPoolRefusal(ctx, p.Key))
	}
	m := p.Lock()
	m.Queues.NextReconcileAt = time.Time{} // until this reconcile is over, a failure enqueues the pool
	if m.RefreshBasePool(seen, a.ManagerID, now) {
		countLostTerm(p.Key)
	}
	m.Quotas.Limit, m.Quarantine.ManagementCluster = a.newQuotaLimits(ctx), a.ManagementCluster
	unanswered := m.Record.PendingCommit != nil
	m.Unlock()
	if unanswered {
		if err := a.sendCommit(ctx, p); err != nil {
			return a.resultForError(p, err)
		}
	}
	m = p.Lock()
	if m.Record.TakeRevalidation() {
		a.loseTerm(m)
	}
	holder := m.Record.Holder
	base := m.Base.Pool
	m.Unlock()
	a.publishDeclaration(base) // whichever manager holds it
	parent := a.parentForPool(base)
	m = p.Lock()
	m.Carved.Parent = parent
	a.updateOverlap(m)
	a.enqueueChildren(m)
	m.Unlock()
	a.enqueueOlderPools(p)
	lookupWait := a.startMachineLookups(p, now)
	if a.isPoolWriteRefused(p, now) {
		return minWaitResult(a.refuseAllWaiting(ctx, p, now), lookupWait), nil
	}
	if !holder {
		m = p.Lock()
		may, wait := m.MayTakeOver(now, a.Elected, a.ShrinkGrace, a.newAdmissionFunc(ctx, m, now), a.newReleaseAdmissionFunc(ctx, m))
		m.Record.TakeoverChecked = m.Record.TakeoverChecked || !may
		m.Claimants.Gone.Rotate(now)
		m.Unlock()
		if !may {
			return minWaitResult(wait, lookupWait), nil
		}
		if err := a.takeOverPool(ctx, p); err != nil {
			return a.handleTakeOverFailure(ctx, p, now, err)
		}
	}
	if done, err := a.reconcilePoolMetadata(ctx, p); done || err != nil {
		return a.handlePoolWriteFailure(ctx, p, now, err)
	}
	if err := a.checkArrival(ctx, p); err != nil {
		return a.resultForError(p, err)
	}
	a.excludeSharedRanges(ctx, p)

	next, err := a.reconcileBatch(ctx, p, now)
	if err != nil {
		return a.resultForError(p, err)
	}
	a.enqueueOlderPools(p)
	return minWaitResult(next, lookupWait), nil
}

// newQuotaLimits returns a lookup of how many claims of a Cluster may have an address. It reads each Cluster once.
func (a *Allocator) newQuotaLimits(ctx context.Context) func(types.NamespacedName) (int64, bool) {
	if a.NodeQuota == nil {
		return nil
	}
	type limit struct {
		n       int64
		limited bool
	}
	known := map[types.NamespacedName]limit{}
	return func(cluster types.NamespacedName) (int64, bool) {
		l, ok := known[cluster]
		if !ok {
			l.n, l.limited = a.NodeQuota(ctx, cluster)
			known[cluster] = l
		}
		return l.n, l.limited
	}
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
	a.loseTerm(m)
	return reconcile.Result{RequeueAfter: m.Record.Takeover.Backoff}, nil
}

// handlePoolWriteFailure ends a reconcile in which the pool itself could not be written. Where the API server refuses
// the write for good, the waiting claims get the refusal, and the write is tried again after a pause. Any other error
// is returned, for a backoff.
func (a *Allocator) handlePoolWriteFailure(ctx context.Context, p *grants.Pool, now time.Time, err error) (reconcile.Result, error) {
	if !term.IsPermanentRefusal(err) {
		return reconcile.Result{}, err
	}
	m := p.Lock()
	m.Record.RecordWriteRefusal(err, now)
	m.Unlock()
	a.recordPoolRefusedEvent(p)
	return reconcile.Result{RequeueAfter: a.refuseAllWaiting(ctx, p, now)}, nil
}

// isPoolWriteRefused reports whether the pool can do nothing but report a refusal: it should be taken over, or get our
// finalizer, and the API server has just refused that write.
func (a *Allocator) isPoolWriteRefused(p *grants.Pool, now time.Time) bool {
	m := p.Lock()
	defer m.Unlock()
	return m.Record.IsWriteRefused(now) && (!m.Record.Holder || !controllerutil.ContainsFinalizer(m.Base.Pool, v1alpha1.PoolFinalizer))
}

// refuseAllWaiting writes to the waiting claims that the pool cannot be written, and returns the delay until the next
// try.
func (a *Allocator) refuseAllWaiting(ctx context.Context, p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	m.BeginReconcile()
	refused := m.Planner.RefusalsForPending(now, a.newAdmissionFunc(ctx, m, now))
	m.Unlock()
	for c, refusal := range refused {
		a.refuseClaimant(p, c, *refusal)
	}
	m = p.Lock()
	defer m.Unlock()
	return m.EndReconcile(now, m.NextWakeDelay(now, m.Queues.NextRetryDelay(now)))
}

// recordPoolRefusedEvent records an event that a pool cannot be written.
func (a *Allocator) recordPoolRefusedEvent(p *grants.Pool) {
	m := p.Lock()
	base, refusal := m.Base.Pool, m.Record.WriteRefusal
	m.Unlock()
	a.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "PoolStatusRefused", "Allocate", "%s", refusal.Message)
}

// refusalIfUnserved returns why this manager does not serve a pool; nil means that it does. A manager that watches one
// namespace does not see the addresses of the others, so it can regard no address of a global pool as free; nor can a
// manager that leaves the pools of the in-cluster provider to that provider, for a pool that mirrors one.
func (a *Allocator) refusalIfUnserved(key pools.Key, pool v1alpha1.Pool) *grants.Refusal {
	_, mirror := incluster.RefForMirror(key.Kind, key.Name)
	mirror = mirror && (pool == nil || !incluster.IsEnded(pool))
	switch {
	case !key.IsPoolKind():
		return UnknownPoolKindRefusal(key)
	case a.Namespace != "" && key.Kind == v1alpha1.GlobalNetworkPoolKind:
		return grants.PoolNotReady("%s is not served by this manager, which watches only namespace %s; "+
			"run a manager without --namespace for global pools", key, a.Namespace)
	case mirror && !a.InClusterPools:
		return grants.PoolNotReady("%s mirrors a pool of the in-cluster provider, and this manager runs without --serve-in-cluster-pools; "+
			"add the component in-cluster-pools, or hand the pools back with kubectl butler-ipam hand-back", key)
	}
	return nil
}

// resultForError turns the end of a term or a changed spec into a retry without an error, the end of the pool into a
// wait for the watch event that shows it, and every other error into a backoff.
func (a *Allocator) resultForError(p *grants.Pool, err error) (reconcile.Result, error) {
	var refused *commitRefusedError
	switch {
	case errors.As(err, &refused):
		a.recordPoolRefusedEvent(p)
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
	mustWait := now.Before(m.Record.CommitAfter)
	if !mustWait {
		m.Held.ReleaseHeldRanges()
	}
	admission := a.newAdmissionFunc(ctx, m, now)
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
	cooled := !mustWait && m.Releases.CoolReleases(now, a.newReleaseAdmissionFunc(ctx, m))
	freed := m.Queues.HasBlockingGrant()
	next := m.PrepareCommit(now)
	differs, urgent := next.HasChanges(m.Base.Pool)
	due := granted > 0 || cooled || freed || m.Grants.HasStaleGrants(now) || urgent || (differs && now.Sub(m.Record.LastCommitAt) >= confirmCommitDelay)
	m.Unlock()

	reopened, committed := false, due && !mustWait
	if committed {
		if err := a.commitGrants(ctx, p, next); err != nil {
			return 0, err
		}
		// A commit counts the grants that it ends: the next one removes those of dead claims from the counts.
		differs = len(next.ConfirmedUIDs) > 0
		reopened = grants.BlocksChanged(before, next.Pool)
		a.enqueueParent(before, next.Pool)
		metrics.GrantedAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Add(float64(granted))
	}
	a.reportPoolStatus(p, before)
	for c, refusal := range refused {
		a.refuseClaimant(p, c, *refusal)
	}
	wait, err := a.dispatchJobs(ctx, p, now, admission)
	if err != nil {
		return 0, err
	}
	if d := a.dispatchBlockRequests(p, now); d > 0 {
		wait = grants.MinWait(wait, d)
	}
	a.dispatchPendingConditions(ctx, p, admission)
	if d := a.sweepOrphans(ctx, p, now); d > 0 {
		wait = grants.MinWait(wait, d)
	}
	m = p.Lock()
	defer m.Unlock()
	if reopened || (freed && committed && m.Queues.Waiting.Len() > 0) {
		wait = time.Millisecond // for the claims for which nothing was free before the commit
	}
	if m.Grants.ActiveGrantCount() > 0 || (!mustWait && (differs || m.Grants.HasConfirmedGrant())) {
		wait = grants.MinWait(wait, confirmCommitDelay)
	}
	return m.EndReconcile(now, m.NextWakeDelay(now, wait)), nil
}

// planBatch grants to the waiting claims, unless nothing can be committed now, or enough is being written. It returns
// how many claims were granted something, and why others were not.
func (a *Allocator) planBatch(m *grants.PoolState, now time.Time, admission grants.AdmissionFunc) (granted int, refused map[*grants.Claimant]*grants.Refusal) {
	if m.Record.IsWriteRefused(now) {
		return 0, m.Planner.RefusalsForPending(now, admission)
	}
	working, room := m.Grants.ActiveGrantCount(), min(maxGrantsPerCommit, grants.MaxInFlightGrants-m.Grants.UnconfirmedGrantCount())
	ahead := working > planningLowWaterMark || (working >= a.Writers && m.Queues.Waiting.Len() < maxGrantsPerCommit/2)
	if annotations.HasPaused(m.Base.Pool) || (room <= 0 && !m.Grants.HasStuckGrants()) || ahead {
		return 0, nil
	}
	begun := a.now()
	clear(m.Conditions.BlockingClusters) // the plan records those that still wait
	granted, refused = m.Planner.PlanGrants(now, room, admission)
	metrics.PlanningSeconds.WithLabelValues().Add(a.now().Sub(begun).Seconds())
	return granted, refused
}

// reconcileMissingPool serves the claims of a pool that does not exist, or that has lost our finalizer while another
// controller's keeps it: they get a refusal, and their addresses are released when they are deleted. No manager can
// grant from that pool.
func (a *Allocator) reconcileMissingPool(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, refusal *grants.Refusal) (reconcile.Result, error) {
	m := p.Lock()
	if m.ClearBasePool() {
		metrics.DeletePoolGauges(p.Key.Kind, p.Key.Namespace, p.Key.Name)
	}
	a.withdrawDeclaration(p.Key)
	clear(m.Conditions.BlockingClusters)
	m.BeginReconcile()
	m.Claimants.Gone.Rotate(a.now())
	admission := a.newAdmissionFunc(ctx, m, a.now())
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
		a.refuseClaimants(p, toRefuse, refusal)
	}
	wait, err := a.dispatchJobs(ctx, p, a.now(), admission)
	if d := a.dispatchBlockRequests(p, a.now()); d > 0 {
		wait = grants.MinWait(wait, d)
	}
	a.dispatchPendingConditions(ctx, p, admission)
	m = p.Lock()
	wait = m.EndReconcile(a.now(), wait)
	m.Unlock()
	a.dropUnusedPool(p)
	return reconcile.Result{RequeueAfter: wait}, err
}

func (a *Allocator) refuseClaimants(p *grants.Pool, claims []*grants.Claimant, refusal *grants.Refusal) {
	for _, c := range claims {
		a.refuseClaimant(p, c, *refusal)
	}
}

// poolExists reports, by a live read, whether a pool exists.
func (a *Allocator) poolExists(ctx context.Context, key pools.Key) (bool, error) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	_, err := key.GetPool(ctx, a.Live)
	return err == nil, client.IgnoreNotFound(err)
}

// reconcilePoolMetadata keeps our finalizer on a pool while it lives, the mark of the management cluster, and the names
// of Clusters. It removes the finalizer from a deleted pool when no object has an address of it any more. gone reports
// whether the pool is gone, or has changed, so that the reconcile ends.
func (a *Allocator) reconcilePoolMetadata(ctx context.Context, p *grants.Pool) (gone bool, err error) {
	now := a.now()
	m := p.Lock()
	base := m.Base.Pool
	deleting, moved := base.GetDeletionTimestamp() != nil, ending.IsMoved(base)
	used := deleting && !moved && (m.Space.Ledger.Counts().Owners > 0 || len(m.Grants.ByClaimant) > 0 || m.Carved.HasBlocks())
	mark := !deleting && m.Quarantine.NeedsManagementClusterMark(base)
	mayName := !deleting && !m.Quarantine.IsArriving()
	undone := now.Before(m.Record.AddFinalizerAfter)
	m.Unlock()
	var names string
	if mayName {
		names = a.nextClustersAnnotation(ctx, base)
	}
	if (controllerutil.ContainsFinalizer(base, v1alpha1.PoolFinalizer) != deleting && !mark && names == "") || (undone && !deleting) {
		return false, nil
	}
	if deleting && !moved { // a pool that clusterctl moves away goes as it is
		if used {
			return false, nil
		}
		// The watch may lag behind an object that another manager wrote: the list decides.
		found, err := a.poolLister.listPool(ctx, p.Key)
		if err != nil {
			return false, err
		}
		for _, c := range found.Claimants {
			used = used || c.HasRecord() || c.PublishedRange.IsValid()
		}
		for _, b := range found.Blocks {
			// A block in another namespace that is not open, or that was carved for another pool of the name, ends
			// without this pool.
			used = used || (b.HasFinalizer && !b.InOtherNamespace && base.PoolSpec().Carve != nil)
		}
		if used || len(found.Addresses) > 0 {
			return false, nil
		}
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	if names != "" {
		annotations.AddAnnotations(next, map[string]string{v1alpha1.ClustersAnnotation: names})
	}
	if deleting {
		controllerutil.RemoveFinalizer(next, v1alpha1.PoolFinalizer)
	} else {
		controllerutil.AddFinalizer(next, v1alpha1.PoolFinalizer)
	}
	if mark {
		m = p.Lock()
		m.Quarantine.MarkManagementCluster(next)
		m.Unlock()
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	timedCtx, cancel := withRequestTimeout(ctx)
	defer cancel()
	if err := a.Client.Patch(timedCtx, next, patch); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return true, nil // the watch brings the newer pool
		}
		return false, err
	}
	m = p.Lock()
	defer m.Unlock()
	m.SetBasePool(next)
	if !deleting && !controllerutil.ContainsFinalizer(next, v1alpha1.PoolFinalizer) {
		m.Record.AddFinalizerAfter = now.Add(term.MaxRetryPause)
		undone := &grants.WriteRevertedError{ObjectName: p.Key.String()}
		a.Recorder.Eventf(next, nil, corev1.EventTypeWarning, "WriteUndone", "Allocate", "%s", undone.Error())
	}
	m.Quarantine.Arrival.OpenedManually = m.Quarantine.Arrival.OpenedManually || (mark && m.Quarantine.Arrival.MissingProof != "")
	return deleting, nil
}

func claimantSnapshot(p *grants.Pool, uid types.UID) (grants.Claimant, bool) {
	m := p.Lock()
	defer m.Unlock()
	c := m.Claimants.ByUID[uid]
	if c == nil {
		return grants.Claimant{}, false
	}
	return *c, true
}
