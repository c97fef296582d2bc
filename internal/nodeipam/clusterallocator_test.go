package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// requestLog logs the requests of an allocator, in their order. The API server is a fake, as the tests check what is
// requested.
type requestLog struct {
	client.WithWatch
	mu  sync.Mutex
	all []string
	// failReads reports whether every read fails; failAll reports whether every request does.
	failReads, failAll bool
	// answerAfter is how long the answer to a read of the ConfigMap, or to a write of it, takes; sentAt is when the last
	// one was sent.
	answerAfter time.Duration
	sentAt      time.Time
}

// delayAnswer waits for the answer to a request for the ConfigMap.
func (c *requestLog) delayAnswer(o client.Object) {
	if _, isRecord := o.(*corev1.ConfigMap); isRecord && c.answerAfter > 0 {
		c.sentAt = time.Now()
		<-time.After(c.answerAfter)
	}
}

func (c *requestLog) recordf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

// indexOf returns the index of the first call that begins with a text.
func (c *requestLog) indexOf(begins string) int {
	return slices.IndexFunc(c.all, func(s string) bool { return strings.HasPrefix(s, begins) })
}

// lister lists for the allocator.
type lister struct{ *requestLog }

// List implements Lister.
func (c lister) List(ctx context.Context, of client.Object, _ string, visit func(client.Object)) (string, error) {
	c.recordf("list %T", of)
	var all corev1.NodeList
	if err := c.WithWatch.List(ctx, &all); err != nil {
		return "", err
	}
	for i := range all.Items {
		visit(&all.Items[i])
	}
	return "", nil
}

func newTestSite(t *testing.T, objects ...client.Object) (*ClusterAllocator, *requestLog) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := &requestLog{}
	c.WithWatch = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.ClusterCIDR{}).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, in client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if c.failReads || c.failAll {
				return timeout
			}
			c.delayAnswer(o)
			return in.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, in client.WithWatch, all client.ObjectList, opts ...client.ListOption) error {
			if c.failAll {
				return timeout
			}
			return in.List(ctx, all, opts...)
		},
		Create: func(ctx context.Context, in client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			c.recordf("create %T", o)
			if c.failAll {
				return timeout
			}
			return in.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, in client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			c.recordf("update %T", o)
			if c.failAll {
				return timeout
			}
			c.delayAnswer(o)
			return in.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, in client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			body, err := patch.Data(o)
			c.recordf("patch %T %s", o, body)
			if ended := ctx.Err(); ended != nil {
				return ended
			}
			if c.failAll {
				return timeout
			}
			return errors.Join(err, in.Patch(ctx, o, patch, opts...))
		},
	})
	s := NewClusterAllocator(Options{
		Client: c, Live: c, Lister: lister{c}, ObjectProtector: ClusterCIDRProtector{Client: c, Live: c}, ManagerID: "me", Elected: true,
		Workers: workers.New[ClusterKey](2), Enqueue: func(ClusterKey) {}, Now: time.Now,
	})
	var all v1alpha1.ClusterCIDRList
	if err := c.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var found []RangeObject
	for i := range all.Items {
		found = append(found, RangeObjectFromClusterCIDR(&all.Items[i]))
	}
	s.SetRangeObjects(found)
	var nodes corev1.NodeList
	if err := c.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		s.ObserveObject(&nodes.Items[i])
	}
	return s, c
}

func newNode(cidrs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-a"}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

func newRange(finalizers ...string) *v1alpha1.ClusterCIDR {
	return &v1alpha1.ClusterCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "uid-c", Finalizers: finalizers},
		Spec:       v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/23"},
	}
}

// TestAgeOfRecord checks R10 and R14: the record is as old as the request that shows it, a commit or a read, and not as
// its answer, which may take long: another manager may have replaced it since.
func TestAgeOfRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newTestSite(t, newNode(), newRange(v1alpha1.ClusterCIDRFinalizer))
		reconcileForMinutes(t, s, false)
		c.answerAfter = 10 * time.Second
		commitGrantToNewNode(t, s, c)
		checkAge := func(of string) {
			t.Helper()
			m := s.state.lock()
			defer m.Unlock()
			if !m.record.verifiedAt.Equal(c.sentAt) || time.Since(c.sentAt) < c.answerAfter {
				t.Errorf("after %s that was sent at %v the record counts as seen at %v", of, c.sentAt, m.record.verifiedAt)
			}
		}
		checkAge("a commit")
		<-time.After(time.Minute)
		if _, err := s.dispatchWrites(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkAge("a read")
	})
}

