package guard

import (
	"context"
	"errors"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

var errRefused = errors.New("refused")

// TestOfShardRepeatsDelayedWrites checks that a reconcile with a delayed write is repeated when that is due, or when
// the reconcile itself requests it, and that it has not failed.
func TestOfShardRepeatsDelayedWrites(t *testing.T) {
	delayed := &pace.RepeatedWriteError{RetryAfter: time.Minute}
	for name, c := range map[string]struct {
		asks time.Duration
		err  error
		want time.Duration
		rest error
	}{
		"nothing":               {asks: time.Hour, want: time.Hour},
		"a write that waits":    {err: delayed, want: time.Minute},
		"and more":              {asks: time.Second, err: delayed, want: time.Second},
		"which comes later":     {asks: time.Hour, err: delayed, want: time.Minute},
		"beside a real failure": {err: errors.Join(delayed, errRefused), rest: errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewShardReconciler(shard.Shard{}, ClusterKind, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return reconcile.Result{RequeueAfter: c.asks}, c.err
			}))
			result, err := r.Reconcile(t.Context(), reconcile.Request{})
			if result.RequeueAfter != c.want || !errors.Is(err, c.rest) || (err == nil) != (c.rest == nil) {
				t.Errorf("%v, %v; not in %v, %v", result, err, c.want, c.rest)
			}
		})
	}
}
