package allocator

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// claimantJobs runs the jobs that write for claimants. A claimant has one job at a time, and none before its retry is
// due; a pool has at most grants.MaxJobs. Every decision is made on the state at that time.
type claimantJobs struct {
	*Options
	scope   *servedScope
	queue   *workQueue
	lookups *cacheLookups
	writer  *objectWriter
}

// claimantJob writes for one claimant, which is passed as it was when the job began.
type claimantJob func(context.Context, *grants.Pool, grants.Claimant) error

// jobKind is what a job does for a claimant. Where the API server refuses one kind, the others may go on.
type jobKind int

const (
	serveJob jobKind = iota
	conditionJob
	releaseJob
	orphanCheckJob
)

// serveClaimant runs the steps for a claimant that has a grant, or an address already, and writes a refusal if they
// fail.
func (cj *claimantJobs) serveClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	err := cj.runSteps(ctx, p, c, func(m *grants.PoolState, c *grants.Claimant, t *grants.Attempt) (grants.Step, bool) {
		if !m.Term.Holder || m.Base.Pool == nil || c.Deleting {
			return grants.Step{}, false
		}
		g := m.Grants.ByClaimant[c.Owner.UID]
		if g != nil && g.IsWritable(t.Now) { // this job may have waited
			t.Grant = g
		}
		s := c.Kind.NextServeStep(m.Inventory, c, t)
		if g != nil && s.Verb != grants.StopJob {
			g.RecordJobStart()
		}
		return s, true
	})
	if err == nil || errors.Is(err, errStateChanged) || ctx.Err() != nil || cj.mayBeTransient(p, c, err) {
		return err
	}
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	now, known := claimantSnapshot(p, c.Owner.UID)
	if undone := (*grants.WriteRevertedError)(nil); known && now.StatusComplete && errors.As(err, &undone) {
		cj.Recorder.Eventf(now.EventObject(), nil, corev1.EventTypeWarning, "WriteUndone", "Allocate", "%s", undone.Error())
	}
	if !known || now.Deleting || now.StatusComplete || (c.Kind.Traits().AddressKind == nil && (now.HasRecord() || now.PublishedRange.IsValid())) {
		return err // for a kind without an address object the status may be all that shows what it has (R8)
	}
	return errors.Join(err, cj.writer.writeRefusal(ctx, p, now, grants.RefusalForWriteError(err)))
}

// mayBeTransient reports whether a claimant gets no refusal yet for a write that fails: it failed only a few times, and
// is tried again in a moment. A claimant that waits for longer gets it at once: where many claimants of a namespace
// fail, each waits for the others.
func (cj *claimantJobs) mayBeTransient(p *grants.Pool, c grants.Claimant, err error) bool {
	if term.IsPermanentRefusal(err) || c.Failures+1 >= failuresBeforeRefusal {
		return false
	}
	m := p.Lock()
	defer m.Unlock()
	known, now := m.Claimants.ByUID[c.Owner.UID], cj.now()
	if known == nil || known.Deleting || isRevertedWrite(err) {
		return true
	}
	m.Failures.RecordFailure(known, err, now) // before others that fail meanwhile
	return known.RetryAt.Before(now.Add(term.MinRetryPause))
}

// releaseClaimant releases what a deleted claimant has. Where the pool exists, only its holder does (R6).
func (cj *claimantJobs) releaseClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	return cj.runSteps(ctx, p, c, func(m *grants.PoolState, c *grants.Claimant, t *grants.Attempt) (grants.Step, bool) {
		if !m.Term.Holder && m.Base.Pool != nil {
			return grants.Step{}, false
		}
		if m.Cooling.NeedsCooling(m.Inventory.ReleaseFor(c), t.Now) {
			return grants.Step{}, false // by what was seen since this job was due: the next batch records the rest (R9)
		}
		s := c.Kind.NextReleaseStep(m.Inventory, c, t)
		if s.Verb == grants.EndGrant {
			m.Grants.EndGrant(c.Owner.UID)
			return grants.Step{}, false
		}
		return s, true
	})
}

