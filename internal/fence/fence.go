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

// The ConfigMap. The finalizer has a delete by mistake only mark it.
const (
	Namespace = metav1.NamespaceSystem
	Name      = "butler-node-cidrs"
	Finalizer = "butler.butlerlabs.dev/node-cidrs"
	dataKey   = "state"
)

var (
	// ErrLost says that another manager gives the CIDRs of the cluster now: what was planned is void.
	ErrLost = errors.New("another manager has taken the Nodes of the cluster over")
	// ErrMoved says that somebody edited the ConfigMap and left the grants as they were: plan anew.
	ErrMoved = errors.New("the ConfigMap " + Namespace + "/" + Name + " changed; planning again")
)

// DamagedError says that the ConfigMap cannot be read. Nothing is given until somebody mends or deletes it.
type DamagedError struct{ err error }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the ConfigMap %s/%s cannot be read: %v; delete it, and take its finalizer off: "+
		"what the Nodes have is then read from them, and 75 seconds later the next ones are served", Namespace, Name, e.err)
}

func (e *DamagedError) Unwrap() error { return e.err }

// RefusedError says that the API server refuses a commit for good: it is not sent again as it is.
type RefusedError struct{ err error }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the API server refuses the ConfigMap %s/%s: %v", Namespace, Name, e.err)
}

func (e *RefusedError) Unwrap() error { return e.err }

// Fence is a manager's view of the ConfigMap of a cluster. It is for one goroutine.
type Fence struct {
	client client.Client
	live   client.Reader
	id     string

	base  *corev1.ConfigMap
	state State
	// before is who has held it before this manager.
	before string
	// sent is a commit of which it is not known what became of it.
	sent *commit
	// distrusted: it could not be read since it was last held, or it is of an earlier past. What was granted meanwhile
	// is not in it.
	distrusted bool
}

type commit struct {
	object *corev1.ConfigMap
	state  State
	// doubtful: it was sent, and its answer is lost.
	doubtful bool
}

// New returns the fence of a cluster. It writes by c, and reads what the API server has by live; id is that of the
// process, and of nobody before it.
func New(c client.Client, live client.Reader, id string) *Fence {
	return &Fence{client: c, live: live, id: id}
}

// Read returns the state as the API server has it, and whether there is one.
func (f *Fence) Read(ctx context.Context) (State, bool, error) {
	_, state, err := f.read(ctx)
	if apierrors.IsNotFound(err) {
		return State{}, false, nil
	}
	return state, err == nil, err
}

func (f *Fence) read(ctx context.Context) (*corev1.ConfigMap, State, error) {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	live := &corev1.ConfigMap{}
	if err := f.live.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: Name}, live); err != nil {
		return nil, State{}, err
	}
	state, err := parse(live.Data[dataKey])
	if err != nil {
		f.distrusted = true
		return live, State{}, &DamagedError{err}
	}
	return live, state, nil
}

// TakeOver makes this manager the holder, and returns what it holds from now on. A list that begins afterwards shows
// whatever those before have given, but for what is in flight. Where there was no ConfigMap, or
// one that is not trusted, it says that it adopts since now.
func (f *Fence) TakeOver(ctx context.Context, now time.Time) (State, error) {
	live, state, err := f.read(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return f.create(ctx, now)
	case err != nil:
		return State{}, fmt.Errorf("taking over the Nodes of the cluster: %w", err)
	}
	if made := live.CreationTimestamp.Time; state.Adopting != nil && made.After(*state.Adopting) {
		state.Adopting = &made // the create was on its way for long
	}
	if state.Holder == f.id && !f.distrusted {
		f.base, f.state = live, state // the answer to the write was lost
		return state, nil
	}
	f.before = state.Holder
	state.Holder, state.Term = f.id, state.Term+1
	if f.distrusted {
		state.Adopting = &now
	}
	next, err := f.object(live, state)
	if err != nil {
		return State{}, err
	}
	if err := f.update(ctx, next); err != nil {
		return State{}, fmt.Errorf("taking over the Nodes of the cluster: %w", err)
	}
	f.base, f.state, f.distrusted = next, state, false
	return state, nil
}

