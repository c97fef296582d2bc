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

// Reconcile brings one pool forward: learn, take over, plan, commit, hand out the writes. It must
// not run twice at once for one pool. The pool comes from the cache; nil: it does not exist.
func (a *Allocator) Reconcile(ctx context.Context, key pools.Key, seen v1alpha1.Pool) (reconcile.Result, error) {
	p := a.pool(key)
	now := a.now()
	if !a.serves(key) {
		a.observeOnly(p, seen, now)
		return reconcile.Result{}, nil
	}
	if no := a.unserved(key, seen); no != nil {
		return a.leave(ctx, p, seen, no)
	}
	if seen == nil || pools.HasEnded(seen) {
		return a.withoutPool(ctx, p, seen, a.missing(ctx, p.Key))
	}
	m := p.Lock()
	m.NextLook = time.Time{} // until this is over, what fails wakes the pool
	if m.RefreshBase(seen, a.ID, now) {
		countLostTerm(p.Key)
	}
	m.Limits, m.ManagementCluster = a.limits(ctx), a.ManagementCluster
	unanswered := m.Unanswered != nil
	m.Unlock()
	if unanswered {
		if err := a.sendCommit(ctx, p); err != nil {
			return a.outcome(p, err)
		}
	}
	m = p.Lock()
	if m.TakeSuspicion() {
		a.loseTerm(m)
	}
	holder := m.Holder
	base := m.Base
	m.Unlock()
	a.publish(base) // whichever manager holds it
	parent := a.parentOf(base)
	m = p.Lock()
	m.Carved.Parent = parent
	a.findOverlap(m)
	a.tellChildren(m)
	m.Unlock()
	a.tellElders(p)
	look := a.seekMachines(p, now)
	if a.isShut(p, now) {
		return soonest(a.tellShut(ctx, p, now), look), nil
	}
	if !holder {
		m = p.Lock()
		may, wait := m.MayTakeOver(now, a.Elected, a.ShrinkGrace, a.admission(ctx, m, now), a.releases(ctx, m))
		m.TriedOnce = m.TriedOnce || !may
		m.RotateGone(now)
		m.Unlock()
		if !may {
			return soonest(wait, look), nil
		}
		if err := a.takeOver(ctx, p); err != nil {
			return a.takeOverFailed(ctx, p, now, err)
		}
	}
	if done, err := a.finalize(ctx, p); done || err != nil {
		return a.shut(ctx, p, now, err)
	}
	if err := a.seeArrival(ctx, p); err != nil {
		return a.outcome(p, err)
	}
	a.keepApart(ctx, p)

	next, err := a.reconcileBatch(ctx, p, now)
	if err != nil {
		return a.outcome(p, err)
	}
	a.tellElders(p)
	return soonest(next, look), nil
}

// limits returns what each Cluster may have, read once.
func (a *Allocator) limits(ctx context.Context) func(types.NamespacedName) (int64, bool) {
	if a.NodeQuota == nil {
		return nil
	}
	type limit struct {
		n       int64
		limited bool
	}
	known := map[types.NamespacedName]limit{}
	return func(cluster types.NamespacedName) (int64, bool) {
		l, is := known[cluster]
		if !is {
			l.n, l.limited = a.NodeQuota(ctx, cluster)
			known[cluster] = l
		}
		return l.n, l.limited
	}
}

// takeOverFailed deals with a takeover that failed: an edit of the pool by a user does not end our term, another
// manager's does.
func (a *Allocator) takeOverFailed(ctx context.Context, p *grants.Pool, now time.Time, err error) (reconcile.Result, error) {
	if !apierrors.IsConflict(err) {
		return a.shut(ctx, p, now, err)
	}
	ctx, cancel := timed(ctx)
	defer cancel()
	live, err := p.Key.Get(ctx, a.Live)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the watch tells of its end
	}
	m := p.Lock()
	defer m.Unlock()
	if grants.VerdictOn(m.Base, m.Base, live) != term.Lost {
		m.SetBase(live)
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	a.loseTerm(m)
	return reconcile.Result{RequeueAfter: m.Backoff}, nil
}

