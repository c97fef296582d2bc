package incluster

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestForeignFinalizerCostsNothing checks that a pool, or a mirror, that is deleted and that a foreign finalizer keeps
// costs nothing meanwhile: after a few reconciles none writes, and none requeues.
func TestForeignFinalizerCostsNothing(t *testing.T) {
	objects := func(allocated, guarded bool) []client.Object {
		pool, mirror := newDeletedPool()
		if err := unstructured.SetNestedStringSlice(pool.Object, []string{"10.0.0.10-10.0.0.19"}, "spec", "addresses"); err != nil {
			t.Fatal(err)
		}
		if !allocated {
			pool.SetAnnotations(nil)
			mirror.Annotations = nil
			if err := controllerutil.SetControllerReference(pool, mirror, framework.NewFakeClient(t).Scheme()); err != nil {
				t.Fatal(err)
			}
		}
		if guarded {
			controllerutil.AddFinalizer(mirror, "x/y")
		}
		return []client.Object{pool, mirror}
	}
	for name, c := range map[string]struct {
		objects []client.Object
		// deletes are the indexes of the objects that are deleted first.
		deletes []int
		// waits reports whether the pool keeps its own finalizer, as its mirror exists.
		waits bool
	}{
		"a pool":                                   {objects: objects(false, false), deletes: []int{0}},
		"a pool that was handed over":              {objects: objects(true, false), deletes: []int{0}},
		"a mirror":                                 {objects: objects(false, true), deletes: []int{1}, waits: true},
		"the mirror of one that was handed over":   {objects: objects(true, true), deletes: []int{1}, waits: true},
		"a pool and its mirror":                    {objects: objects(false, true), deletes: []int{1, 0}, waits: true},
		"one that was handed over, and its mirror": {objects: objects(true, true), deletes: []int{1, 0}, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			writes := 0
			api := framework.NewFakeClient(t, c.objects...)
			counted := interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					writes++
					return c.Patch(ctx, o, p, opts...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					writes++
					return c.Delete(ctx, o, opts...)
				},
			})
			for _, i := range c.deletes {
				if err := api.Delete(t.Context(), c.objects[i]); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 {
				if err := reconcilePool(t.Context(), counted); err != nil {
					t.Fatal(err)
				}
			}
			before := writes
			for range 3 {
				again, err := newReconcilerWith(counted).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "p"}})
				if err != nil || again != (reconcile.Result{}) {
					t.Errorf("it returns %+v, %v", again, err)
				}
			}
			if writes != before {
				t.Errorf("it writes %d times in three looks at rest", writes-before)
			}
			for i, object := range c.objects {
				err := api.Get(t.Context(), client.ObjectKeyFromObject(object), object)
				switch kept := slices.Contains(c.deletes, i); {
				case kept && (err != nil || object.GetDeletionTimestamp() == nil):
					t.Errorf("%s is not kept: %v", object.GetName(), err)
				case i == 0 && controllerutil.ContainsFinalizer(object, incluster.PoolFinalizer) != c.waits:
					t.Errorf("%v are on the pool", object.GetFinalizers())
				}
			}
		})
	}
}
