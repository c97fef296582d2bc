package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

var (
	// errTermLost: another manager wrote the pool; the term is over.
	errTermLost = errors.New("another manager has taken the pool over")
	// errMoved: the pool changed under the commit (a new spec); plan again on what is there now.
	errMoved = errors.New("the pool changed; planning again")
	// errGone: the pool does not exist any more.
	errGone = errors.New("the pool is gone")
)

// pendingCommit is a commit: the pool with the status that it is to have. One that was sent stays until its outcome is
// known (R4).
type pendingCommit struct {
	pool      v1alpha1.Pool
	grants    []types.UID
	confirmed []types.UID
	// doubtful: it was sent, and what became of it is not known.
	doubtful bool
}

// prepare returns the commit of what the pool is now: counts, conditions, and the grants that are in flight, the new
// ones among them. It is called with the pool locked, once a turn.
func (p *memory) prepare(now time.Time) *pendingCommit {
	next := p.base.DeepCopyObject().(v1alpha1.Pool)
	try := &pendingCommit{pool: next}
	for uid, g := range p.grants {
		switch {
		case g.confirmed:
			try.confirmed = append(try.confirmed, uid)
		case !g.committed:
			try.grants = append(try.grants, uid)
		}
	}
	p.describe(next, now)
	return try
}

// news reports whether a commit says anything that is not on record, and whether that should be shown without delay.
func (c *pendingCommit) news(base v1alpha1.Pool) (differs, urgent bool) {
	was, is := base.PoolStatus(), c.pool.PoolStatus()
	if equality.Semantic.DeepEqual(was, is) {
		return false, false
	}
	for _, cond := range is.Conditions {
		old := meta.FindStatusCondition(was.Conditions, cond.Type)
		if old == nil || old.Status != cond.Status || old.Reason != cond.Reason {
			return true, true
		}
	}
	return true, len(is.Held) != len(was.Held) || !slices.Equal(is.Yields, was.Yields) || is.ObservedGeneration != was.ObservedGeneration
}

// commit writes a commit. The grants that it carries exist once this has succeeded.
func (a *Allocator) commit(ctx context.Context, p *pool, next *pendingCommit) error {
	m := p.lock()
	m.unanswered = next
	m.unlock()
	return a.sendCommit(ctx, p)
}

// sendCommit sends the commit, again if need be, and finds out what became of it (R4).
func (a *Allocator) sendCommit(ctx context.Context, p *pool) error {
	m := p.lock()
	try, base := m.unanswered, m.base
	m.unlock()
	sent := try.pool.DeepCopyObject().(v1alpha1.Pool)
	start := a.now()
	err := a.updateStatus(ctx, sent)
	if err == nil {
		metrics.Commits.WithLabelValues("written").Inc()
		m = p.lock()
		defer m.unlock()
		m.commitLanded(sent, start)
		return nil
	}
	if apierrors.IsConflict(err) {
		metrics.Commits.WithLabelValues("conflict").Inc()
	} else {
		metrics.Commits.WithLabelValues("error").Inc()
	}
	if refusedForGood(err) && !try.doubtful {
		m = p.lock()
		defer m.unlock()
		m.refused(err, a.now())
		return &refusedCommit{err}
	}
	try.doubtful = true
	live := base.DeepCopyObject().(v1alpha1.Pool)
	getCtx, cancel := timed(ctx)
	defer cancel()
	getErr := a.Live.Get(getCtx, client.ObjectKeyFromObject(live), live)
	if getErr != nil && !apierrors.IsNotFound(getErr) {
		return fmt.Errorf("committing grants of %s: %w (reading it back: %w)", p.key, err, getErr)
	}
	m = p.lock()
	defer m.unlock()
	if getErr != nil {
		// Nothing lands on a pool that is gone; the watch brings its end.
		m.rollback(base)
		return errGone
	}
	switch verdictOn(base, try.pool, live) {
	case mayLand:
		return fmt.Errorf("committing grants of %s: %w", p.key, err)
	case hasLanded:
		m.commitLanded(live, start)
		return nil
	case neverLands:
		m.rollback(live)
		return errMoved
	case termLost:
	}
	a.loseTerm(m)
	return errTermLost
}

// refused drops a commit that the API server refuses for good. It is not sent again as it is: the next commit is
// planned anew, after a pause that doubles or when the pool has changed, and whoever waits is told why.
func (p *memory) refused(err error, now time.Time) {
	p.rollback(p.base)
	p.refusal = notReady("%s cannot be written: the API server refuses its status: %v", p.key, err)
	p.commitPause = min(max(2*p.commitPause, firstTry), lastTry)
	p.commitAfter = now.Add(p.commitPause)
}

// commitLanded notes that the commit is what the API server has.
func (p *memory) commitLanded(answer v1alpha1.Pool, at time.Time) {
	for _, uid := range p.unanswered.grants {
		if g := p.grants[uid]; g != nil {
			g.committed = true
			p.confirm(uid) // while the commit was under way the claim went, or got what it needs
		}
	}
	for _, g := range p.grants {
		g.at = at
	}
	for _, uid := range p.unanswered.confirmed {
		p.dropGrant(uid)
	}
	p.unanswered = nil
	p.backoff = 0
	p.refusal, p.commitPause, p.commitAfter = nil, 0, time.Time{}
	p.lastCommit = at
	p.setBase(answer)
}

// confirm notes that a committed grant is done: its claim is gone, or has what was granted (R6).
func (p *memory) confirm(uid types.UID) {
	g := p.grants[uid]
	if g == nil || !g.committed {
		return
	}
	c := p.claimants[uid]
	g.confirmed = g.confirmed || c == nil || c.kind.confirmed(p, c)
}

// rollback forgets the grants of a commit that cannot land any more.
func (p *memory) rollback(live v1alpha1.Pool) {
	for _, uid := range p.unanswered.grants {
		p.dropGrant(uid)
	}
	p.unanswered = nil
	p.setBase(live)
	p.loadCooling(live.PoolStatus())
}

func (p *memory) dropGrant(uid types.UID) {
	delete(p.grants, uid)
	p.ledger.Remove(ledger.Key{Source: ledger.Grant, UID: uid})
	if c := p.claimants[uid]; c != nil {
		p.sort(c)
	}
}

// setBase makes a pool the base of the next commit, and its spec what is planned on. A write
// without managed fields leaves them as they are, and costs less.
func (p *memory) setBase(obj v1alpha1.Pool) {
	obj.SetManagedFields(nil)
	p.base = obj
	if p.generation != obj.GetGeneration() {
		p.generation = obj.GetGeneration()
		p.compile()
	}
}

// inFlight lists the grants that are not confirmed, in the order of their addresses.
func (p *memory) inFlight() []v1alpha1.Grant {
	var out []v1alpha1.Grant
	var ordered []*grant
	for _, g := range p.grants {
		if !g.confirmed {
			ordered = append(ordered, g)
		}
	}
	slices.SortFunc(ordered, func(a, b *grant) int {
		return cmp.Or(a.rng.From().Compare(b.rng.From()), cmp.Compare(a.owner.UID, b.owner.UID))
	})
	for _, g := range ordered {
		out = append(out, v1alpha1.Grant{
			Kind: g.owner.Kind, Namespace: g.owner.Namespace, Name: g.owner.Name, UID: string(g.owner.UID),
			First: g.rng.From().String(), Last: g.rng.To().String(),
		})
	}
	return out
}

// updateStatus is the one way a pool's status is written: whole, by resource version (R3).
func (a *Allocator) updateStatus(ctx context.Context, obj v1alpha1.Pool) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	return a.Client.Status().Update(ctx, obj)
}