// shut ends a turn in which the pool itself could not be written: where the API server refuses that for good, those who
// wait are told, and it is tried again after a pause. Whatever else is an error, with a backoff.
func (a *Allocator) shut(ctx context.Context, p *grants.Pool, now time.Time, err error) (reconcile.Result, error) {
	if !term.RefusedForGood(err) {
		return reconcile.Result{}, err
	}
	m := p.Lock()
	m.NoteRefused(err, now)
	m.Unlock()
	a.tellPoolRefused(p)
	return reconcile.Result{RequeueAfter: a.tellShut(ctx, p, now)}, nil
}

// isShut reports whether nothing is done for a pool but to say so: it was to be taken over, or to get our finalizer, and the
// API server has just refused that.
func (a *Allocator) isShut(p *grants.Pool, now time.Time) bool {
	m := p.Lock()
	defer m.Unlock()
	return m.IsRefused(now) && (!m.Holder || !controllerutil.ContainsFinalizer(m.Base, v1alpha1.PoolFinalizer))
}

// tellShut informs those who wait that the pool cannot be written, and returns when to come back.
func (a *Allocator) tellShut(ctx context.Context, p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	m.BeginTurn()
	refused := m.RefuseAll(now, a.admission(ctx, m, now))
	m.Unlock()
	for c, no := range refused {
		a.refuse(p, c, *no)
	}
	m = p.Lock()
	defer m.Unlock()
	return m.ComeBack(now, m.NextWake(now, m.NextRetry(now)))
}

// tellPoolRefused records that a pool cannot be written.
func (a *Allocator) tellPoolRefused(p *grants.Pool) {
	m := p.Lock()
	base, no := m.Base, m.Refusal
	m.Unlock()
	a.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "PoolStatusRefused", "Allocate", "%s", no.Message)
}

// unserved tells why a pool is not ours, if so. A manager that watches one namespace does not see the addresses of
// the others, so it can call none of a global pool's free; nor can one that leaves the pools of the in-cluster
// provider to that, of a pool that mirrors one.
func (a *Allocator) unserved(key pools.Key, is v1alpha1.Pool) *grants.Refusal {
	_, mirror := incluster.MirroredBy(key.Kind, key.Name)
	mirror = mirror && (is == nil || !incluster.Ended(is))
	switch {
	case !key.IsPool():
		return NoSuchKind(key)
	case a.Namespace != "" && key.Kind == v1alpha1.GlobalNetworkPoolKind:
		return grants.NotReady("%s is not served by this manager, which watches only namespace %s; "+
			"run a manager without --namespace for global pools", key, a.Namespace)
	case mirror && !a.InClusterPools:
		return grants.NotReady("%s mirrors a pool of the in-cluster provider, and this manager runs without --serve-in-cluster-pools; "+
			"add the component in-cluster-pools, or hand the pools back with kubectl butler-ipam hand-back", key)
	}
	return nil
}

