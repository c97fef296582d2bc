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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
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
	if no := a.unserved(key); no != nil {
		return a.leave(ctx, p, seen, no)
	}
	if seen == nil || (seen.GetDeletionTimestamp() != nil && !controllerutil.ContainsFinalizer(seen, v1alpha1.PoolFinalizer)) {
		return a.withoutPool(ctx, p, seen, a.missing(ctx, p.key))
	}
	m := p.lock()
	if m.refreshBase(seen, a.ID, now) {
		countLostTerm(p.key)
	}
	m.limits = a.limits(ctx)
	unanswered := m.unanswered != nil
	m.unlock()
	if unanswered {
		if err := a.sendCommit(ctx, p); err != nil {
			return a.outcome(p, err)
		}
	}
	m = p.lock()
	if m.takeSuspicion() {
		a.loseTerm(m)
	}
	holder := m.holder
	a.publishSpec(m.base) // whoever holds it
	a.findOverlap(m)
	m.unlock()
	a.tellElders(p)
	if !holder {
		m = p.lock()
		may, wait := m.mayTakeOver(now, a.Elected, a.admission(ctx, m, now), a.releases(ctx, m))
		m.triedOnce = m.triedOnce || !may
		m.rotateGone(now)
		m.unlock()
		if !may {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
		if err := a.takeOver(ctx, p); err != nil {
			return a.takeOverFailed(ctx, p, err)
		}
	}
	if done, err := a.finalize(ctx, p); done || err != nil {
		return reconcile.Result{}, err
	}
	a.keepApart(ctx, p)

	next, err := a.reconcileBatch(ctx, p, now)
	if err != nil {
		return a.outcome(p, err)
	}
	a.tellElders(p)
	return reconcile.Result{RequeueAfter: next}, nil
}

