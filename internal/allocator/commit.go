package allocator

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

var (
	// errTermLost: another manager wrote the pool; the term is over.
	errTermLost = errors.New("another manager has taken the pool over")
	// errMoved: the pool changed under the commit (a new spec); plan again on what is there now.
	errMoved = errors.New("the pool changed; planning again")
	// errGone: the pool does not exist any more.
	errGone = errors.New("the pool is gone")
)

// commit writes a commit. The grants that it carries exist once this has succeeded.
func (a *Allocator) commit(ctx context.Context, p *grants.Pool, next *grants.PendingCommit) error {
	m := p.Lock()
	m.Unanswered = next
	m.Unlock()
	return a.sendCommit(ctx, p)
}

// sendCommit sends the commit, again if need be, and finds out what became of it (R4).
func (a *Allocator) sendCommit(ctx context.Context, p *grants.Pool) error {
	m := p.Lock()
	try, base := m.Unanswered, m.Base
	m.Unlock()
	sent := try.Pool.DeepCopyObject().(v1alpha1.Pool)
	start := a.now()
	err := a.updateStatus(ctx, sent)
	if err == nil {
		metrics.Commits.WithLabelValues("written").Inc()
		m = p.Lock()
		defer m.Unlock()
		m.CommitLanded(sent, start)
		return nil
	}
	if apierrors.IsConflict(err) {
		metrics.Commits.WithLabelValues("conflict").Inc()
	} else {
		metrics.Commits.WithLabelValues("error").Inc()
	}
	if term.RefusedForGood(err) && !try.Doubtful {
		m = p.Lock()
		defer m.Unlock()
		m.Refused(err, a.now())
		return &refusedCommit{err}
	}
	try.Doubtful = true
	live := base.DeepCopyObject().(v1alpha1.Pool)
	getCtx, cancel := timed(ctx)
	defer cancel()
	getErr := a.Live.Get(getCtx, client.ObjectKeyFromObject(live), live)
	if getErr != nil && !apierrors.IsNotFound(getErr) {
		return fmt.Errorf("committing grants of %s: %w (reading it back: %w)", p.Key, err, getErr)
	}
	m = p.Lock()
	defer m.Unlock()
	if getErr != nil {
		// Nothing lands on a pool that is gone; the watch brings its end.
		m.Rollback(base)
		return errGone
	}
	switch grants.VerdictOn(base, try.Pool, live) {
	case term.MayLand:
		return fmt.Errorf("committing grants of %s: %w", p.Key, err)
	case term.HasLanded:
		m.CommitLanded(live, start)
		return nil
	case term.NeverLands:
		m.Rollback(live)
		return errMoved
	case term.Lost:
	}
	a.loseTerm(m)
	return errTermLost
}

// updateStatus is the one way a pool's status is written: whole, by resource version (R3).
func (a *Allocator) updateStatus(ctx context.Context, obj v1alpha1.Pool) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	return a.Client.Status().Update(ctx, obj)
}

// refusedCommit is the answer to a status of a pool that the API server refuses for good.
type refusedCommit struct{ err error }

func (r *refusedCommit) Error() string {
	return fmt.Sprintf("the API server refuses the status: %v", r.err)
}

func (r *refusedCommit) Unwrap() error { return r.err }
