package allocator

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

const (
	// maxJobs bounds the jobs of a pool that wait for a writer, and with them the memory they take.
	maxJobs  = 256
	minRetry = 50 * time.Millisecond
	maxRetry = 30 * time.Second
)

// errAgain says that what was read differs from what was believed: look again, quietly.
var errAgain = errors.New("changed meanwhile")

// doChores hands out everything that is to be written for single claims and addresses. It returns
// when something that has to wait is due.
func (a *Allocator) doChores(ctx context.Context, p *pool, now time.Time, admission admit) (time.Duration, error) {
	type job struct {
		uid types.UID
		run func(context.Context, *pool, claim) error
	}
	var jobs, releases []job
	var strays []*address
	p.mu.Lock()
	wait := p.nextRetry(now)
	free := maxJobs - p.jobs
	for uid, c := range p.chores {
		if len(jobs)+len(releases) >= free {
			break
		}
		// Without a pool nothing is served, and a grant that a commit is to end holds up a release.
		if g := p.grants[uid]; c.busy || (p.base == nil && !c.deleting) || (c.deleting && g != nil && g.settled) {
			continue
		}
		if c.retryAt.After(now) {
			continue
		}
		if c.deleting {
			if !a.mayRelease(ctx, p, c) {
				continue
			}
			// One that came up during the commit rests first (R9): the next turn notes it.
			if p.mustRest(p.releasable(c), c.owner) {
				wait = time.Millisecond
				continue
			}
			release := a.release
			if c.block != nil {
				release = a.releaseBlock
			}
			releases = append(releases, job{uid, release})
			continue
		}
		if g := p.grants[uid]; g != nil && !g.writable(now) {
			continue
		}
		if paused, _ := admission(c); !paused {
			serve := a.serve
			if c.block != nil {
				serve = a.serveBlock
			}
			jobs = append(jobs, job{uid, serve})
		}
	}
	for _, s := range p.strays {
		if s.busy || s.byHand() || len(strays) >= free {
			continue
		}
		if s.void && p.mustRest(p.unitOf(s.address), s.owner()) {
			wait = time.Millisecond
			continue
		}
		if d := p.dueOf(s, a.OrphanGrace).Sub(now); d > 0 {
			wait = sooner(wait, d)
			continue
		}
		s.busy = true
		strays = append(strays, s.address)
	}
	base, holder := p.base, p.holder
	p.mu.Unlock()

	if len(releases) > 0 && holder {
		// Only the holder drops finalizers (R6): a live read right before, once for all of them.
		live := base.DeepCopyObject().(v1alpha1.Pool)
		if err := a.Live.Get(ctx, client.ObjectKeyFromObject(live), live); err != nil {
			return 0, client.IgnoreNotFound(err)
		}
		is, was := live.PoolStatus().Allocator, base.PoolStatus().Allocator
		if is == nil || is.Holder != was.Holder || is.Term != was.Term || !equality.Semantic.DeepEqual(is.InFlight, was.InFlight) {
			a.lose(p)
			return 0, errLost
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range append(jobs, releases...) {
		if c := p.claims[j.uid]; c != nil && !c.busy {
			c.busy = true
			p.jobs++
			a.crew.do(func() { a.runClaim(a.jobs, p, j.uid, j.run) })
		}
	}
	for _, addr := range strays {
		p.jobs++
		a.crew.do(func() { a.runStray(a.jobs, p, addr) })
	}
	return wait, nil
}

// runClaim runs one job for a claim in its turn, and notes how it went.
func (a *Allocator) runClaim(ctx context.Context, p *pool, uid types.UID, run func(context.Context, *pool, claim) error) {
	var err error
	if c, known := a.claimSnapshot(p, uid); known && ctx.Err() == nil {
		err = run(ctx, p, c)
	}
	p.mu.Lock()
	p.jobs--
	wake := p.jobs == 0 || p.jobs == maxJobs/4 || err != nil
	if c := p.claims[uid]; c != nil {
		c.busy = false
		if err != nil {
			c.retryAt = a.now().Add(retryDelay(c.failures))
			c.failures++
			p.retrying[uid] = struct{}{}
		} else {
			c.failures, c.retryAt = 0, time.Time{}
		}
		wake = p.sort(c) || wake
	} else {
		wake = true
	}
	wake = wake || (p.pending.Len() > 0 && p.unfinished() <= a.Writers)
	p.mu.Unlock()
	if err != nil && !errors.Is(err, errAgain) && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "Writing a claim failed; it is tried again", "uid", uid, "pool", p.key.String())
	}
	if wake {
		a.wake(p.key)
	}
}

func (p *pool) unfinished() int {
	n := 0
	for _, g := range p.grants {
		if !g.settled {
			n++
		}
	}
	return n
}

func retryDelay(failures int) time.Duration {
	return min(minRetry<<min(failures, 10), maxRetry)
}

// refreshClaim reads a claim live: the answer to a write that was refused.
func (a *Allocator) refreshClaim(ctx context.Context, p *pool, c claim) error {
	live := c.object()
	err := a.Live.Get(ctx, nameOf(c.owner), live)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		p.forgetClaim(c.owner.UID)
		return nil
	case err != nil:
		return err
	case live.GetUID() != c.owner.UID:
		p.forgetClaim(c.owner.UID)
	}
	if next, key := observed(live); key == p.key {
		p.observeClaim(next)
	}
	return nil
}

// writeFailed sorts out a refused write of a claim: what changed is read, anything else is an error.
func (a *Allocator) writeFailed(ctx context.Context, p *pool, c claim, step string, err error) error {
	metrics.WriteErrs.WithLabelValues(step).Inc()
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		if getErr := a.refreshClaim(ctx, p, c); getErr != nil {
			return getErr
		}
		if apierrors.IsInvalid(err) {
			return err
		}
		return errAgain
	}
	return err
}
