package fence

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var (
	noon    = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	timeout = apierrors.NewTimeoutError("the answer was lost", 1)
)

// api is an API server whose answer to the next update a test chooses. It is a fake, for faults; test/integration uses
// a real API server.
type api struct {
	client.WithWatch
	// update, where set, replaces the next update.
	update func(send func() error) error
}

func newAPI(t *testing.T) *api {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	a := &api{}
	a.WithWatch = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			send := func() error { return c.Update(ctx, o, opts...) }
			if do := a.update; do != nil {
				a.update = nil
				return do(send)
			}
			return send()
		},
	})
	return a
}

func (a *api) get(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	o := &corev1.ConfigMap{}
	if err := a.Get(t.Context(), client.ObjectKey{Namespace: ConfigMapNamespace, Name: ConfigMapName}, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// edit changes the ConfigMap as another writer.
func (a *api) edit(t *testing.T, change func(*corev1.ConfigMap)) {
	t.Helper()
	o := a.get(t)
	change(o)
	if err := a.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func (a *api) holder(t *testing.T, id string) *Fence {
	t.Helper()
	f := New(a, a, id)
	if _, err := f.TakeOver(t.Context(), noon); err != nil {
		t.Fatal(err)
	}
	return f
}

func granting(node string) State {
	return State{InFlight: []Grant{{NodeName: node, NodeUID: "u", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}}}
}

func TestTakeOver(t *testing.T) {
	a := newAPI(t)
	f := a.holder(t, "me")
	if s := f.CommittedState(); s.Holder != "me" || s.Term != 1 || s.AdoptingSince == nil || !s.AdoptingSince.Equal(noon) {
		t.Errorf("made anew: %+v", s)
	}
	if err := f.CommitState(t.Context(), granting("a")); err != nil {
		t.Fatal(err)
	}
	a.edit(t, func(o *corev1.ConfigMap) { o.Labels = map[string]string{"by": "hand"}; o.Data["note"] = "keep" })
	other := a.holder(t, "you")
	if s := other.CommittedState(); s.Holder != "you" || s.Term != 2 || len(s.InFlight) != 1 || s.AdoptingSince != nil {
		t.Errorf("taken over: %+v", s)
	}
	if o := a.get(t); o.Labels["by"] != "hand" || o.Data["note"] != "keep" || len(o.Finalizers) != 1 {
		t.Errorf("something else was lost: %+v", o)
	}
	if err := f.CommitState(t.Context(), granting("b")); !errors.Is(err, ErrTermLost) {
		t.Errorf("the one before commits: %v", err)
	}
	version := a.get(t).ResourceVersion
	if s, err := other.TakeOver(t.Context(), noon); err != nil || s.Term != 2 || a.get(t).ResourceVersion != version {
		t.Errorf("the holder takes over again: %+v, %v", s, err)
	}
}

func TestLostAnswers(t *testing.T) {
	lost := func(send func() error) error { _ = send(); return timeout }
	never := func(func() error) error { return timeout }
	forbidden := func(func() error) error { return apierrors.NewForbidden(schema.GroupResource{}, ConfigMapName, nil) }
	for name, tc := range map[string]struct {
		update func(func() error) error
		// meanwhile happens before the outcome is decided.
		meanwhile func(*testing.T, *api)
		want      error
		refused   bool
		again     bool
		adopts    bool
	}{
		"it has landed":    {update: lost},
		"it never arrived": {update: never, want: timeout, again: true},
		"refused for good": {update: forbidden, refused: true},
		"a user edited it": {update: never, meanwhile: func(t *testing.T, a *api) {
			t.Helper()
			a.edit(t, func(o *corev1.ConfigMap) { o.Labels = map[string]string{"x": "y"} })
		}, want: ErrConflict},
		"another took over": {update: never, meanwhile: func(t *testing.T, a *api) { t.Helper(); a.holder(t, "you") }, want: ErrTermLost},
		"it is gone": {update: never, meanwhile: func(t *testing.T, a *api) {
			t.Helper()
			a.edit(t, func(o *corev1.ConfigMap) { o.Finalizers = nil })
			if err := a.Delete(t.Context(), a.get(t)); err != nil {
				t.Fatal(err)
			}
		}, want: ErrTermLost, adopts: true},
		"it was put back": {update: never, meanwhile: func(t *testing.T, a *api) {
			t.Helper()
			a.edit(t, func(o *corev1.ConfigMap) { o.Data[stateKey] = `{"holder":"me","term":1,"seq":0}` })
		}, want: ErrTermLost, adopts: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			f := a.holder(t, "me")
			if err := f.CommitState(t.Context(), State{}); err != nil {
				t.Fatal(err)
			}
			a.update = func(send func() error) error {
				err := tc.update(send)
				if tc.meanwhile != nil {
					tc.meanwhile(t, a)
				}
				return err
			}
			err := f.CommitState(t.Context(), granting("a"))
			var refused *RefusedError
			switch {
			case errors.As(err, &refused) != tc.refused, !tc.refused && !errors.Is(err, tc.want):
				t.Fatalf("%v, want %v", err, tc.want)
			case f.Pending() != tc.again:
				t.Fatalf("unanswered: %v", f.Pending())
			}
			if tc.again {
				if err := f.ResolvePending(t.Context()); err != nil || f.CommittedState().Seq != 2 || len(f.CommittedState().InFlight) != 1 {
					t.Errorf("sent again: %v, %+v", err, f.CommittedState())
				}
			}
			if s, err := f.TakeOver(t.Context(), noon.Add(time.Hour)); err != nil || (s.AdoptingSince != nil && s.AdoptingSince.Equal(noon.Add(time.Hour))) != tc.adopts {
				t.Errorf("taken over again: %+v, %v", s, err)
			}
		})
	}
}

func TestDamagedStateIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "EOF",
		"{":                             "unexpected EOF",
		`{"holder":"a","term":1} {}`:    "there is more after the end",
		`{"term":1}`:                    "it names no holder and term",
		`{"holder":"a","term":1,"x":1}`: `unknown field "x"`,
		`{"holder":"a","term":1,"inFlight":[{"node":"n","cidrs":["10.0.0.0/24"]}]}`:       `the grant in flight to Node "n" lacks`,
		`{"holder":"a","term":1,"open":[{"name":"p","for":"c"}]}`:                         `the block "p" for c lacks`,
		`{"holder":"a","term":1,"open":[{"name":"p","for":"c","cidrs":["10.0.0.1/24"]}]}`: `the block "p" for c lacks`,
	} {
		a := newAPI(t)
		f := a.holder(t, "me")
		a.edit(t, func(o *corev1.ConfigMap) { o.Data[stateKey] = text })
		var damaged *DamagedError
		if err := f.CommitState(t.Context(), State{}); !errors.As(err, &damaged) || !strings.Contains(err.Error(), want) || f.Pending() {
			t.Errorf("%s: %v", text, err)
		}
		if _, err := f.TakeOver(t.Context(), noon); !errors.As(err, &damaged) {
			t.Errorf("%s: %v", text, err)
		}
		a.edit(t, func(o *corev1.ConfigMap) { o.Data[stateKey] = `{"holder":"me","term":7,"seq":3}` })
		if s, err := f.TakeOver(t.Context(), noon); err != nil || s.AdoptingSince == nil || s.Term != 8 {
			t.Errorf("repaired: %+v, %v", s, err)
		}
	}
}