// TestTermLostByReadIsNoConflict checks that a term that a read shows to be lost ends, and counts as no conflict of a commit.
func TestTermLostByReadIsNoConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newTestSite(t, newNode(), newRange(v1alpha1.ClusterCIDRFinalizer))
		reconcileForMinutes(t, s, false)
		commitGrantToNewNode(t, s, c)
		<-time.After(2 * time.Minute)
		var records corev1.ConfigMapList
		if err := c.List(t.Context(), &records); err != nil || len(records.Items) != 1 {
			t.Fatalf("%d records: %v", len(records.Items), err)
		}
		record := &records.Items[0]
		record.Finalizers = nil // it keeps the record from being deleted
		if err := errors.Join(c.Update(t.Context(), record), c.Delete(t.Context(), record)); err != nil {
			t.Fatal(err)
		}
		conflicts := metrics.NodeCIDRCommits.WithLabelValues("conflict")
		before := testutil.ToFloat64(conflicts)
		if _, err := s.dispatchWrites(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := s.state.lock()
		defer m.Unlock()
		if m.term.isHolder {
			t.Error("the term goes on, although the record is gone")
		}
		if got := testutil.ToFloat64(conflicts) - before; got != 0 {
			t.Errorf("a read counts as %v conflicts of commits", got)
		}
	})
}

// commitGrantToNewNode adds a Node, and commits a grant to it that is not written yet.
func commitGrantToNewNode(t *testing.T, s *ClusterAllocator, c *requestLog) {
	t.Helper()
	b := newNode()
	b.Name, b.UID = "b", "uid-b"
	if err := c.Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	s.ObserveObject(b)
	if _, err := s.commitPlanned(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// commitPlanned plans for the Nodes that wait, and commits, without the writes that follow.
func (ca *ClusterAllocator) commitPlanned(ctx context.Context) (time.Duration, error) {
	m := ca.state.lock()
	m.planner.planGrants(ca.Now())
	m.Unlock()
	return ca.commitState(ctx)
}

// TestOrderOfGrant checks R14, R15 and K33: the order of the requests of a first grant, and the body of the patch
// of the Node.
func TestOrderOfGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newTestSite(t, newNode(), newRange())
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		last := -1
		for _, begins := range []string{"create *v1.ConfigMap", "list *v1.Node", "patch *v1alpha1.ClusterCIDR", "update *v1.ConfigMap", "patch *v1.Node"} {
			at := c.indexOf(begins)
			for i := last + 1; i < len(c.all); i++ { // the ConfigMap is also written before, to record that there was no manager
				if at <= last && strings.HasPrefix(c.all[i], begins) {
					at = i
				}
			}
			if at <= last {
				t.Fatalf("%q does not come after what comes before it:\n%s", begins, strings.Join(c.all, "\n"))
			}
			last = at
		}
		want := `patch *v1.Node {"metadata":{"annotations":{"butler.butlerlabs.dev/cluster-cidr":"c"},"uid":"uid-a"},"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"]}}`
		if got := c.all[c.indexOf("patch *v1.Node")]; got != want {
			t.Errorf("the patch is\n%s\nwant\n%s", got, want)
		}
	})
}

// TestWriteOutlivesReconcile checks that a write is made although it waits in the queue for longer than the reconcile
// lasts that submits it.
func TestWriteOutlivesReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newTestSite(t, newNode(), newRange())
		s.Workers = workers.New[ClusterKey](1)
		taken := make(chan struct{})
		s.Workers.Submit(s.ClusterKey, func() { <-taken })
		turn, end := context.WithCancel(t.Context())
		if _, err := s.Reconcile(turn); err != nil {
			t.Fatal(err)
		}
		end()
		close(taken)
		synctest.Wait()
		var n corev1.Node
		if err := c.Get(t.Context(), client.ObjectKey{Name: "a"}, &n); err != nil {
			t.Fatal(err)
		}
		if len(n.Spec.PodCIDRs) == 0 {
			t.Errorf("the Node has no pod CIDR:\n%s", strings.Join(c.all, "\n"))
		}
	})
}

