package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

func TestMain(m *testing.M) { RunTestMain(m) }

// labeler is a manager that labels each Node.
type labeler struct {
	*Process

	client client.Client
	nodes  map[string]*corev1.Node
	queue  *Queue
	// reconcile replaces the reconcile of a labeler; nil means that nothing does.
	reconcile func(context.Context) error
}

func (l *labeler) Queues() []*Queue { return []*Queue{l.queue} }

func (l *labeler) ShowChange(c faults.Change) {
	if l.nodes[c.Object.GetName()] = c.Object.(*corev1.Node); c.Deleted {
		delete(l.nodes, c.Object.GetName())
	}
	l.queue.Wake()
}

func (l *labeler) ReplaceKind(_ faults.Kind, listed []client.Object) {
	clear(l.nodes)
	for _, o := range listed {
		l.ShowChange(faults.Change{Object: o})
	}
}

func (l *labeler) labelNodes() (reconcile.Result, error) {
	if l.reconcile != nil {
		return reconcile.Result{}, l.reconcile(l.Context)
	}
	for _, name := range slices.Sorted(maps.Keys(l.nodes)) {
		n := l.nodes[name]
		if n.Labels["seen"] != "" {
			continue
		}
		next := n.DeepCopy()
		next.Labels = map[string]string{"seen": "yes"}
		if err := l.client.Patch(l.Context, next, client.MergeFrom(n)); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}

// labels is a world of labelers.
type labels struct {
	*World[*labels, *labeler]

	api       *faults.Server
	reconcile func(context.Context) error
}

func (w *labels) start() {
	l := &labeler{Process: w.NewProcess(), nodes: map[string]*corev1.Node{}, reconcile: w.reconcile}
	l.client, l.Synced = w.api.NewClient(l.Name), true
	l.queue = &Queue{Name: "nodes", Reconcile: l.labelNodes}
	l.AddWatches(w.api, faults.Nodes)
	w.Relist(l, faults.Nodes, 0, 0)
	w.AddManager(l)
}

// labeled returns how many Nodes have the label.
func (w *labels) labeled() (n int) {
	for _, o := range w.api.List(faults.Nodes) {
		if o.GetLabels()["seen"] == "yes" {
			n++
		}
	}
	return n
}

func addNode(name string) Action[*labels] {
	return NewAttempt("add "+name, func(w *labels) bool {
		return w.api.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}) == nil
	})
}

// playLabels plays a world with two Nodes, of which one comes later, and returns it.
func playLabels(t *testing.T, setup func(*labels)) (w *labels) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w = &labels{api: faults.NewServer()}
		w.World = NewWorld(t, w, Config[*labeler]{
			Servers: []*faults.Server{w.api}, StartInPlaceOf: func(*labeler) { w.start() },
			Pause: time.Second, Rest: time.Minute, Watched: time.Minute, MaxReconcilesAtRest: func() int { return 0 },
		})
		w.Script = []Action[*labels]{addNode("b")}
		w.CreateObject(w.api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		setup(w)
		w.start()
		w.runToRest()
		w.end()
	})
	return w
}

// TestFaultsAtFirstWrite checks that a manager reaches its goal whatever happens to its first write, in each order.
func TestFaultsAtFirstWrite(t *testing.T) {
	for name, do := range map[string]func(*labels, *faults.Request) bool{
		"nothing":       func(*labels, *faults.Request) bool { return false },
		"crash before":  (*labels).CrashBefore,
		"crash after":   (*labels).CrashAfter,
		"crash late":    func(w *labels, r *faults.Request) bool { return w.CrashLate(r, 1, time.Minute) },
		"answer lost":   (*labels).LoseAnswer,
		"late":          func(w *labels, r *faults.Request) bool { return w.DelayCall(r, 0, 10*time.Second) },
		"paused before": func(w *labels, r *faults.Request) bool { return w.PauseBefore(r, 0, 10*time.Second) },
		"paused after":  func(w *labels, r *faults.Request) bool { return w.PauseAfter(r, 0, 10*time.Second) },
		"muted": func(w *labels, r *faults.Request) bool {
			w.Relist(w.Manager(r.Client), faults.Nodes, 0, 10*time.Second)
			return false
		},
	} {
		for order, of := range Orders {
			t.Run(name+"/"+order, func(t *testing.T) {
				w := playLabels(t, func(w *labels) {
					w.Order = of
					w.Disturb = func(w *labels, r *faults.Request) bool { return w.Writes == 1 && do(w, r) }
				})
				if n := w.labeled(); n != 2 || w.Failed() {
					t.Errorf("%d Nodes have the label: %q", n, w.violations)
				}
			})
		}
	}
}

