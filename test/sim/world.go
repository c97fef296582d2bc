package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// latency is how long a call takes.
const latency = 5 * time.Millisecond

// World is one run: W is the type of the package that embeds it, M that of its managers.
type World[W any, M Manager] struct {
	Run

	T *testing.T
	// Managers are all managers that were started, also the dead ones.
	Managers []M
	// Script is what remains for the user to do.
	Script []Action[W]
	// Order selects the next step.
	Order Order
	// Disturb decides what happens to a call; it returns false if nothing special does.
	Disturb func(W, *faults.Request) bool
	// Obstacle is the obstacle that lasts, nil if none does. Obstructed reports whether there was one.
	Obstacle   *Obstacle
	Obstructed bool

	// Hurry is the write right before which the user begins; 0 means that the user waits. Anytime reports whether the
	// user waits for nothing, Impatient whether not for the end of a fault.
	Hurry              int
	Anytime, Impatient bool
	// UserWhims makes the user act at random.
	UserWhims *rand.Rand
	// UserPatience is how often the user tries what is not possible; 0 means for ever.
	UserPatience int

	// LastChange is when a server changed, or something went wrong.
	LastChange time.Time
	// StepsSinceChange counts the steps since then.
	StepsSinceChange int
	// Calls and Reconciles count the calls of managers and the reconciles.
	Calls, Reconciles int

	self    W
	config  Config[M]
	answers []response
	// open has when the calls without an answer began.
	open map[*faults.Request]time.Time
	// attempts counts what the user could not do; stalledAt is the version at which the last one was.
	attempts  int
	stalledAt int64
	// seenChanges is how many changes of each kind NewChanges has returned.
	seenChanges map[faults.Kind]int
	// atRest has Calls and Reconciles as they were when everything came to rest.
	atRest *[2]int
}

// NewWorld returns a world, which self embeds.
func NewWorld[W any, M Manager](t *testing.T, self W, config Config[M]) *World[W, M] {
	t.Helper()
	config.MaxIdleSteps = cmp.Or(config.MaxIdleSteps, 300)
	return &World[W, M]{
		T: t, Order: Orders["eager"], self: self, config: config, open: map[*faults.Request]time.Time{}, seenChanges: map[faults.Kind]int{},
	}
}

// Play runs the world until it is at rest, examines it if nothing went wrong, and ends it.
func (w *World[W, M]) Play(examine func()) {
	w.T.Helper()
	w.runToRest()
	if !w.Failed() {
		examine()
	}
	w.end()
	var servers []Digester
	for _, s := range w.config.Servers {
		servers = append(servers, s)
	}
	w.Report(w.T, servers...)
}

// end ends every goroutine.
func (w *World[W, M]) end() {
	for _, m := range w.Managers {
		p := m.process()
		p.Asleep = false
		p.Kill()
	}
	for more := true; more; {
		synctest.Wait()
		more = len(w.answers) > 0
		for _, a := range slices.Clone(w.answers) {
			w.deliver(response{a.call, nil, ErrKilled})
		}
		for _, s := range w.config.Servers {
			for _, r := range s.PendingRequests() {
				more = true
				s.TakeRequest(r)
				r.Answer(nil, ErrKilled)
			}
		}
	}
}

// NewProcess returns the process of the next manager.
func (w *World[W, M]) NewProcess() *Process {
	p := &Process{Name: string(rune('a' + len(w.Managers)))}
	p.Context, p.cancel = context.WithCancel(w.T.Context())
	return p
}

// AddManager adds a manager that has started.
func (w *World[W, M]) AddManager(m M) {
	w.Managers = append(w.Managers, m)
	w.Tracef("manager %s starts", m.process().Name)
}

// Manager returns the manager of a name.
func (w *World[W, M]) Manager(name string) M {
	return w.Managers[slices.IndexFunc(w.Managers, func(m M) bool { return m.process().Name == name })]
}

// Crash kills a manager between two instructions, and starts another.
func (w *World[W, M]) Crash(m M) {
	w.Kill(m)
	w.config.StartInPlaceOf(m)
}

// Kill kills a manager between two instructions.
func (w *World[W, M]) Kill(m M) {
	w.Tracef("manager %s is killed", m.process().Name)
	m.process().Kill()
}

// Relist breaks the watch on a kind: it shows nothing until a list that is taken now arrives, after the given number of
// further writes or after delay, whichever is first.
func (w *World[W, M]) Relist(m M, kind faults.Kind, writes int, delay time.Duration) {
	p := m.process()
	watch := p.watchOf(kind)
	listed, seen := watch.server.List(kind), len(watch.server.ChangesSince(kind, 0))
	arrive := func() {
		watch.seen, watch.muted = seen, false
		if !p.Dead {
			m.ReplaceKind(kind, listed)
		}
	}
	if delay == 0 {
		arrive()
		return
	}
	watch.muted = true
	w.DelayStep(writes, delay, arrive)
}

// CreateObject creates an object as another writer, which must succeed.
func (w *World[W, M]) CreateObject(server *faults.Server, o client.Object) {
	w.T.Helper()
	if err := server.Create(o); err != nil {
		w.T.Fatal(fmt.Errorf("creating %s: %w", o.GetName(), err))
	}
}

// NewChanges returns the changes of a kind since it was last called for that.
func (w *World[W, M]) NewChanges(server *faults.Server, kind faults.Kind) []faults.Change {
	changes := server.ChangesSince(kind, w.seenChanges[kind])
	w.seenChanges[kind] += len(changes)
	return changes
}

// Change runs what may change a server, and checks the world after a change.
func (w *World[W, M]) Change(by string, do func()) { w.change(by, false, do) }

// ChangeAsUser runs what a user does, and checks the world after a change.
func (w *World[W, M]) ChangeAsUser(what string, do func()) { w.change("the user: "+what, true, do) }

func (w *World[W, M]) change(by string, byUser bool, do func()) {
	before := w.version()
	do()
	if w.config.AfterWrite != nil {
		w.config.AfterWrite()
	}
	if w.version() == before {
		return
	}
	w.LastChange, w.StepsSinceChange = time.Now(), 0
	w.Tracef("    %s: now %s", by, w.versions())
	if w.config.OnChange != nil {
		w.config.OnChange(byUser)
	}
}

// version grows with each change of a server.
func (w *World[W, M]) version() (sum int64) {
	for _, s := range w.config.Servers {
		sum += s.ResourceVersion()
	}
	return sum
}

// versions formats the versions of the servers.
func (w *World[W, M]) versions() string {
	var out []string
	for _, s := range w.config.Servers {
		out = append(out, fmt.Sprint(s.ResourceVersion()))
	}
	return strings.Join(out, " and ")
}
