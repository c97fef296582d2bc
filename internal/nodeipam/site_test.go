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

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// calls are the requests of a site, in their order. The API server is a fake: what is asked is what is looked at.
type calls struct {
	client.WithWatch
	mu  sync.Mutex
	all []string
	// deaf: no read is answered. away: nothing is.
	deaf, away bool
}

func (c *calls) notef(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

// at is where the first call is that begins so.
func (c *calls) at(begins string) int {
	return slices.IndexFunc(c.all, func(s string) bool { return strings.HasPrefix(s, begins) })
}

// lister lists for the site.
type lister struct{ *calls }

// List implements Lister.
func (c lister) List(ctx context.Context, of client.Object, _ string, visit func(client.Object)) (string, error) {
	c.notef("list %T", of)
	var all corev1.NodeList
	if err := c.WithWatch.List(ctx, &all); err != nil {
		return "", err
	}
	for i := range all.Items {
		visit(&all.Items[i])
	}
	return "", nil
}

func siteOf(t *testing.T, objects ...client.Object) (*Site, *calls) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := &calls{}
	c.WithWatch = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.ClusterCIDR{}).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, in client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if c.deaf || c.away {
				return timeout
			}
			return in.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, in client.WithWatch, all client.ObjectList, opts ...client.ListOption) error {
			if c.away {
				return timeout
			}
			return in.List(ctx, all, opts...)
		},
		Create: func(ctx context.Context, in client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			c.notef("create %T", o)
			if c.away {
				return timeout
			}
			return in.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, in client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			c.notef("update %T", o)
			if c.away {
				return timeout
			}
			return in.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, in client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			body, err := patch.Data(o)
			c.notef("patch %T %s", o, body)
			if ended := ctx.Err(); ended != nil {
				return ended
			}
			if c.away {
				return timeout
			}
			return errors.Join(err, in.Patch(ctx, o, patch, opts...))
		},
	})
	s := NewSite(Options{
		Client: c, Live: c, Lister: lister{c}, Objects: ClusterCIDRs{Client: c, Live: c}, ID: "me", Elected: true,
		Workers: workers.New[Key](2), Wake: func(Key) {}, Now: time.Now,
	})
	var all v1alpha1.ClusterCIDRList
	if err := c.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var found []Object
	for i := range all.Items {
		found = append(found, ObjectOf(&all.Items[i]))
	}
	s.SetObjects(found)
	var nodes corev1.NodeList
	if err := c.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		s.Observe(&nodes.Items[i])
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

// R14, R15, K33: the order of what a first grant takes, and what the patch of the Node says.
func TestTheOrderOfAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := siteOf(t, newNode(), newRange())
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		last := -1
		for _, begins := range []string{"create *v1.ConfigMap", "list *v1.Node", "patch *v1alpha1.ClusterCIDR", "update *v1.ConfigMap", "patch *v1.Node"} {
			at := c.at(begins)
			for i := last + 1; i < len(c.all); i++ { // the ConfigMap is written before as well: nobody was here
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
		if got := c.all[c.at("patch *v1.Node")]; got != want {
			t.Errorf("the patch is\n%s\nwant\n%s", got, want)
		}
	})
}

// A write waits for its place for longer than the turn has that hands it out: it is made all the same.
func TestAWriteOutlivesItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := siteOf(t, newNode(), newRange())
		s.Workers = workers.New[Key](1)
		taken := make(chan struct{})
		s.Workers.Do(s.Key, func() { <-taken })
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

// R10, R15: who may have written before, and who cannot have.
func TestWhoWaitsForWhatWasBefore(t *testing.T) {
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
				s, c := siteOf(t, append(tc.objects, newNode())...)
				wait, err := s.Reconcile(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if waits := c.at("patch *v1.Node") < 0; waits != tc.waits || (waits && wait != adoption) {
					t.Errorf("it grants nothing: %v, and comes back after %v", waits, wait)
				}
			})
		})
	}
}

// K41: what is being deleted, gone, or another one is not opened.
func TestProtect(t *testing.T) {
	deleted := newRange("somebody/else")
	deleted.DeletionTimestamp = &metav1.Time{Time: noon}
	another := newRange()
	another.UID = "another"
	for name, tc := range map[string]struct {
		is      *v1alpha1.ClusterCIDR
		closing bool
		patches int
	}{
		"there":         {is: newRange(), patches: 1},
		"protected":     {is: newRange(v1alpha1.ClusterCIDRFinalizer)},
		"being deleted": {is: deleted, closing: true},
		"another":       {is: another, closing: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := siteOf(t, tc.is)
			err := ClusterCIDRs{Client: c, Live: c}.Protect(t.Context(), ObjectOf(newRange()).Ref)
			if errors.Is(err, errClosing) != tc.closing || (!tc.closing && err != nil) || len(c.all) != tc.patches {
				t.Errorf("%v, with %v", err, c.all)
			}
		})
	}
}

