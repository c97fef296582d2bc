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

// A reconcile that met a write that is delayed is repeated then, or when it asks for it, and has not failed by that.
func TestOfShardRepeatsDelayedWrites(t *testing.T) {
	delayed := &pace.RepeatedError{After: time.Minute}
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
			r := OfShard(shard.Shard{}, ClusterKind, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return reconcile.Result{RequeueAfter: c.asks}, c.err
			}))
			result, err := r.Reconcile(t.Context(), reconcile.Request{})
			if result.RequeueAfter != c.want || !errors.Is(err, c.rest) || (err == nil) != (c.rest == nil) {
				t.Errorf("%v, %v; not in %v, %v", result, err, c.want, c.rest)
			}
		})
	}
}