func (f *Fence) create(ctx context.Context, now time.Time) (State, error) {
	state := State{Holder: f.id, Term: 1, Adopting: &now}
	next, err := f.object(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}}, state)
	if err != nil {
		return State{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	if err := f.client.Create(ctx, next); err != nil {
		return State{}, fmt.Errorf("creating the ConfigMap %s/%s: %w", Namespace, Name, err)
	}
	f.base, f.state, f.distrusted = next, state, false
	return state, nil
}

// object is the ConfigMap with a state. What else it has stays.
func (f *Fence) object(base *corev1.ConfigMap, s State) (*corev1.ConfigMap, error) {
	text, err := encode(s)
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
	next.Data[dataKey] = text
	return next, nil
}

func (f *Fence) update(ctx context.Context, o *corev1.ConfigMap) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	return f.client.Update(ctx, o)
}

// Before is who held the ConfigMap when this manager took it over; "": no manager did.
func (f *Fence) Before() string { return f.before }

// Deleting reports whether the ConfigMap is being deleted: our finalizer keeps it, and it goes on being used.
func (f *Fence) Deleting() bool { return f.base != nil && f.base.DeletionTimestamp != nil }

// State is what the last confirmed write says.
func (f *Fence) State() State { return f.state }

// Commit writes the next state of the term. It has happened when nil is returned. With any error but ErrLost, ErrMoved
// and RefusedError it may have: then Settle finds out, and nothing else is committed before.
func (f *Fence) Commit(ctx context.Context, next State) error {
	next.Holder, next.Term, next.Seq = f.state.Holder, f.state.Term, f.state.Seq+1
	object, err := f.object(f.base, next)
	if err != nil {
		return err
	}
	f.sent = &commit{object: object, state: next}
	return f.Settle(ctx)
}

// Settle finds out what became of the last commit, and sends it again where it may still land (R4).
func (f *Fence) Settle(ctx context.Context) error {
	if f.sent == nil {
		return nil
	}
	object := f.sent.object.DeepCopy()
	err := f.update(ctx, object)
	if err == nil {
		f.landed(object)
		return nil
	}
	if term.RefusedForGood(err) && !f.sent.doubtful {
		f.sent = nil
		return &RefusedError{err}
	}
	f.sent.doubtful = true
	live, state, readErr := f.read(ctx)
	switch {
	case apierrors.IsNotFound(readErr):
		f.sent = nil
		return ErrLost // nothing lands on what is gone
	case live == nil:
		return fmt.Errorf("committing grants: %w (reading them back: %w)", err, readErr)
	case readErr != nil:
		f.sent = nil
		return readErr
	}
	switch f.judge(live, state) {
	case term.HasLanded:
		f.landed(live)
		return nil
	case term.NeverLands:
		f.sent, f.base, f.state = nil, live, state
		return ErrMoved
	case term.MayLand:
		return fmt.Errorf("committing grants: %w", err)
	case term.Lost:
	}
	f.sent = nil
	return f.lost(state)
}

// lost notes that the term is over, by what is on record.
func (f *Fence) lost(state State) error {
	if state.Term <= f.state.Term {
		f.Distrust()
	}
	return ErrLost
}

// Distrust has the next takeover wait for what may still be under way: the API server, or the ConfigMap alone, was put
// back to an earlier state, which does not have the grants that were made since.
func (f *Fence) Distrust() { f.distrusted = true }

// Check returns nil where the state on record is the last one that this manager has written.
func (f *Fence) Check(ctx context.Context) error {
	live, state, err := f.read(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return ErrLost
	case err != nil:
		return err
	case live.UID == f.base.UID && state.same(f.state):
		return nil
	}
	return f.lost(state)
}

// judge says what became of the commit that was sent, by what the API server has.
func (f *Fence) judge(live *corev1.ConfigMap, state State) term.Verdict {
	return term.Sighting{
		SameObject: live.UID == f.base.UID, SameVersion: live.ResourceVersion == f.base.ResourceVersion,
		There: state.same(f.sent.state), AsBefore: state.same(f.state),
	}.Verdict()
}

func (f *Fence) landed(object *corev1.ConfigMap) {
	f.base, f.state, f.sent = object, f.sent.state, nil
}

// Unanswered reports whether it is not known what became of a commit.
func (f *Fence) Unanswered() bool { return f.sent != nil }