// R10, R15: what landed while the former allocator was waited for is listed before the first grant.
func TestAdoptionEndsWithAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := newNode()
		late.Name, late.UID = "late", "uid-late"
		s, c := siteOf(t, newNode(), late, newRange(v1alpha1.ClusterCIDRFinalizer))
		wait, err := s.Reconcile(t.Context())
		if err != nil || wait != adoption {
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
		<-time.After(adoption)
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if at := c.at("patch *v1.Node"); at < 0 || !strings.Contains(c.all[at], `"podCIDR":"10.0.1.0/24"`) {
			t.Errorf("granted what has landed:\n%s", strings.Join(c.all, "\n"))
		}
	})
}

// R10, R14: a manager that was paused looks for its grants on record before it writes.
func TestAPausedManagerLooksFirst(t *testing.T) {
	for name, tc := range map[string]struct{ lost, deaf bool }{"there": {}, "lost": {lost: true}, "nobody says": {deaf: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := siteOf(t, newRange(), newNode())
				state, err := s.fence.TakeOver(t.Context(), time.Now())
				if err != nil {
					t.Fatal(err)
				}
				state.InFlight = []fence.Grant{{Node: "a", UID: "uid-a", From: "c", CIDRs: prefixes("10.0.0.0/24")}}
				state.Adopting = nil
				if err := s.fence.Commit(t.Context(), state); err != nil {
					t.Fatal(err)
				}
				m := s.lock()
				m.takeovers++
				m.tookOver(s.fence.State(), map[types.UID]*node{"uid-a": seen(nodeOf(newNode()), "1", noon)}, time.Now())
				m.Unlock()
				<-time.After(time.Hour)
				if tc.lost {
					o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fence.Namespace, Name: fence.Name}}
					if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
						t.Fatal(err)
					}
					o.Finalizers = nil
					if err := errors.Join(c.Update(t.Context(), o), c.Delete(t.Context(), o)); err != nil {
						t.Fatal(err)
					}
				}
				c.deaf = tc.deaf
				if _, err := s.Reconcile(t.Context()); (err != nil) != tc.deaf {
					t.Fatal(err)
				}
				synctest.Wait()
				if written := c.at("patch *v1.Node") >= 0; written == (tc.lost || tc.deaf) {
					t.Errorf("written: %v\n%s", written, strings.Join(c.all, "\n"))
				}
				m = s.lock()
				defer m.Unlock()
				if m.holder == tc.lost || m.commitErr != nil {
					t.Errorf("holder: %v, and shown: %v", m.holder, m.commitErr)
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

// What only one manager should do is no Node's business: the site is taken over for it, once.
func TestClaim(t *testing.T) {
	s, _ := siteOf(t)
	step := func() {
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if step(); s.Holds() {
		t.Fatal("it was taken over for nothing")
	}
	s.Claim()
	if step(); !s.Holds() {
		t.Fatal("it was not taken over")
	}
	s.memory.lose(time.Now(), func(time.Duration) time.Duration { return 0 })
	s.memory.NotBefore = time.Time{}
	if step(); s.Holds() {
		t.Error("it was taken over again")
	}
}

// Statuses that no holder writes have the site taken over once; a holder that writes, however late, keeps it.
func TestClaimOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := siteOf(t)
		s.Elected = false
		ask := func(allocated string, within time.Duration) (taken bool) {
			t.Helper()
			statuses := map[string]Difference{}
			if allocated != "" {
				statuses["c"] = Difference{In: allocated, Says: allocated}
			}
			for end := time.Now().Add(within); time.Now().Before(end) && !s.Holds(); <-time.After(time.Second) {
				s.ClaimOutdated(statuses, time.Minute)
				if _, err := s.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return s.Holds()
		}
		for i := range 5 {
			s.ClaimOutdated(map[string]Difference{"c": {In: "0", Says: strconv.Itoa(i)}}, time.Minute) // as a message has
			<-time.After(59 * time.Second)
		}
		const few = 3 * time.Minute
		if s.ClaimOutdated(nil, time.Minute); ask("", few) {
			t.Fatal("it was taken over from one that writes")
		}
		if !ask("4", few) {
			t.Fatal("it was not taken over")
		}
		lose := func() {
			s.memory.lose(time.Now(), func(time.Duration) time.Duration { return 0 })
			s.memory.NotBefore = time.Time{}
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