// finishClaimantMove removes our finalizers from a claimant that clusterctl has moved.
func (cj *claimantJobs) finishClaimantMove(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	if cj.scope.isForOtherManager(&c) {
		return nil
	}
	return cj.runSteps(ctx, p, c, func(m *grants.PoolState, c *grants.Claimant, _ *grants.Attempt) (grants.Step, bool) {
		if (!m.Term.Holder && m.Base.Pool != nil) || !m.Moves.CanFinishMove(c) {
			return grants.Step{}, false
		}
		return grants.FinishMoveStep(c), true
	})
}

// nextStepFunc asks the kind of a claimant for the next step. hasNext is false if the job is over, as this manager may
// not go on.
type nextStepFunc func(m *grants.PoolState, c *grants.Claimant, t *grants.Attempt) (s grants.Step, hasNext bool)

// runSteps runs one step after the other for a claimant, until there is nothing to do or one fails. Each step is
// decided on the state at that time.
func (cj *claimantJobs) runSteps(ctx context.Context, p *grants.Pool, c grants.Claimant, decide nextStepFunc) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	if c.Kind.Traits().DeletedWithOwner {
		found := cj.lookups.newOwnerLookup(ctx)(p.Key, &c)
		m := p.Lock()
		m.Owners.RecordOwnerSeen(&c, found)
		m.Unlock()
	}
	t := &grants.Attempt{}
	for {
		m := p.Lock()
		known := m.Claimants.ByUID[c.Owner.UID]
		if known == nil {
			m.Unlock()
			return nil
		}
		t.Now, t.Grant = cj.now(), nil
		s, hasNext := decide(m, known, t)
		c = *known
		m.Unlock()
		if !hasNext || s.Verb == grants.StopJob {
			return s.Err
		}
		switch repeated := slices.Contains(t.CompletedCalls, s.Call); {
		case repeated && s.Verb.IsRead():
			return errStateChanged // the object has changed since it was read: the next job reads it again
		case repeated:
			return &grants.WriteRevertedError{ObjectName: c.Owner.Kind + " " + grants.NamespacedNameFromOwner(c.Owner).String()}
		}
		if err := cj.writer.executeStep(ctx, p, c, s, t); err != nil {
			return err
		}
		t.CompletedCalls = append(t.CompletedCalls, s.Call)
	}
}

// dispatchPendingConditions dispatches a job for each claim whose condition should show what delays it.
func (cj *claimantJobs) dispatchPendingConditions(ctx context.Context, p *grants.Pool, admission grants.AdmissionFunc) {
	m := p.Lock()
	defer m.Unlock()
	if m.Base.Pool != nil && annotations.HasPaused(m.Base.Pool) { // nothing is planned, so admission has not run
		m.Queues.Waiting.Scan(func(c *grants.Claimant) bool {
			if !admission(c).Wait {
				m.Conditions.RecordPause(c, grants.ClusterReady) // other problems are reported when the pause is over
			}
			return ctx.Err() == nil
		})
	}
	for c, condition := range m.Conditions.TakeUnpublished() {
		if m.Queues.ActiveJobs >= grants.MaxJobs {
			break // the end of these jobs enqueues the pool
		}
		if m.Claimants.ByUID[c.Owner.UID] != c {
			continue
		}
		setCondition := func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
			return cj.writer.setClaimantCondition(ctx, p, c, condition)
		}
		cj.startClaimantJob(m, c.Owner.UID, conditionJob, setCondition)
	}
}

func (cj *claimantJobs) refuseClaimants(p *grants.Pool, claims []*grants.Claimant, refusal *grants.Refusal) {
	for _, c := range claims {
		cj.refuseClaimant(p, c, *refusal)
	}
}

// refuseClaimant writes to the claim, once, why it gets no address. It does so in a job of its own.
func (cj *claimantJobs) refuseClaimant(p *grants.Pool, c *grants.Claimant, refusal grants.Refusal) {
	m := p.Lock()
	defer m.Unlock()
	if m.Queues.ActiveJobs >= grants.MaxJobs || m.Claimants.ByUID[c.Owner.UID] != c {
		return
	}
	cj.startClaimantJob(m, c.Owner.UID, conditionJob, func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
		ctx, cancel := withRequestTimeout(ctx)
		defer cancel()
		return cj.writer.writeRefusal(ctx, p, c, refusal)
	})
}

