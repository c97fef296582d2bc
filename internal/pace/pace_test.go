package pace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var errRefused = errors.New("refused")

// paced is a Service on an API server that a manager writes through a WritePacer, and another writer without one.
type paced struct {
	t       *testing.T
	clock   *clocktesting.FakeClock
	server  client.Client
	manager client.Client
	// refuses reports whether patches are refused; unchanged reports whether they change nothing, which the fake API
	// server does not detect.
	refuses, unchanged bool
}

func newPaced(t *testing.T) *paced {
	t.Helper()
	p := &paced{t: t, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u"}}
	p.server = fake.NewClientBuilder().WithObjects(s).WithStatusSubresource(s).Build()
	refusing := interceptor.NewClient(p.server.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			switch {
			case p.refuses:
				return errRefused
			case p.unchanged:
				return nil
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	})
	p.manager = (&WritePacer{Clock: p.clock}).WrapClient(refusing)
	return p
}

func (p *paced) get() *corev1.Service {
	p.t.Helper()
	s := &corev1.Service{}
	if err := p.server.Get(p.t.Context(), client.ObjectKey{Namespace: "ns", Name: "s"}, s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// label patches a label of the Service.
func (p *paced) label(by client.Client, value string) error {
	s := p.get()
	before := s.DeepCopy()
	metav1.SetMetaDataLabel(&s.ObjectMeta, "l", value)
	return by.Patch(p.t.Context(), s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// setCondition writes the status of the Service.
func (p *paced) setCondition(reason string) error {
	s := p.get()
	before := s.DeepCopy()
	s.Status.Conditions = []metav1.Condition{{Type: "T", Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(p.clock.Now())}}
	return p.manager.Status().Patch(p.t.Context(), s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func (p *paced) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

var (
	// doubling are the delays in seconds of conditions and applies; steady are those of writes that may protect what
	// is in use.
	doubling = []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}
	steady   = []time.Duration{1, 1, 1, 1, 1, 1, 1, 1, 1}
)

// TestRevertedWritesAreDelayed checks that a write that another writer reverts each time is repeated after a second,
// and a status after one second, two, and so on, up to a minute.
func TestRevertedWritesAreDelayed(t *testing.T) { // B57 (a reverted write is repeated with a growing delay)
	for name, by := range map[string]struct {
		write  func(*paced) error
		revert func(*corev1.Service)
		want   []time.Duration
	}{
		"a patch": {
			want:   steady,
			write:  func(p *paced) error { return p.label(p.manager, "mine") },
			revert: func(s *corev1.Service) { s.Labels = nil },
		},
		"an update": {
			want: steady,
			write: func(p *paced) error {
				s := p.get()
				metav1.SetMetaDataLabel(&s.ObjectMeta, "l", "mine")
				return p.manager.Update(p.t.Context(), s)
			},
			revert: func(s *corev1.Service) { s.Labels = nil },
		},
		"an apply": {
			want: doubling,
			write: func(p *paced) error {
				u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{
					"namespace": "ns", "name": "s", "uid": "u", "resourceVersion": p.get().ResourceVersion, "labels": map[string]any{"l": "mine"},
				}}}
				return p.manager.Apply(p.t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("m"), client.ForceOwnership)
			},
			revert: func(s *corev1.Service) { s.Labels = map[string]string{"l": "theirs"} },
		},
		"a patch of the status": {
			want:   doubling,
			write:  func(p *paced) error { return p.setCondition("Mine") },
			revert: func(s *corev1.Service) { s.Status.Conditions = nil },
		},
		"an update of the status": {
			want: doubling,
			write: func(p *paced) error {
				s := p.get()
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
				return p.manager.Status().Update(p.t.Context(), s)
			},
			revert: func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPaced(t)
			var waits []time.Duration
			for range 9 {
				p.must(by.write(p))
				s := p.get()
				by.revert(s)
				p.must(p.server.Status().Update(t.Context(), s.DeepCopy()))
				s = p.get()
				by.revert(s)
				p.must(p.server.Update(t.Context(), s))
				after, rest := SplitDelayed(fmt.Errorf("writing: %w", by.write(p)))
				if rest != nil || after == 0 {
					t.Fatalf("%v: what was reverted may be written again in %v", rest, after)
				}
				waits = append(waits, after/time.Second)
				p.clock.Step(after - 1)
				if again, _ := SplitDelayed(by.write(p)); again != 1 {
					t.Errorf("it may be written too early, in %v instead of 1ns", again)
				}
				p.clock.Step(1)
			}
			if !slices.Equal(waits, by.want) {
				t.Errorf("it is repeated after %v seconds, not %v", waits, by.want)
			}
		})
	}
}

// TestConditionsAreDelayedIndependently checks that several conditions of an object that are all reverted are delayed
// independently.
func TestConditionsAreDelayedIndependently(t *testing.T) {
	p, writes := newPaced(t), 0
	for range 1000 { // in steps of half a second
		for _, reason := range []string{"A", "B", "C"} {
			after, err := SplitDelayed(p.setCondition(reason))
			p.must(err)
			if after == 0 {
				writes++
				s := p.get()
				s.Status.Conditions = nil
				p.must(p.server.Status().Update(t.Context(), s))
			}
		}
		p.clock.Step(MinDelay / 2)
	}
	if writes < 3*8 || writes > 3*20 {
		t.Errorf("%d writes of three conditions in 500 s", writes)
	}
}

// TestRepeatedCreationsAreDelayed checks that an object that a tool deletes each time is created again with a growing
// delay.
func TestRepeatedCreationsAreDelayed(t *testing.T) {
	p, writes := newPaced(t), 0
	for range 1000 {
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}
		after, err := SplitDelayed(p.manager.Create(t.Context(), o))
		p.must(err)
		if after == 0 {
			writes++
			p.must(p.server.Delete(t.Context(), o))
		}
		p.clock.Step(MinDelay / 2)
	}
	if writes < 8 || writes > 20 {
		t.Errorf("it is created %d times in 500 s", writes)
	}
}

// TestOtherWritesAreNotDelayed checks that all other writes are sent at once.
func TestOtherWritesAreNotDelayed(t *testing.T) {
	for name, write := range map[string]func(*paced){
		"objects that are given a name": func(p *paced) {
			for range 3 {
				p.must(p.manager.Create(p.t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", GenerateName: "s-"}}))
			}
		},
		"other values": func(p *paced) {
			for i := range 2 * maxRememberedWrites {
				p.must(p.label(p.manager, fmt.Sprint(i)))
			}
		},
		"another object": func(p *paced) {
			p.must(p.setCondition("A"))
			p.must(p.server.Create(p.t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "v"}}))
			other := &corev1.Service{}
			p.must(p.server.Get(p.t.Context(), client.ObjectKey{Namespace: "ns", Name: "other"}, other))
			before := other.DeepCopy()
			other.Status.Conditions = p.get().Status.Conditions
			p.must(p.manager.Status().Patch(p.t.Context(), other, client.MergeFrom(before)))
		},
		"what comes and goes more slowly than it is delayed": func(p *paced) {
			for range 20 {
				p.must(p.setCondition("A"))
				p.must(p.setCondition("B"))
				p.clock.Step(MinDelay)
			}
		},
		"what was refused": func(p *paced) {
			p.refuses = true
			if err := p.label(p.manager, "a"); !errors.Is(err, errRefused) {
				p.t.Fatal(err)
			}
			p.refuses = false
			p.must(p.label(p.manager, "a"))
		},
		"what changed nothing": func(p *paced) {
			p.unchanged = true
			for range 3 {
				p.must(p.label(p.manager, "a"))
			}
		},
		"an object of the same name": func(p *paced) {
			p.must(p.label(p.manager, "a"))
			p.must(p.server.Delete(p.t.Context(), p.get()))
			p.must(p.server.Create(p.t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "v"}}))
			p.must(p.label(p.manager, "a"))
		},
		"what is reverted some time after it was written, however often": func(p *paced) {
			for range 20 {
				p.must(p.setCondition("A"))
				p.clock.Step(MinDelay)
				s := p.get()
				s.Status.Conditions = nil
				p.must(p.server.Status().Update(p.t.Context(), s))
			}
		},
		"without Writes": func(p *paced) {
			by := (*WritePacer)(nil).WrapClient(p.server)
			for range 3 {
				p.must(p.label(by, "a"))
				p.must(p.label(p.server, "theirs"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) { write(newPaced(t)) })
	}
}

// TestOldWritesAreForgotten checks that records are removed for objects that are gone, or that no other writer reverts.
func TestOldWritesAreForgotten(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	p := &WritePacer{Clock: clock}
	for i := range 1000 {
		p.recordWrite(writeTarget{uid: "u", subresource: fmt.Sprint(i)}, 1, MaxDelay)
		p.recordWrite(writeTarget{uid: "u"}, uint64(i), MaxDelay)
		clock.Step(time.Second)
	}
	if n := len(p.lastWrites); n > 3*int(2*MaxDelay/time.Second) {
		t.Errorf("%d objects are remembered", n)
	}
	if n := len(p.lastWrites[writeTarget{uid: "u"}]); n > maxRememberedWrites {
		t.Errorf("%d writes of one object are remembered", n)
	}
}

func TestSplitDelayed(t *testing.T) {
	repeated := func(after time.Duration) error {
		return fmt.Errorf("writing: %w", &RepeatedWriteError{RetryAfter: after})
	}
	for name, c := range map[string]struct {
		err   error
		after time.Duration
		rest  error
	}{
		"nothing":                 {},
		"another error":           {err: errRefused, rest: errRefused},
		"one that waits":          {err: repeated(2), after: 2},
		"the first of some":       {err: errors.Join(repeated(3), repeated(2), nil, repeated(4)), after: 2},
		"beside another error":    {err: errors.Join(repeated(3), errors.Join(errRefused, repeated(2))), after: 2, rest: errRefused},
		"several other errors":    {err: errors.Join(errRefused, errRefused), rest: errRefused},
		"both, wrapped":           {err: fmt.Errorf("x: %w", errors.Join(repeated(3), errRefused)), after: 3, rest: errRefused},
		"joined, of which no one": {err: errors.Join(nil, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			after, rest := SplitDelayed(c.err)
			if after != c.after || (rest == nil) != (c.rest == nil) || !errors.Is(rest, c.rest) {
				t.Errorf("it waits %v, and %v is left", after, rest)
			}
		})
	}
}
