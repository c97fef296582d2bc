package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// The ConfigMap of the fence. With the finalizer, a delete by mistake only marks it as being deleted.
const (
	ConfigMapNamespace = metav1.NamespaceSystem
	ConfigMapName      = "butler-node-cidrs"
	Finalizer          = "butler.butlerlabs.dev/node-cidrs"
	stateKey           = "state"
)

var (
	// ErrTermLost means that another manager grants the CIDRs of the cluster now: what was planned is void.
	ErrTermLost = errors.New("another manager has taken the Nodes of the cluster over")
	// ErrConflict means that another writer changed the ConfigMap and left the grants as they were: the caller plans
	// again.
	ErrConflict = errors.New("the ConfigMap " + ConfigMapNamespace + "/" + ConfigMapName + " changed; planning again")
)

// DamagedError means that the ConfigMap cannot be parsed. Nothing is granted until a user repairs or deletes it.
type DamagedError struct{ err error }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the ConfigMap %s/%s cannot be read: %v; delete it, and take its finalizer off: "+
		"the manager then rebuilds its state from the Nodes and resumes allocation after 75 seconds", ConfigMapNamespace, ConfigMapName, e.err)
}

func (e *DamagedError) Unwrap() error { return e.err }

// RefusedError means that the API server refuses a commit permanently: it is not sent again as it is.
type RefusedError struct{ err error }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the API server refuses the ConfigMap %s/%s: %v", ConfigMapNamespace, ConfigMapName, e.err)
}

func (e *RefusedError) Unwrap() error { return e.err }

// Fence is a manager's view of the ConfigMap of a cluster. It is not safe for concurrent use.
type Fence struct {
	client   client.Client
	live     client.Reader
	holderID string

	baseObject *corev1.ConfigMap
	state      State
	// previousHolder is the ID of the holder before this manager.
	previousHolder string
	// pending is a commit whose outcome is unknown.
	pending *pendingCommit
	// stale reports whether the ConfigMap could not be parsed since it was last held, or was restored to an earlier
	// state. It does not have the grants that were made meanwhile.
	stale bool
}

type pendingCommit struct {
	term.Write
	object *corev1.ConfigMap
	state  State
}

// New returns the fence of a cluster. It writes by c, and reads the current state of the API server by live; id is the
// ID of this process, which no other process ever had.
func New(c client.Client, live client.Reader, id string) *Fence {
	return &Fence{client: c, live: live, holderID: id}
}

// ReadState returns the state that the API server has, and whether there is one.
func (f *Fence) ReadState(ctx context.Context) (State, bool, error) {
	_, state, err := f.getLive(ctx)
	if apierrors.IsNotFound(err) {
		return State{}, false, nil
	}
	return state, err == nil, err
}

func (f *Fence) getLive(ctx context.Context) (*corev1.ConfigMap, State, error) {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	live := &corev1.ConfigMap{}
	if err := f.live.Get(ctx, client.ObjectKey{Namespace: ConfigMapNamespace, Name: ConfigMapName}, live); err != nil {
		return nil, State{}, err
	}
	state, err := parseState(live.Data[stateKey])
	if err != nil {
		f.stale = true
		return live, State{}, &DamagedError{err}
	}
	return live, state, nil
}

// TakeOver makes this manager the holder, and returns the state that it holds from now on. A list that begins
// afterwards shows everything that earlier holders granted, except what is in flight. Where there was no ConfigMap, or
// one that is stale, the state records that it adopts since now.
func (f *Fence) TakeOver(ctx context.Context, now time.Time) (State, error) {
	live, state, err := f.getLive(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return f.createConfigMap(ctx, now)
	case err != nil:
		return State{}, fmt.Errorf("taking over the Nodes of the cluster: %w", err)
	}
	if made := live.CreationTimestamp.Time; state.AdoptingSince != nil && made.After(*state.AdoptingSince) {
		state.AdoptingSince = &made // the create landed late
	}
	if state.Holder == f.holderID && !f.stale {
		f.baseObject, f.state = live, state // the answer to the earlier takeover was lost
		return state, nil
	}
	f.previousHolder = state.Holder
	state.Holder, state.Term = f.holderID, state.Term+1
	if f.stale {
		state.AdoptingSince = &now
	}
	next, err := f.configMapWithState(live, state)
	if err != nil {
		return State{}, err
	}
	if err := f.updateConfigMap(ctx, next); err != nil {
		return State{}, fmt.Errorf("taking over the Nodes of the cluster: %w", err)
	}
	f.baseObject, f.state, f.stale = next, state, false
	return state, nil
}

