package incluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var errDied = errors.New("it died")

// newDeletedPool returns a pool that was handed over and is being deleted, and its mirror.
func newDeletedPool() (*unstructured.Unstructured, *v1alpha1.NetworkPool) {
	pool := incluster.PoolKinds[0].NewPool()
	pool.SetNamespace("ns")
	pool.SetName("p")
	pool.SetUID("uid-p")
	pool.SetFinalizers([]string{incluster.PoolFinalizer, "x/y"}) // without one, the fake would not keep it
	pool.SetAnnotations(map[string]string{incluster.HandedOverAnnotation: "", clusterv1.PausedAnnotation: ""})
	mirror := framework.MakePool("p.in-cluster").Namespace("ns").Addresses("10.0.0.10-10.0.0.19").Obj()
	mirror.UID = "uid-mirror"
	mirror.Annotations = map[string]string{incluster.HandedOverAnnotation: "", incluster.GatewayAnnotation: "10.9.9.9"}
	incluster.HandOverMirror(mirror, pool)
	return pool, mirror
}

// newReconcilerWith returns a reconciler with a client.
func newReconcilerWith(c client.Client) *Reconciler {
	return &Reconciler{
		Client: c, PoolReader: c, Live: c, Recorder: events.NewFakeRecorder(100), kind: incluster.PoolKinds[0],
		MirroredPoolReferrer: func(pools.Key) string { return "" }, // it is behind
	}
}

func reconcilePool(ctx context.Context, c client.Client) error {
	_, err := newReconcilerWith(c).Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "p"}})
	return err
}

// TestEndOfAMove checks that a pool that clusterctl has moved goes, also while claims name it, and that its mirror
// stays for clusterctl.
func TestEndOfAMove(t *testing.T) {
	pool, mirror := newDeletedPool()
	pool.SetAnnotations(map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}) // it replaces all of them
	c := framework.NewFakeClient(t, pool, mirror)
	if err := c.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if err := reconcilePool(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil || len(pool.GetFinalizers()) != 1 {
		t.Errorf("%v are on it, %v", pool.GetFinalizers(), err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(mirror), mirror); err != nil || mirror.DeletionTimestamp != nil {
		t.Errorf("the mirror: %v, %v", mirror.DeletionTimestamp, err)
	}
}

// TestPoolDeletionSurvivesCrashes checks U85: the finalizer is removed from the pool only when its mirror is a pool of
// its own, wherever a manager dies on the way, and whatever another writer does meanwhile.
func TestPoolDeletionSurvivesCrashes(t *testing.T) {
	const writes = 2
	for at := 1; at <= writes; at++ {
		for _, how := range []string{"before", "after", "conflict"} {
			t.Run(fmt.Sprintf("%s write %d", how, at), func(t *testing.T) {
				pool, mirror := newDeletedPool()
				c := framework.NewFakeClient(t, pool, mirror)
				if err := c.Delete(t.Context(), pool); err != nil {
					t.Fatal(err)
				}
				n := 0
				broken := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
					Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
						if n++; n != at {
							return c.Patch(ctx, o, p, opts...)
						}
						switch how {
						case "after":
							if err := c.Patch(ctx, o, p, opts...); err != nil {
								return err
							}
						case "conflict":
							other := o.DeepCopyObject().(client.Object)
							if err := c.Get(ctx, client.ObjectKeyFromObject(o), other); err != nil {
								return err
							}
							other.SetLabels(map[string]string{"written": "by another"})
							if err := c.Update(ctx, other); err != nil {
								return err
							}
							return c.Patch(ctx, o, p, opts...)
						}
						return errDied
					},
				})
				if err := reconcilePool(t.Context(), broken); err == nil && how != "conflict" {
					t.Fatal("it did not die")
				}
				for range 3 {
					isPoolKept(t, c)
					if err := reconcilePool(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				if kept := isPoolKept(t, c); kept {
					t.Error("the pool is kept")
				}
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(mirror), mirror); err != nil {
					t.Fatal(err)
				}
				if len(mirror.Annotations) != 2 || !incluster.IsEnded(mirror) || mirror.Annotations[incluster.GatewayAnnotation] == "" {
					t.Errorf("the mirror has the annotations %v", mirror.Annotations)
				}
			})
		}
	}
}