// outcome turns the end of a term or a moved spec into a quiet retry, the end of the pool into a wait for the watch
// that shows it, and everything else into backoff.
func (a *Allocator) outcome(p *grants.Pool, err error) (reconcile.Result, error) {
	var refused *refusedCommit
	switch {
	case errors.As(err, &refused):
		a.tellPoolRefused(p)
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil // the claims are told; the commit has its own time
	case errors.Is(err, errTermLost), errors.Is(err, errMoved):
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	case errors.Is(err, errGone):
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

// reconcileBatch plans and commits one batch and dispatches what is to be written. It returns when to come
// back if nothing happens before.
func (a *Allocator) reconcileBatch(ctx context.Context, p *grants.Pool, now time.Time) (time.Duration, error) {
	m := p.Lock()
	mustWait := now.Before(m.CommitAfter)
	if !mustWait {
		m.ReleaseHeld()
	}
	admission := a.admission(ctx, m, now)
	m.BeginTurn()
	m.ExpireCooling(now)
	m.EndAdoption(now)
	m.RotateGone(now)
	before := m.Base
	m.ForgetLack()
	m.StateLost(now, a.ShrinkGrace)
	granted, refused := a.planBatch(m, now, admission)
	m.GiveBack(admission)
	m.TurnBlocks(now, a.ShrinkGrace)
	cooled := !mustWait && m.CoolReleases(now, a.releases(ctx, m))
	freed := m.Frees()
	next := m.Prepare(now)
	differs, urgent := next.News(m.Base)
	due := granted > 0 || cooled || freed || m.StaleGrants(now) || urgent || (differs && now.Sub(m.LastCommit) >= confirmDelay)
	m.Unlock()

	reopened, committed := false, due && !mustWait
	if committed {
		if err := a.commit(ctx, p, next); err != nil {
			return 0, err
		}
		// A commit counts the grants that it ends: what is left of dead claims is counted out by the next one.
		differs = len(next.Confirmed) > 0
		reopened = grants.BlocksTurned(before, next.Pool)
		a.tellParent(before, next.Pool)
		metrics.Grants.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Add(float64(granted))
	}
	a.report(p, before)
	for c, no := range refused {
		a.refuse(p, c, *no)
	}
	wait, err := a.dispatch(ctx, p, now, admission)
	if err != nil {
		return 0, err
	}
	if d := a.dispatchBlocks(p, now); d > 0 {
		wait = grants.Sooner(wait, d)
	}
	a.tellHeld(ctx, p, admission)
	if d := a.sweep(ctx, p, now); d > 0 {
		wait = grants.Sooner(wait, d)
	}
	m = p.Lock()
	defer m.Unlock()
	if reopened || (freed && committed && m.Pending.Len() > 0) {
		wait = time.Millisecond // for whom nothing was free before the commit
	}
	if m.Working() > 0 || (!mustWait && (differs || m.HasConfirmed())) {
		wait = grants.Sooner(wait, confirmDelay)
	}
	return m.ComeBack(now, m.NextWake(now, wait)), nil
}

// planBatch grants to those that wait, unless nothing can be committed now, or there is enough to write. It returns how
// many were granted something, and why others were not.
func (a *Allocator) planBatch(m *grants.Memory, now time.Time, admission grants.Admit) (granted int, refused map[*grants.Claimant]*grants.Refusal) {
	if m.IsRefused(now) {
		return 0, m.RefuseAll(now, admission)
	}
	working, room := m.Working(), min(maxBatch, grants.MaxInFlight-m.Unfinished())
	ahead := working > lowWater || (working >= a.Writers && m.Pending.Len() < maxBatch/2)
	if annotations.HasPaused(m.Base) || (room <= 0 && !m.IsStuck()) || ahead {
		return 0, nil
	}
	begun := a.now()
	clear(m.WaitingClusters) // those who still wait are noted by the plan
	granted, refused = m.Plan(now, room, admission)
	metrics.Planning.WithLabelValues().Add(a.now().Sub(begun).Seconds())
	return granted, refused
}

// withoutPool serves the claims of a pool that does not exist, or that our finalizer left while another's keeps it:
// they are told, and what they hold is released when they are deleted. Nobody can grant from such a pool.
func (a *Allocator) withoutPool(ctx context.Context, p *grants.Pool, seen v1alpha1.Pool, no *grants.Refusal) (reconcile.Result, error) {
	m := p.Lock()
	if m.UnsetBase() {
		metrics.ForgetPool(p.Key.Kind, p.Key.Namespace, p.Key.Name)
	}
	a.withdrawSpec(p.Key)
	clear(m.WaitingClusters)
	m.BeginTurn()
	m.RotateGone(a.now())
	admission := a.admission(ctx, m, a.now())
	var tell []*grants.Claimant
	m.Pending.Scan(func(c *grants.Claimant) bool {
		ruled := admission(c)
		if c.MayBeTried(a.now()) && !ruled.Waits && ruled.Refused == nil && !c.Shows(*no) {
			tell = append(tell, c)
		}
		return true
	})
	m.Unlock()
	if len(tell) > 0 {
		// A pool that lost our finalizer while another keeps it is there, and nobody grants from it.
		if seen == nil {
			if exists, err := a.exists(ctx, p.Key); exists || err != nil {
				return reconcile.Result{}, err // the cache is behind; its watch brings the pool
			}
		}
		a.tell(p, tell, no)
	}
	wait, err := a.dispatch(ctx, p, a.now(), admission)
	if d := a.dispatchBlocks(p, a.now()); d > 0 {
		wait = grants.Sooner(wait, d)
	}
	a.tellHeld(ctx, p, admission)
	m = p.Lock()
	wait = m.ComeBack(a.now(), wait)
	m.Unlock()
	a.drop(p)
	return reconcile.Result{RequeueAfter: wait}, err
}

func (a *Allocator) tell(p *grants.Pool, claims []*grants.Claimant, no *grants.Refusal) {
	for _, c := range claims {
		a.refuse(p, c, *no)
	}
}

// exists reads live whether there is a pool.
func (a *Allocator) exists(ctx context.Context, key pools.Key) (bool, error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	_, err := key.Get(ctx, a.Live)
	return err == nil, client.IgnoreNotFound(err)
}

// finalize keeps our finalizer on a pool while it lives, the mark of the management cluster, and the names of Clusters, and
// takes the finalizer off a deleted one when no object has an address of it any more. It reports whether the pool is
// gone.
func (a *Allocator) finalize(ctx context.Context, p *grants.Pool) (gone bool, err error) {
	now := a.now()
	m := p.Lock()
	base := m.Base
	deleting, moved := base.GetDeletionTimestamp() != nil, ending.IsMoved(base)
	used := deleting && !moved && (m.Ledger.Counts().Owners > 0 || len(m.Grants) > 0 || m.HasBlocks())
	mark := !deleting && m.IsUnmarked(base)
	mayName := !deleting && !m.Arrives()
	undone := now.Before(m.MarkAfter)
	m.Unlock()
	var names string
	if mayName {
		names = a.newClusters(ctx, base)
	}
	if (controllerutil.ContainsFinalizer(base, v1alpha1.PoolFinalizer) != deleting && !mark && names == "") || (undone && !deleting) {
		return false, nil
	}
	if deleting && !moved { // what clusterctl takes away goes as it is
		if used {
			return false, nil
		}
		// The watch may lag behind an object that another manager wrote: the list decides.
		found, err := a.lists.list(ctx, p.Key)
		if err != nil {
			return false, err
		}
		for _, c := range found.Claimants {
			used = used || c.HasRecord() || c.Shown.IsValid()
		}
		for _, b := range found.Blocks {
			// What is abroad and not open, or was carved for another pool of the name, ends without this one.
			used = used || (b.Protected && !b.Abroad && base.PoolSpec().Carve != nil)
		}
		if used || len(found.Attached) > 0 {
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
		m.Mark(next)
		m.Unlock()
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	timedCtx, cancel := timed(ctx)
	defer cancel()
	if err := a.Client.Patch(timedCtx, next, patch); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return true, nil // the watch brings the newer pool
		}
		return false, err
	}
	m = p.Lock()
	defer m.Unlock()
	m.SetBase(next)
	if !deleting && !controllerutil.ContainsFinalizer(next, v1alpha1.PoolFinalizer) {
		m.MarkAfter = now.Add(term.LastTry)
		undone := &grants.UndoneError{What: p.Key.String()}
		a.Recorder.Eventf(next, nil, corev1.EventTypeWarning, "WriteUndone", "Allocate", "%s", undone.Error())
	}
	m.Arriving.Opened = m.Arriving.Opened || (mark && m.Arriving.Lacks != "")
	return deleting, nil
}

func (a *Allocator) claimSnapshot(p *grants.Pool, uid types.UID) (grants.Claimant, bool) {
	m := p.Lock()
	defer m.Unlock()
	c := m.Claimants[uid]
	if c == nil {
		return grants.Claimant{}, false
	}
	return *c, true
}