// startClaimantJob starts a job for a claimant that has none. It is the only way to start one: a claimant whose last
// job failed, or in whose namespace many jobs failed, waits.
func (cj *claimantJobs) startClaimantJob(m *grants.PoolState, uid types.UID, does jobKind, run claimantJob) {
	c, now := m.Claimants.ByUID[uid], cj.now()
	if c == nil || !c.IsDue(now) || (does == conditionJob && !m.Failures.MaySetCondition(c, now)) {
		return
	}
	if does == conditionJob {
		m.Failures.RecordConditionTrial(c, now)
	}
	c.Begin()
	m.Queues.BeginJob()
	p := grants.NewPool(m)
	cj.queue.submitJob(m.Base.Key, func(ctx context.Context) { cj.runClaimantJob(ctx, p, uid, does, run) })
}

// runClaimantJob runs one job for a claimant, and records its result.
func (cj *claimantJobs) runClaimantJob(ctx context.Context, p *grants.Pool, uid types.UID, does jobKind, run claimantJob) {
	var err error
	c, known := claimantSnapshot(p, uid)
	if known && ctx.Err() == nil {
		err = run(ctx, p, c)
	}
	m := p.Lock()
	var again time.Time
	changed := false
	switch c := m.Claimants.ByUID[uid]; {
	case c == nil:
		changed = true
	case err != nil:
		c.End()
		cj.recordJobFailure(ctx, m, c, does, err)
		again = c.RetryAt
		m.Queues.QueueClaimant(c)
	default:
		c.End()
		if does != conditionJob || m.Failures.HasStatusFailure(c) { // a written refusal is no success in serving it
			c.Reset()
		}
		changed = recordJobSuccess(m, c, does)
		changed = m.Queues.QueueClaimant(c) || changed || (m.Queues.Waiting.Len() > 0 && m.Grants.ActiveGrantCount() <= cj.Writers)
	}
	wake := m.Queues.EndJob(again) || changed
	m.Unlock()
	mayPass := errors.Is(err, errStateChanged) || (isRevertedWrite(err) && c.Failures+1 < failuresBeforeRefusal)
	if err != nil && !mayPass && ctx.Err() == nil {
		cj.queue.logFailure(ctx, p.Key, err, "Failed to write a claim; retrying", "claim", grants.NamespacedNameFromOwner(c.Owner).String(), "uid", uid)
	}
	if wake {
		cj.queue.enqueuePool(p.Key)
	}
}

// revertedWriteBackoff is how many failures a write counts for that another writer reverts.
const revertedWriteBackoff = 6

// recordJobFailure delays a claimant whose job failed, and others of its namespace if many fail.
func (cj *claimantJobs) recordJobFailure(ctx context.Context, m *grants.PoolState, c *grants.Claimant, does jobKind, err error) {
	now := cj.now()
	m.Queues.AddRetrying(c)
	switch {
	case isRevertedWrite(err) && c.Failures > 0: // not just one faster writer: the next try will not help either
		c.SetRetryTime(now, revertedWriteBackoff, err)
	case errors.Is(err, errStateChanged) || isRevertedWrite(err) || ctx.Err() != nil || c.Deleting || does == orphanCheckJob:
		c.SetRetryTime(now, 0, err)
	case does == conditionJob:
		m.Failures.RecordStatusFailure(c, err, now)
	default:
		m.Failures.RecordFailure(c, err, now)
	}
	c.Failures++
}

// isRevertedWrite reports whether a write was carried out but not kept.
func isRevertedWrite(err error) bool {
	undone := (*grants.WriteRevertedError)(nil)
	return errors.As(err, &undone)
}

// recordJobSuccess lets the claimants of the namespace go on that waited because others failed. It reports whether
// there are any.
func recordJobSuccess(m *grants.PoolState, c *grants.Claimant, does jobKind) (wake bool) {
	switch {
	case does == conditionJob:
		return m.Failures.ClearStatusFailure(c)
	case does == serveJob && c.Kind.IsConfirmed(m.Inventory, c):
		cleared := m.Failures.ClearStatusFailure(c)
		return m.Failures.ClearFailure(c, true) || cleared
	}
	return false
}