// isPoolKept reports whether our finalizer keeps the pool: without it the mirror has to be a pool of its own.
func isPoolKept(t *testing.T, c client.Client) (kept bool) {
	t.Helper()
	pool, mirror := newDeletedPool()
	if err := errors.Join(c.Get(t.Context(), client.ObjectKeyFromObject(pool), pool), c.Get(t.Context(), client.ObjectKeyFromObject(mirror), mirror)); err != nil {
		t.Fatal(err)
	}
	kept = len(pool.GetFinalizers()) > 1
	if mirror.DeletionTimestamp != nil || len(mirror.OwnerReferences) > 0 || (!kept && !incluster.IsEnded(mirror)) {
		t.Errorf("the pool is kept: %t; the mirror: %+v", kept, mirror.ObjectMeta)
	}
	return kept
}

// TestPoolDeletionWaitsForUsers checks U85: a claim or an IPAddress that names the old pool keeps it, and is named in
// the mirror; what happens in between makes the last write fail.
func TestPoolDeletionWaitsForUsers(t *testing.T) {
	old := ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPoolKind, Name: "p"}
	claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: ipamv1.IPAddressClaimSpec{PoolRef: old}}
	address := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Spec: ipamv1.IPAddressSpec{PoolRef: old}}
	elsewhere := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "a"}, Spec: ipamv1.IPAddressSpec{PoolRef: old}}
	direct := claim.DeepCopy()
	direct.Name, direct.Spec.PoolRef = "direct", pools.Key{Kind: v1alpha1.NetworkPoolKind, Name: "p.in-cluster"}.PoolReference()
	for name, c := range map[string]struct {
		there  []client.Object
		holder string
		// ends reports whether the mirror is not a mirror of the pool any more.
		ends bool
	}{
		"no user":                       {ends: true},
		"a claim":                       {there: []client.Object{claim, direct}, holder: "IPAddressClaim ns/c names it"},
		"an IPAddress":                  {there: []client.Object{address}, holder: "IPAddress ns/a names it"},
		"one of another namespace":      {there: []client.Object{elsewhere}, ends: true},
		"a claim that names the mirror": {there: []client.Object{direct}, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			pool, mirror := newDeletedPool()
			api := framework.NewFakeClient(t, append(c.there, pool, mirror)...)
			if err := errors.Join(api.Delete(t.Context(), pool), reconcilePool(t.Context(), api), reconcilePool(t.Context(), api), api.Get(t.Context(), client.ObjectKeyFromObject(mirror), mirror)); err != nil {
				t.Fatal(err)
			}
			if ending := mirror.Annotations[incluster.EndingAnnotation]; incluster.IsEnded(mirror) != c.ends || !strings.Contains(ending, c.holder) || (c.holder == "") != (ending == "") {
				t.Errorf("it has the annotations %v", mirror.Annotations)
			}
			if isPoolKept(t, api) == c.ends {
				t.Errorf("the pool is kept: %t", !c.ends)
			}
		})
	}

	t.Run("a grant after the list", func(t *testing.T) {
		pool, mirror := newDeletedPool()
		api := framework.NewFakeClient(t, pool, mirror)
		granted := interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				if err := c.List(ctx, l, opts...); err != nil {
					return err
				}
				current := &v1alpha1.NetworkPool{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(mirror), current); err != nil {
					return err
				}
				current.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 1}
				return c.Status().Update(ctx, current)
			},
		})
		if err := errors.Join(api.Delete(t.Context(), pool), reconcilePool(t.Context(), granted)); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		if !isPoolKept(t, api) {
			t.Error("the pool has gone")
		}
	})
}