// TestUsedClusterWaitsForAdoption checks R10 and R15: whether another manager or allocator may have written before.
func TestUsedClusterWaitsForAdoption(t *testing.T) {
	other := newNode("10.0.1.0/24")
	other.Name, other.UID = "other", "uid-other"
	for name, tc := range map[string]struct {
		objects []client.Object
		waits   bool
	}{
		"a new cluster":         {objects: []client.Object{newRange()}},
		"a Node has a CIDR":     {objects: []client.Object{newRange(), other}, waits: true},
		"a range was protected": {objects: []client.Object{newRange(v1alpha1.ClusterCIDRFinalizer)}, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newTestSite(t, append(tc.objects, newNode())...)
				wait, err := s.Reconcile(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if waits := c.indexOf("patch *v1.Node") < 0; waits != tc.waits || (waits && wait != adoptionPeriod) {
					t.Errorf("it grants nothing: %v, and comes back after %v", waits, wait)
				}
			})
		})
	}
}

// TestProtectObject checks K41: an object that is being deleted, is gone, or was replaced by another one is not opened.
func TestProtectObject(t *testing.T) {
	deleted := newRange("example.com/foreign")
	deleted.DeletionTimestamp = &metav1.Time{Time: noon}
	another := newRange()
	another.UID = "another"
	for name, tc := range map[string]struct {
		cc      *v1alpha1.ClusterCIDR
		closing bool
		patches int
	}{
		"there":         {cc: newRange(), patches: 1},
		"protected":     {cc: newRange(v1alpha1.ClusterCIDRFinalizer)},
		"being deleted": {cc: deleted, closing: true},
		"another":       {cc: another, closing: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := newTestSite(t, tc.cc)
			err := ClusterCIDRProtector{Client: c, Live: c}.ProtectObject(t.Context(), RangeObjectFromClusterCIDR(newRange()).Ref)
			if errors.Is(err, errClosing) != tc.closing || (!tc.closing && err != nil) || len(c.all) != tc.patches {
				t.Errorf("%v, with %v", err, c.all)
			}
		})
	}
}

// TestAdoptionEndsWithList checks R10 and R15: what landed during the wait for the former allocator is listed before
// the first grant.
func TestAdoptionEndsWithList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := newNode()
		late.Name, late.UID = "late", "uid-late"
		s, c := newTestSite(t, newNode(), late, newRange(v1alpha1.ClusterCIDRFinalizer))
		wait, err := s.Reconcile(t.Context())
		if err != nil || wait != adoptionPeriod {
			t.Fatalf("%v, %v", wait, err)
		}
		late.Spec.PodCIDRs = []string{"10.0.0.0/24"} // the watch does not show it
		live := &corev1.Node{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(late), live); err != nil {
			t.Fatal(err)
		}
		live.Spec = late.Spec
		if err := c.Update(t.Context(), live); err != nil {
			t.Fatal(err)
		}
		<-time.After(adoptionPeriod)
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if at := c.indexOf("patch *v1.Node"); at < 0 || !strings.Contains(c.all[at], `"podCIDR":"10.0.1.0/24"`) {
			t.Errorf("granted what has landed:\n%s", strings.Join(c.all, "\n"))
		}
	})
}