func (f *Fence) createConfigMap(ctx context.Context, now time.Time) (State, error) {
	state := State{Holder: f.holderID, Term: 1, AdoptingSince: &now}
	next, err := f.configMapWithState(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ConfigMapNamespace, Name: ConfigMapName}}, state)
	if err != nil {
		return State{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	if err := f.client.Create(ctx, next); err != nil {
		return State{}, fmt.Errorf("creating the ConfigMap %s/%s: %w", ConfigMapNamespace, ConfigMapName, err)
	}
	f.baseObject, f.state, f.stale = next, state, false
	return state, nil
}

// configMapWithState returns the ConfigMap with a state. Everything else in it stays.
func (f *Fence) configMapWithState(base *corev1.ConfigMap, s State) (*corev1.ConfigMap, error) {
	text, err := encodeState(s)
	if err != nil {
		return nil, err
	}
	next := base.DeepCopy()
	if next.DeletionTimestamp == nil {
		controllerutil.AddFinalizer(next, Finalizer)
	}
	if next.Data == nil {
		next.Data = map[string]string{}
	}
	next.Data[stateKey] = text
	return next, nil
}

func (f *Fence) updateConfigMap(ctx context.Context, o *corev1.ConfigMap) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	return f.client.Update(ctx, o)
}

// PreviousHolder returns the ID of the holder that this manager took the ConfigMap over from; "" means that there was
// none.
func (f *Fence) PreviousHolder() string { return f.previousHolder }

// IsDeleting reports whether the ConfigMap is being deleted: our finalizer keeps it, and it stays in use.
func (f *Fence) IsDeleting() bool {
	return f.baseObject != nil && f.baseObject.DeletionTimestamp != nil
}

// CommittedState returns the state of the last confirmed write.
func (f *Fence) CommittedState() State { return f.state }

// CommitState writes the next state of the term. It has landed when nil is returned. After any error but ErrTermLost,
// ErrConflict and RefusedError it may have landed: while Pending reports true, ResolvePending finds out, and nothing
// else may be committed before that.
func (f *Fence) CommitState(ctx context.Context, next State) error {
	next.Holder, next.Term, next.Seq = f.state.Holder, f.state.Term, f.state.Seq+1
	object, err := f.configMapWithState(f.baseObject, next)
	if err != nil {
		return err
	}
	f.pending = &pendingCommit{object: object, state: next}
	return f.ResolvePending(ctx)
}

// ResolvePending finds out the outcome of the last commit, and sends the commit again where it may still land (R4).
func (f *Fence) ResolvePending(ctx context.Context) error {
	if f.pending == nil {
		return nil
	}
	answer, state := f.pending.object.DeepCopy(), f.pending.state
	outcome, err := f.pending.Attempt(
		func() error { return f.updateConfigMap(ctx, answer) },
		func() (shown term.ReadBack, err error) {
			if answer, state, err = f.getLive(ctx); err != nil {
				return shown, err
			}
			return term.ReadBack{
				SameObject: answer.UID == f.baseObject.UID, SameVersion: answer.ResourceVersion == f.baseObject.ResourceVersion,
				Written: state.isSameCommit(f.pending.state), Unchanged: state.isSameCommit(f.state),
			}, nil
		})
	damaged := (*DamagedError)(nil)
	if outcome == term.WritePending && !errors.As(err, &damaged) {
		return fmt.Errorf("committing grants: %w", err)
	}
	pending := f.pending
	f.pending = nil
	switch outcome {
	case term.WriteApplied:
		f.baseObject, f.state = answer, pending.state
		return nil
	case term.WriteConflicted:
		f.baseObject, f.state = answer, state
		return ErrConflict
	case term.WriteRefused:
		return &RefusedError{err}
	case term.ObjectGone:
		return ErrTermLost
	case term.TermLost:
		return f.recordTermLost(state)
	case term.WritePending:
	}
	return damaged
}

// recordTermLost records that the term is over, as the state on record shows.
func (f *Fence) recordTermLost(state State) error {
	if state.Term <= f.state.Term {
		f.MarkStale()
	}
	return ErrTermLost
}

// MarkStale makes the next takeover wait for writes that may still be under way: the API server, or the ConfigMap
// alone, was restored to an earlier state, which does not have the grants that were made since.
func (f *Fence) MarkStale() { f.stale = true }

// VerifyTerm returns nil where the state on record is the last one that this manager has written.
func (f *Fence) VerifyTerm(ctx context.Context) error {
	live, state, err := f.getLive(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return ErrTermLost
	case err != nil:
		return err
	case live.UID == f.baseObject.UID && state.isSameCommit(f.state):
		return nil
	}
	return f.recordTermLost(state)
}

// Pending reports whether the outcome of a commit is unknown.
func (f *Fence) Pending() bool { return f.pending != nil }
