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
	// errTermLost reports that another manager wrote the pool: the term is over.
	errTermLost = errors.New("another manager has taken the pool over")
	// errPoolChanged reports that the pool changed under the commit, for example a new spec: plan again on the current
	// one.
	errPoolChanged = errors.New("the pool changed; planning again")
	// errPoolGone reports that the pool no longer exists.
	errPoolGone = errors.New("the pool is gone")
)

// commitGrants writes a commit. The grants that it carries exist once it has succeeded.
func (a *Allocator) commitGrants(ctx context.Context, p *grants.Pool, next *grants.PendingCommit) error {
	m := p.Lock()
	m.Record.PendingCommit = next
	m.Unlock()
	return a.sendCommit(ctx, p)
}

// sendCommit sends the pending commit, which may be a repetition, and finds out its outcome (R4).
func (a *Allocator) sendCommit(ctx context.Context, p *grants.Pool) error {
	m := p.Lock()
	try, base := m.Record.PendingCommit, m.Base.Pool
	m.Unlock()
	start, answer := a.now(), try.Pool.DeepCopyObject().(v1alpha1.Pool)
	outcome, err := try.Attempt(
		func() error {
			err := a.updatePoolStatus(ctx, answer)
			countCommit(err)
			return err
		},
		func() (shown term.ReadBack, err error) {
			ctx, cancel := withRequestTimeout(ctx)
			defer cancel()
			answer = base.DeepCopyObject().(v1alpha1.Pool)
			if err := a.Live.Get(ctx, client.ObjectKeyFromObject(base), answer); err != nil {
				return shown, err
			}
			return grants.ReadBackFor(base, try.Pool, answer), nil
		})
	m = p.Lock()
	defer m.Unlock()
	switch outcome {
	case term.WriteApplied:
		m.CompleteCommit(answer, start)
		return nil
	case term.WriteConflicted:
		m.RollbackCommit(answer)
		return errPoolChanged
	case term.WriteRefused:
		m.RejectCommit(err, a.now())
		return &commitRefusedError{err}
	case term.ObjectGone:
		m.RollbackCommit(base) // the watch brings its end
		return errPoolGone
	case term.WritePending:
		return fmt.Errorf("committing grants of %s: %w", p.Key, err)
	case term.TermLost:
	}
	a.loseTerm(m)
	return errTermLost
}

func countCommit(err error) {
	result := "error"
	switch {
	case err == nil:
		result = "written"
	case apierrors.IsConflict(err):
		result = "conflict"
	}
	metrics.PoolCommits.WithLabelValues(result).Inc()
}

// updatePoolStatus is the only way to write a pool's status: whole, by resourceVersion (R3).
func (a *Allocator) updatePoolStatus(ctx context.Context, obj v1alpha1.Pool) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	return a.Client.Status().Update(ctx, obj)
}

// commitRefusedError is returned for a status of a pool that the API server refuses for good.
type commitRefusedError struct{ err error }

func (r *commitRefusedError) Error() string {
	return fmt.Sprintf("the API server refuses the status: %v", r.err)
}

func (r *commitRefusedError) Unwrap() error { return r.err }
