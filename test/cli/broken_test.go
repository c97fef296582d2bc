package cli

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var errDied = errors.New("the import has died")

// dyingClient is a client of a process that dies at its n-th write: before the write, or after it, with its response
// lost.
type dyingClient struct {
	client.Client
	n, at int
	lost  bool
}

func newDyingClient(at int, lost bool) *dyingClient {
	b := &dyingClient{at: at, lost: lost}
	b.Client = interceptor.NewClient(k8s, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return b.write(func() error { return c.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return b.write(func() error { return c.Update(ctx, obj, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return b.write(func() error { return c.Delete(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return b.write(func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			return b.write(func() error { return c.SubResource(sub).Update(ctx, obj, opts...) })
		},
	})
	return b
}

func (b *dyingClient) write(do func() error) error {
	if b.n++; b.at == 0 || b.n < b.at {
		return do()
	}
	if b.n == b.at && b.lost {
		if err := do(); err != nil {
			return err
		}
	}
	return errDied
}
