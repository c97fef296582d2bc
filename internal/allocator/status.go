package allocator

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// statusWriter writes the statuses of pools: it takes pools over and commits grants. A grant exists once its commit has
// succeeded (R4), and another manager's write of the pool ends the term (R5).
type statusWriter struct {
	*Options
	lister *sharedPoolLister
}

var (
	// errTermLost reports that another manager wrote the pool: the term is over.
	errTermLost = errors.New("another manager has taken the pool over")
	// errPoolChanged reports that the pool changed under the commit, for example a new spec: plan again on the current
	// one.
	errPoolChanged = errors.New("the pool changed; planning again")
	// errPoolGone reports that the pool no longer exists.
	errPoolGone = errors.New("the pool is gone")
)

// unknownKindError reports that a pool has grants in flight to objects of a kind that this manager does not know.
type unknownKindError struct{ kind string }

func (e unknownKindError) Error() string {
	return "grants are in flight to objects of the unknown kind " + e.kind
}

// takeOverPool makes this manager the pool's holder: it writes first and lists after that, so that whatever the old
// holder granted is in the list or in flight, and the old holder's next commit fails.
func (st *statusWriter) takeOverPool(ctx context.Context, p *grants.Pool) error {
	m := p.Lock()
	status := m.Base.Pool.PoolStatus().Allocator
	done, took := m.Term.TakeFenced()
	m.Unlock()
	found := &grants.ListedObjects{}
	if done == 0 || status == nil || status.Holder != st.ManagerID || status.Term != done {
		var err error
		if done, err = st.fencePool(ctx, p); err != nil {
			return err
		}
		start := st.now()
		if found, err = st.lister.listPool(ctx, p.Key); err != nil {
			return fmt.Errorf("listing the grants of %s: %w", p.Key, err)
		}
		took = st.now().Sub(start)
	}
	m = p.Lock()
	defer m.Unlock()
	m.CompleteTakeover(found, done, took, st.now(), st.Quarantine)
	metrics.PoolTakeovers.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	log.FromContext(ctx).Info("Took the pool over", "pool", p.Key.String(), "term", m.Term.Number,
		"claims", len(m.Claimants.ByUID), "addresses", len(m.Addresses.ByName), "inFlight", len(m.Grants.ByClaimant))
	if _, mirror := incluster.RefForMirror(p.Key.Kind, p.Key.Name); mirror {
		// The series begins with 0: otherwise no query would see its increase to 1.
		metrics.ForeignAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Add(0)
	}
	return nil
}

// fencePool writes this manager into the pool as its holder, and returns the term of this manager.
func (st *statusWriter) fencePool(ctx context.Context, p *grants.Pool) (term int64, err error) {
	m := p.Lock()
	base := m.Base.Pool
	old := base.PoolStatus().Allocator
	unknown := m.Claimants.FindUnknownKind(grants.InFlightFromStatus(base.PoolStatus()))
	m.Unlock()
	switch {
	case unknown != "": // their objects are not observed, so the grants would end, and others would get the addresses
		return 0, unknownKindError{unknown}
	case old != nil && old.Holder == st.ManagerID:
		return old.Term, nil
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	state := &v1alpha1.AllocatorStatus{Holder: st.ManagerID, Term: 1}
	if old != nil {
		state.Term, state.InFlight = old.Term+1, old.InFlight
	}
	next.PoolStatus().Allocator = state
	unserved := wasUnserved(next)
	if old == nil || unserved {
		// The next holder must know, should this manager die before the first commit. Our finalizer, or our mark where
		// a restore has removed the finalizer, shows that there was an allocator: a move or a restore brings a pool
		// before the objects that it granted to.
		ready := metav1.Condition{
			Type: v1alpha1.ReadyCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.AdoptingReason,
			Message: "the manager is reading the claims and addresses that this pool already has", ObservedGeneration: next.GetGeneration(), LastTransitionTime: metav1.NewTime(st.APITime(st.now())),
		}
		marked := next.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] != ""
		if unserved || marked || controllerutil.ContainsFinalizer(next, v1alpha1.PoolFinalizer) {
			ready.Status = metav1.ConditionFalse
		}
		grants.SetPoolCondition(&next.PoolStatus().Conditions, ready)
	}
	if err := st.updatePoolStatus(ctx, next); err != nil {
		return 0, fmt.Errorf("taking over %s: %w", p.Key, err)
	}
	m = p.Lock()
	defer m.Unlock()
	m.Quarantine.SetAdoptionEvent(old == nil || unserved)
	m.SetBasePool(next)
	return state.Term, nil
}

// wasUnserved reports whether the condition Ready of a pool shows that no manager served it.
func wasUnserved(obj v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(obj.GetConditions(), v1alpha1.ReadyCondition)
	return ready != nil && ready.Reason == v1alpha1.NotServedReason
}

// commitGrants writes a commit. The grants that it carries exist once it has succeeded.
func (st *statusWriter) commitGrants(ctx context.Context, p *grants.Pool, next *grants.PendingCommit) error {
	m := p.Lock()
	m.Term.BeginCommit(next)
	m.Unlock()
	return st.sendCommit(ctx, p)
}

// sendCommit sends the pending commit, which may be a repetition, and finds out its outcome (R4).
func (st *statusWriter) sendCommit(ctx context.Context, p *grants.Pool) error {
	m := p.Lock()
	try, base := m.Term.PendingCommit, m.Base.Pool
	m.Unlock()
	start, answer := st.now(), try.Pool.DeepCopyObject().(v1alpha1.Pool)
	outcome, err := try.Attempt(
		func() error {
			err := st.updatePoolStatus(ctx, answer)
			countCommit(err)
			return err
		},
		func() (shown term.ReadBack, err error) {
			ctx, cancel := withRequestTimeout(ctx)
			defer cancel()
			answer = base.DeepCopyObject().(v1alpha1.Pool)
			if err := st.Live.Get(ctx, client.ObjectKeyFromObject(base), answer); err != nil {
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
		m.RejectCommit(err, st.now())
		return &commitRefusedError{err}
	case term.ObjectGone:
		m.RollbackCommit(base) // the watch brings its end
		return errPoolGone
	case term.WritePending:
		return fmt.Errorf("committing grants of %s: %w", p.Key, err)
	case term.TermLost:
	}
	st.loseTerm(m)
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
func (st *statusWriter) updatePoolStatus(ctx context.Context, obj v1alpha1.Pool) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	return st.Client.Status().Update(ctx, obj)
}

// loseTerm ends the term of a pool, and counts that.
func (st *statusWriter) loseTerm(m *grants.PoolState) {
	m.LoseTerm(st.now())
	countLostTerm(m.Base.Key)
}

func countLostTerm(key pools.Key) {
	metrics.LostTerms.WithLabelValues(key.Kind, key.Namespace, key.Name).Inc()
}

// commitRefusedError is returned for a status of a pool that the API server refuses for good.
type commitRefusedError struct{ err error }

func (r *commitRefusedError) Error() string {
	return fmt.Sprintf("the API server refuses the status: %v", r.err)
}

func (r *commitRefusedError) Unwrap() error { return r.err }
