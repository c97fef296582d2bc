package workloads

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What is kept of slow Clusters: a place is free again after each look, whatever it ends with, and a Cluster is forgotten that
// answers in time, or that is gone.
func TestSlowKeepsNoMoreThanItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Slow{}
		look := func(n int, takes time.Duration, fails error) (time.Duration, error) {
			return p.Look(t.Context(), client.ObjectKey{Name: fmt.Sprint(n)}, func(ctx context.Context) (time.Duration, error) {
				select {
				case <-ctx.Done():
					return 0, ctx.Err()
				case <-time.After(takes):
					return time.Second, fails
				}
			})
		}
		has := func(when string, known, taken int) {
			t.Helper()
			if len(p.known) != known || p.taken != taken {
				t.Errorf("%s: %d are known, and %d places are taken; want %d and %d", when, len(p.known), p.taken, known, taken)
			}
		}
		failed := errors.New("refused")

		if _, err := look(0, time.Millisecond, failed); !errors.Is(err, failed) || errors.Is(err, ErrSlow) {
			t.Errorf("a look that fails at once ends with %v", err)
		}
		has("after a look that fails at once", 0, 0)
		for n := range SlowPlaces + 1 {
			if _, err := look(n, time.Hour, nil); !errors.Is(err, ErrSlow) {
				t.Errorf("a look that hangs ends with %v", err)
			}
		}
		has("after looks that hang", SlowPlaces+1, 0)

		for n := range SlowPlaces { // all places are taken
			go func() { _, _ = look(n, time.Hour, nil) }()
		}
		synctest.Wait()
		has("while they hang again", SlowPlaces+1, SlowPlaces)
		if next, err := look(SlowPlaces, 0, nil); next != SlowPause || err != nil {
			t.Errorf("without a place it is tried after %v, %v", next, err)
		}
		<-time.After(LookTimeout)
		synctest.Wait()
		has("after they hung again", SlowPlaces+1, 0)

		if next, err := look(0, PromptTimeout+time.Second, nil); next != time.Second || err != nil {
			t.Errorf("a slow one has more time, and ends with %v, %v", next, err)
		}
		has("after one that is slow and ends", SlowPlaces+1, 0)
		if _, err := look(0, time.Millisecond, failed); !errors.Is(err, failed) {
			t.Errorf("a slow one that fails at once ends with %v", err)
		}
		has("after one that answers in time again", SlowPlaces, 0)
		p.Forget(client.ObjectKey{Name: "1"})
		has("after one is gone", SlowPlaces-1, 0)
	})
}