// TestObstacleRefusesOrReverts checks that the calls that meet an obstacle are refused, or reverted, for as long as it
// lasts, and that its costs are checked.
func TestObstacleRefusesOrReverts(t *testing.T) {
	writes := func(r *faults.Request) bool { return r.IsWrite() }
	for name, tc := range map[string]struct {
		o         Obstacle
		maxWrites int
		want      string
	}{
		"refused":           {o: Obstacle{Matches: writes, Err: ErrAlways(errors.New("no"))}, maxWrites: 20},
		"refused too often": {o: Obstacle{Matches: writes, Err: ErrAlways(errors.New("no"))}, maxWrites: 2, want: "writes by a: Node a"},
		"reverted":          {o: Obstacle{Matches: writes, Revert: func(o client.Object) { o.SetLabels(nil) }}, maxWrites: 20, want: "writes by a: Node a"},
	} {
		t.Run(name, func(t *testing.T) {
			refused := 0
			w := playLabels(t, func(w *labels) {
				w.StartObstacle(tc.o)
				w.DelayStep(0, 30*time.Second, func() {
					refused = 2 - w.labeled()
					w.CheckObstacleCosts(10_000, tc.maxWrites)
					w.EndObstacle()
				})
			})
			if tc.o.Revert == nil && refused != 2 {
				t.Errorf("%d Nodes have no label meanwhile", refused)
			}
			if all := strings.Join(w.violations, "; "); w.Failed() != (tc.want != "") || !strings.Contains(all, tc.want) {
				t.Errorf("%q", all)
			}
			if n := w.labeled(); tc.want == "" && n != 2 {
				t.Errorf("%d Nodes have the label in the end", n)
			}
		})
	}
}

// TestSpinsAndPanicsAreViolations checks that a world finds managers that spin, and that panic.
func TestSpinsAndPanicsAreViolations(t *testing.T) {
	for want, do := range map[string]func(w *labels) error{
		"the managers spin": func(w *labels) error {
			w.Managers[0].queue.Wake()
			return nil
		},
		"a manager panics: oops": func(*labels) error { panic("oops") },
	} {
		t.Run(want, func(t *testing.T) {
			w := playLabels(t, func(w *labels) {
				w.reconcile = func(context.Context) error { return do(w) }
			})
			if !w.Failed() || !strings.HasPrefix(w.violations[0], want) {
				t.Errorf("%q", w.violations)
			}
		})
	}
}

// TestTimingOfUserActions checks when users act.
func TestTimingOfUserActions(t *testing.T) {
	var at []time.Duration
	note := NewAction("note", func(*labels) { at = append(at, time.Since(Epoch).Round(time.Second)) })
	later, when := note, note
	later.Wait = 10 * time.Second
	when.When = func(*labels) bool { return time.Since(Epoch) >= 18*time.Second }
	tries := 0
	never := NewAttempt("never", func(*labels) bool { tries++; return false })
	playLabels(t, func(w *labels) {
		w.UserPatience = 3
		w.Script = []Action[*labels]{note, later, never, when}
	})
	if want := []time.Duration{time.Second, 11 * time.Second, 18 * time.Second}; !slices.Equal(at, want) || tries != 4 {
		t.Errorf("%v, %d tries", at, tries)
	}
}