// TestPausedManagerReadsBeforeItWrites checks R10 and R14: a manager that was paused reads its grants on record before
// it writes.
func TestPausedManagerReadsBeforeItWrites(t *testing.T) {
	for name, tc := range map[string]struct{ lost, deaf bool }{"there": {}, "lost": {lost: true}, "no condition": {deaf: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newTestSite(t, newRange(), newNode())
				state, err := s.fence.TakeOver(t.Context(), time.Now())
				if err != nil {
					t.Fatal(err)
				}
				state.InFlight = []fence.Grant{{NodeName: "a", NodeUID: "uid-a", ClusterCIDRName: "c", CIDRs: prefixes("10.0.0.0/24")}}
				state.AdoptingSince = nil
				if err := s.fence.CommitState(t.Context(), state); err != nil {
					t.Fatal(err)
				}
				m := s.state.lock()
				m.term.takeoverCount++
				m.applyTakeover(s.fence.CommittedState(), map[types.UID]*nodeEntry{"uid-a": newNodeEntry(nodeFromObject(newNode()), "1", noon)}, time.Now())
				m.Unlock()
				<-time.After(time.Hour)
				if tc.lost {
					o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fence.ConfigMapNamespace, Name: fence.ConfigMapName}}
					if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
						t.Fatal(err)
					}
					o.Finalizers = nil
					if err := errors.Join(c.Update(t.Context(), o), c.Delete(t.Context(), o)); err != nil {
						t.Fatal(err)
					}
				}
				c.failReads = tc.deaf
				if _, err := s.Reconcile(t.Context()); (err != nil) != tc.deaf {
					t.Fatal(err)
				}
				synctest.Wait()
				if written := c.indexOf("patch *v1.Node") >= 0; written == (tc.lost || tc.deaf) {
					t.Errorf("written: %v\n%s", written, strings.Join(c.all, "\n"))
				}
				m = s.state.lock()
				defer m.Unlock()
				if m.term.isHolder == tc.lost || m.record.commitErr != nil {
					t.Errorf("holder: %v, and shown: %v", m.term.isHolder, m.record.commitErr)
				}
			})
		})
	}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// TestClusterIsTakenOverOnce checks that the cluster is taken over once on request, for work that only one manager
// should do, although no Node waits.
func TestClusterIsTakenOverOnce(t *testing.T) {
	s, _ := newTestSite(t)
	step := func() {
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if step(); s.IsHolder() {
		t.Fatal("it was taken over for nothing")
	}
	s.RequestTakeover()
	if step(); !s.IsHolder() {
		t.Fatal("it was not taken over")
	}
	s.state.recordTermLost(time.Now(), func(time.Duration) time.Duration { return 0 })
	s.state.term.NotBefore = time.Time{}
	if step(); s.IsHolder() {
		t.Error("it was taken over again")
	}
}

// TestTakeOverIfOutdated checks that statuses that no holder writes cause one takeover, and that a holder that writes,
// however late, keeps the cluster.
func TestTakeOverIfOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newTestSite(t)
		s.Elected = false
		ask := func(allocated string, within time.Duration) (taken bool) {
			t.Helper()
			statuses := map[string]StatusDifference{}
			if allocated != "" {
				statuses["c"] = StatusDifference{DifferingFields: allocated, PublishedStatus: allocated}
			}
			for end := time.Now().Add(within); time.Now().Before(end) && !s.IsHolder(); <-time.After(time.Second) {
				s.TakeOverIfOutdated(statuses, time.Minute)
				if _, err := s.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return s.IsHolder()
		}
		for i := range 5 {
			s.TakeOverIfOutdated(map[string]StatusDifference{"c": {DifferingFields: "0", PublishedStatus: strconv.Itoa(i)}}, time.Minute) // messages differ
			<-time.After(59 * time.Second)
		}
		const few = 3 * time.Minute
		if s.TakeOverIfOutdated(nil, time.Minute); ask("", few) {
			t.Fatal("it was taken over from one that writes")
		}
		if !ask("4", few) {
			t.Fatal("it was not taken over")
		}
		lose := func() {
			s.state.recordTermLost(time.Now(), func(time.Duration) time.Duration { return 0 })
			s.state.term.NotBefore = time.Time{}
		}
		if lose(); ask("4", few) {
			t.Error("it was taken over again for the same")
		}
		if !ask("5", few) {
			t.Error("it was not taken over for what another one has left")
		}
		if lose(); !ask("4", 10*time.Minute) {
			t.Error("it was never taken over again for the same")
		}
		if lose(); ask("4", time.Hour) {
			t.Error("it was taken over for the same a third time, as soon as the second")
		}
		if ask("", few); !ask("4", few) {
			t.Error("it was not taken over for what is outdated since")
		}
	})
}