// takeSuspicion reports whether a job has found a reason to end the term.
func (p *memory) takeSuspicion() bool {
	was := p.termSuspect
	p.termSuspect = false
	return was && p.holder
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
func (a *Allocator) takeOverFailed(ctx context.Context, p *pool, err error) (reconcile.Result, error) {
	if !apierrors.IsConflict(err) {
		return reconcile.Result{}, err
	}
	ctx, cancel := timed(ctx)
	defer cancel()
	live, err := p.key.Get(ctx, a.Live)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the watch tells of its end
	}
	m := p.lock()
	defer m.unlock()
	if verdictOn(m.base, m.base, live) != termLost {
		m.setBase(live)
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	a.loseTerm(m)
	return reconcile.Result{RequeueAfter: m.backoff}, nil
}

// unserved tells why a pool is not ours, if so. A manager that watches one namespace does not see the addresses of
// the others, so it can call none of a global pool's free; nor can one that leaves the pools of the in-cluster
// provider to that, of a pool that mirrors one.
func (a *Allocator) unserved(key pools.Key) *refusal {
	_, mirror := incluster.MirroredBy(key.Kind, key.Name)
	switch {
	case !key.IsPool():
		return noSuchKind(key)
	case a.Namespace != "" && key.Kind == v1alpha1.GlobalNetworkPoolKind:
		return notReady("%s is not served by this manager, which watches only namespace %s; "+
			"run a manager without --namespace for global pools", key, a.Namespace)
	case mirror && !a.InClusterPools:
		return notReady("%s mirrors a pool of the in-cluster provider, and this manager runs without --serve-in-cluster-pools", key)
	}
	return nil
}

// outcome turns the end of a term or a moved spec into a quiet retry, the end of the pool into a wait for the watch
// that shows it, and everything else into backoff.
func (a *Allocator) outcome(p *pool, err error) (reconcile.Result, error) {
	var refused *refusedCommit
	switch {
	case errors.As(err, &refused):
		m := p.lock()
		base, no := m.base, m.refusal
		m.unlock()
		a.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "PoolStatusRefused", "Allocate", "%s", no.message)
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
func (a *Allocator) reconcileBatch(ctx context.Context, p *pool, now time.Time) (time.Duration, error) {
	m := p.lock()
	admission := a.admission(ctx, m, now)
	clear(m.toTell)
	m.expireCooling(now)
	m.endAdoption(now)
	m.rotateGone(now)
	before := m.base
	working, room := m.working(), min(maxBatch, maxInFlight-m.unfinished())
	granted, refused := 0, map[*claimant]*refusal{}
	if no := m.refusal; no != nil && now.Before(m.commitAfter) {
		m.pending.Scan(func(c *claimant) bool {
			if !admission(c).waits && c.shownRefusal() != *no {
				refused[c] = no
			}
			return true
		})
	} else if !annotations.HasPaused(m.base) && room > 0 && working <= lowWater && (working < a.Writers || m.pending.Len() >= maxBatch/2) {
		begun := a.now()
		clear(m.waitingClusters) // those who still wait are noted by the plan
		granted, refused = m.plan(now, room, admission)
		metrics.Planning.WithLabelValues().Add(a.now().Sub(begun).Seconds())
	}
	m.giveBack(admission)
	held := now.Before(m.commitAfter)
	cooled := !held && m.coolReleases(now, a.releases(ctx, m))
	freed := m.frees()
	next := m.prepare(now)
	differs, urgent := next.news(m.base)
	due := granted > 0 || cooled || freed || m.staleGrants(now) || urgent || (differs && now.Sub(m.lastCommit) >= confirmDelay)
	m.unlock()

	if due && !held {
		if err := a.commit(ctx, p, next); err != nil {
			return 0, err
		}
		// A commit counts the grants that it ends: what is left of dead claims is counted out by the next one.
		differs = len(next.confirmed) > 0
		metrics.Grants.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name).Add(float64(granted))
	}
	a.report(p, before)
	for c, no := range refused {
		a.refuse(p, c, *no)
	}
	wait, err := a.dispatch(ctx, p, now, admission)
	if err != nil {
		return 0, err
	}
	a.tellPauses(ctx, p, now, admission)
	if d := a.sweep(ctx, p, now); d > 0 {
		wait = sooner(wait, d)
	}
	m = p.lock()
	defer m.unlock()
	if freed && m.pending.Len() > 0 {
		wait = time.Millisecond // for whom nothing was free before the commit
	}
	if differs || len(m.grants) > 0 {
		wait = sooner(wait, confirmDelay)
	}
	for _, d := range []time.Duration{m.quarantineUntil.Sub(now), m.commitAfter.Sub(now), m.nextTrial(now)} {
		if d > 0 {
			wait = sooner(wait, d)
		}
	}
	for _, rest := range m.cooling.All() {
		wait = sooner(wait, max(rest.Until.Sub(now), time.Millisecond))
	}
	if m.outstanding != "" {
		wait = sooner(wait, time.Second)
	}
	return wait, nil
}

// frees reports whether the next commit ends a grant that holds up somebody: the release of its claim or,
// where the claim is gone, whoever waits for an address.
func (p *memory) frees() bool {
	for uid, g := range p.grants {
		if c := p.claimants[uid]; g.confirmed && ((c != nil && c.deleting) || (c == nil && p.pending.Len() > 0)) {
			return true
		}
	}
	return false
}

// sooner returns the shorter of two waits, of which 0 is none at all.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// refreshBase takes the pool as the cache shows it, if that is news. It reports whether that ends the term.
func (p *memory) refreshBase(seen v1alpha1.Pool, id string, now time.Time) (ends bool) {
	if p.base != nil && p.base.GetUID() == seen.GetUID() && !Newer(seen.GetResourceVersion(), p.base.GetResourceVersion()) {
		return false
	}
	if p.unanswered != nil {
		return false // what the commit became is found out first, against the base it was made on
	}
	seen = seen.DeepCopyObject().(v1alpha1.Pool)
	if p.base != nil && p.base.GetUID() != seen.GetUID() {
		p.holder, p.quarantineUntil, p.generation = false, time.Time{}, 0
		for uid := range p.grants {
			p.dropGrant(uid)
		}
		p.loadCooling(seen.PoolStatus())
	}
	state := seen.PoolStatus().Allocator
	if ends = p.holder && (state == nil || state.Holder != id || state.Term != p.term); ends {
		p.loseTerm(now)
	}
	p.changed, p.commitAfter = now, time.Time{}
	p.forgetSurveys(seen)
	p.setBase(seen)
	if p.holder {
		p.loadCooling(seen.PoolStatus())
	}
	return ends
}

// withoutPool serves the claims of a pool that does not exist, or that our finalizer left while another's keeps it:
// they are told, and what they hold is released when they are deleted. Nobody can grant from such a pool.
func (a *Allocator) withoutPool(ctx context.Context, p *pool, seen v1alpha1.Pool, no *refusal) (reconcile.Result, error) {
	m := p.lock()
	if m.unsetBase() {
		metrics.ForgetPool(p.key.Kind, p.key.Namespace, p.key.Name)
	}
	a.withdrawSpec(p.key)
	clear(m.waitingClusters)
	clear(m.toTell)
	m.rotateGone(a.now())
	admission := a.admission(ctx, m, a.now())
	var tell []*claimant
	m.pending.Scan(func(c *claimant) bool {
		ruled := admission(c)
		if !ruled.waits && ruled.refused == nil && !c.busy && !c.shows(*no) {
			tell = append(tell, c)
		}
		return true
	})
	m.unlock()
	if len(tell) > 0 {
		// A pool that lost our finalizer while another keeps it is there, and nobody grants from it.
		if seen == nil {
			if exists, err := a.exists(ctx, p.key); exists || err != nil {
				return reconcile.Result{}, err // the cache is behind; its watch brings the pool
			}
		}
		a.tell(p, tell, no)
	}
	wait, err := a.dispatch(ctx, p, a.now(), admission)
	a.tellPauses(ctx, p, a.now(), admission)
	a.drop(p)
	return reconcile.Result{RequeueAfter: wait}, err
}

// unsetBase notes that there is no pool. It reports whether that is news.
func (p *memory) unsetBase() bool {
	if p.base == nil {
		return false
	}
	p.base, p.holder, p.unanswered, p.generation, p.layout = nil, false, nil, 0, nil
	p.roomToRest()
	p.triedOnce = false
	for uid := range p.grants {
		p.dropGrant(uid)
	}
	return true
}

func (a *Allocator) tell(p *pool, claims []*claimant, no *refusal) {
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

// finalize keeps our finalizer on a pool while it lives, and takes it off a deleted one when nobody
// has an address of it any more. It reports whether the pool is gone.
func (a *Allocator) finalize(ctx context.Context, p *pool) (gone bool, err error) {
	m := p.lock()
	base, used := m.base, m.ledger.Counts().Owners > 0 || len(m.grants) > 0
	m.unlock()
	has := controllerutil.ContainsFinalizer(base, v1alpha1.PoolFinalizer)
	deleting := base.GetDeletionTimestamp() != nil
	if has != deleting {
		return false, nil
	}
	if deleting {
		if used {
			return false, nil
		}
		// The watch may lag behind an object that another manager wrote: the list decides.
		found, err := a.lists.list(ctx, p.key)
		if err != nil {
			return false, err
		}
		for _, c := range found.claimants {
			used = used || c.hasRecord() || c.shown.IsValid()
		}
		if used || len(found.attached) > 0 {
			return false, nil
		}
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	if deleting {
		controllerutil.RemoveFinalizer(next, v1alpha1.PoolFinalizer)
	} else {
		controllerutil.AddFinalizer(next, v1alpha1.PoolFinalizer)
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
	m = p.lock()
	defer m.unlock()
	m.setBase(next)
	return deleting, nil
}

// endAdoption ends what is taken on trust, when the quarantine is over.
func (p *memory) endAdoption(now time.Time) {
	if !p.adopting || p.quarantineUntil.After(now) {
		return
	}
	p.adopting = false
	for _, c := range p.claimants {
		if !c.hasRecord() {
			p.sort(c)
		}
	}
}

// staleGrants reports whether a grant is too old to be written on without asking again (a process
// that was paused): a commit confirms it or shows that the term is over. Monotonic and wall clock
// both count, whichever is further on.
func (p *memory) staleGrants(now time.Time) bool {
	for _, g := range p.grants {
		if g.stale(now) {
			return true
		}
	}
	return false
}

// elapsed is the time since a moment by the monotonic or the wall clock, whichever is further.
func elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

func (a *Allocator) claimSnapshot(p *pool, uid types.UID) (claimant, bool) {
	m := p.lock()
	defer m.unlock()
	c := m.claimants[uid]
	if c == nil {
		return claimant{}, false
	}
	return *c, true
}
