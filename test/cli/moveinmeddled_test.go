package cli

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// newMeddlingClient returns a client with a concurrent writer: between the import's read of an object and its first
// write, the other writer has changed metadata of it that does not matter. The journal is excluded, as only the
// import writes it.
func newMeddlingClient() client.Client {
	var mu sync.Mutex
	touched := map[types.UID]bool{}
	touch := func(ctx context.Context, obj client.Object) error {
		mu.Lock()
		defer mu.Unlock()
		if _, journal := obj.(*corev1.ConfigMap); journal || obj.GetUID() == "" || touched[obj.GetUID()] {
			return nil
		}
		touched[obj.GetUID()] = true
		for _, value := range []string{`"x"`, `null`} {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"meddled":`+value+`}}}`))
			if err := client.IgnoreNotFound(k8s.Patch(ctx, obj.DeepCopyObject().(client.Object), patch)); err != nil {
				return err
			}
		}
		return nil
	}
	return interceptor.NewClient(k8s, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if err := touch(ctx, obj); err != nil {
				return err
			}
			return c.Update(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := touch(ctx, obj); err != nil {
				return err
			}
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := touch(ctx, obj); err != nil {
				return err
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			if err := touch(ctx, obj); err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	})
}

// Concurrent writes do not stop an import, not even one before each of its writes.
func TestImportWithConcurrentWrites(t *testing.T) {
	t.Run("a pool of a namespace", func(t *testing.T) { applyWithMeddling(t, newLocalWorld(t)) })
	t.Run("a global pool", func(t *testing.T) { applyWithMeddling(t, newGlobalWorld(t)) })
	t.Run("a pool of Metal3", func(t *testing.T) { applyWithMeddling(t, newMetal3World(t)) })
}

func applyWithMeddling(t *testing.T, w importedWorld) {
	t.Helper()
	if _, err := w.base().move(newMeddlingClient()).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectMoved(t)
	if err := w.base().move(newMeddlingClient()).Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectBack(t)
}

// The garbage collector of Kubernetes removes the owner reference of an IPAddress as soon as its claim is gone.
func TestImportCollected(t *testing.T) {
	stop, err := cp.StartControllerManager()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, false)
	for last := 37; last < 47; last++ {
		w.bindClaim(t, fmt.Sprintf("more-%d", last), fmt.Sprintf("%s.%d", w.network, last))
	}
	w.before = w.listClaimsAndAddresses(t)
	if _, err := w.move(k8s).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectMoved(t)
	if err := w.move(k8s).Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectBack(t)
}
