package incluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// newLivePool returns a pool of the in-cluster provider.
func newLivePool(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	pool := incluster.PoolKinds[0].NewPool()
	pool.SetNamespace("ns")
	pool.SetName("p")
	pool.SetUID("uid-p")
	if err := unstructured.SetNestedMap(pool.Object, map[string]any{"addresses": []any{"10.0.0.10-10.0.0.19"}, "prefix": int64(24)}, "spec"); err != nil {
		t.Fatal(err)
	}
	return pool
}

// recordedEvents returns the events that a recorder has, in the order in which they were recorded.
func recordedEvents(r *Reconciler) (out []string) {
	for {
		select {
		case e := <-r.Recorder.(*events.FakeRecorder).Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

var poolRequest = reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "p"}}

// TestMirrorIsSealed checks that the mirror records what its spec was translated from: what another writer changes
// there is noticed, and reverted.
func TestMirrorIsSealed(t *testing.T) {
	api := framework.NewFakeClient(t, newLivePool(t))
	r := newReconcilerWith(api)
	mirror := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.in-cluster"}}
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), poolRequest); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(mirror), mirror); err != nil {
			t.Fatal(err)
		}
	}
	reconcile()
	if !incluster.IsSpecSealed(mirror) {
		t.Errorf("its annotations are %v", mirror.Annotations)
	}
	mirror.Spec.Addresses = []string{"10.0.0.10-10.0.0.200"}
	if incluster.IsSpecSealed(mirror) {
		t.Error("another spec is taken for the translation")
	}
	if err := api.Update(t.Context(), mirror); err != nil {
		t.Fatal(err)
	}
	reconcile()
	if !incluster.IsSpecSealed(mirror) || !slices.Equal(mirror.Spec.Addresses, []string{"10.0.0.10-10.0.0.19"}) {
		t.Errorf("it has %v", mirror.Spec.Addresses)
	}
}

// TestResetMirrorIsWrittenWithDelay checks a tool that resets the mirror each time: that is no fault of the pool, which
// gets no event for it, and the mirror is written again with a growing delay.
func TestResetMirrorIsWrittenWithDelay(t *testing.T) { // B57
	api := framework.NewFakeClient(t, newLivePool(t))
	r := newReconcilerWith(api)
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	r.Client = (&pace.WritePacer{Clock: clock}).WrapClient(api)
	mirror, writes := &v1alpha1.NetworkPool{}, 0
	for range 20 {
		result, err := r.Reconcile(t.Context(), poolRequest)
		if err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "p.in-cluster"}, mirror); err != nil {
			t.Fatal(err)
		}
		if !incluster.IsSpecSealed(mirror) {
			if result.RequeueAfter == 0 {
				t.Error("it is never reconciled again")
			}
			continue
		}
		writes++
		mirror.UID, mirror.Spec.Addresses = "m", []string{"10.0.0.10-10.0.0.200"}
		if err := api.Update(t.Context(), mirror); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 2 { // it is created, and written for the first time
		t.Errorf("it is written %d times at once", writes)
	}
	clock.Step(pace.MinDelay)
	if _, err := r.Reconcile(t.Context(), poolRequest); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(mirror), mirror); err != nil || !incluster.IsSpecSealed(mirror) {
		t.Errorf("%v: a second later it has %v", err, mirror.Spec.Addresses)
	}
	if recorded := recordedEvents(r); len(recorded) > 0 {
		t.Errorf("the pool has the events %q", recorded)
	}
}

// TestOverlapIsReportedOnPool checks two pools of one range, which grant an address twice. Users read the pools, and
// not their mirrors: each pool gets an event, once.
func TestOverlapIsReportedOnPool(t *testing.T) { // U89
	api := framework.NewFakeClient(t, newLivePool(t))
	r := newReconcilerWith(api)
	overlap := func(status metav1.ConditionStatus, message string) {
		t.Helper()
		mirror := &v1alpha1.NetworkPool{}
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "p.in-cluster"}, mirror); err != nil {
			t.Fatal(err)
		}
		meta.SetStatusCondition(&mirror.Status.Conditions, metav1.Condition{Type: v1alpha1.OverlapCondition, Status: status, Reason: "x", Message: message})
		if err := api.Status().Update(t.Context(), mirror); err != nil {
			t.Fatal(err)
		}
	}
	expectEvents := func(want ...string) {
		t.Helper()
		for range 3 {
			if _, err := r.Reconcile(t.Context(), poolRequest); err != nil {
				t.Fatal(err)
			}
		}
		if got := recordedEvents(r); !slices.Equal(got, want) {
			t.Errorf("%q, not %q", got, want)
		}
	}
	expectEvents()
	overlap(metav1.ConditionTrue, "q has it too")
	expectEvents("Warning Overlap q has it too")
	overlap(metav1.ConditionFalse, "none")
	expectEvents()
	overlap(metav1.ConditionTrue, "q has it too")
	expectEvents("Warning Overlap q has it too")
}

// TestDeletedMirrorIsReportedOnPool checks that a mirror that a user deletes stays, and grants nothing, as long as an
// address is in use: an event on the pool shows that.
func TestDeletedMirrorIsReportedOnPool(t *testing.T) {
	api := framework.NewFakeClient(t, newLivePool(t))
	r := newReconcilerWith(api)
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), poolRequest); err != nil {
			t.Fatal(err)
		}
	}
	reconcile()
	mirror := &v1alpha1.NetworkPool{}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "p.in-cluster"}, mirror); err != nil {
		t.Fatal(err)
	}
	mirror.Finalizers = []string{v1alpha1.PoolFinalizer}
	if err := errors.Join(api.Update(t.Context(), mirror), api.Delete(t.Context(), mirror)); err != nil {
		t.Fatal(err)
	}
	reconcile()
	reconcile()
	if recorded := recordedEvents(r); len(recorded) != 1 || !strings.Contains(recorded[0], "until all addresses of this pool are released") {
		t.Errorf("it says %q", recorded)
	}
}

// TestStaleCacheCausesNoWarning checks that a cache that does not show the mirror yet causes no warning: the next
// reconcile reads it.
func TestStaleCacheCausesNoWarning(t *testing.T) {
	for name, failure := range map[string]error{
		"created a moment ago": apierrors.NewAlreadyExists(schema.GroupResource{Resource: "networkpools"}, "p.in-cluster"),
		"changed":              apierrors.NewConflict(schema.GroupResource{Resource: "networkpools"}, "p.in-cluster", nil),
	} {
		t.Run(name, func(t *testing.T) {
			behind := interceptor.NewClient(framework.NewFakeClient(t, newLivePool(t)).(client.WithWatch), interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return failure },
			})
			r := newReconcilerWith(behind)
			if result, err := r.Reconcile(t.Context(), poolRequest); err == nil && result.IsZero() {
				t.Error("it is not tried again")
			}
			if recorded := recordedEvents(r); len(recorded) > 0 {
				t.Errorf("it warns: %s", strings.Join(recorded, ", "))
			}
		})
	}
}

// TestConflictingPoolGivesWayToMirror checks W29: a pool of ours that has the name of a mirror is deleted, or renamed;
// then the mirror is created.
func TestConflictingPoolGivesWayToMirror(t *testing.T) {
	inTheWay := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.in-cluster", UID: "theirs"}}
	api := framework.NewFakeClient(t, newLivePool(t), inTheWay)
	r := newReconcilerWith(api)
	if _, err := r.Reconcile(t.Context(), poolRequest); err == nil || !strings.Contains(err.Error(), "delete it, or create it again under another name") {
		t.Fatal(err)
	}
	if recorded := recordedEvents(r); len(recorded) != 1 || !strings.Contains(recorded[0], "NotServed") {
		t.Errorf("it says %q", recorded)
	}
	if err := api.Delete(t.Context(), inTheWay); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), poolRequest); err != nil {
		t.Fatal(err)
	}
	mirror := &v1alpha1.NetworkPool{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(inTheWay), mirror); err != nil || !incluster.IsSpecSealed(mirror) {
		t.Errorf("%v, %v", mirror.Annotations, err)
	}
}

// TestClaimsOfMissingPoolAreServedWhenItExists checks W29: what names a pool of the in-cluster provider that does not
// exist waits for nothing else when that pool is created.
func TestClaimsOfMissingPoolAreServedWhenItExists(t *testing.T) {
	api := framework.NewFakeClient(t)
	mirror := pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "p.in-cluster"}
	lookup := func() string { return NewMissingMirrorLookup(api)(t.Context(), mirror) }
	if text := lookup(); text != "InClusterIPPool ns/p does not exist; create it, or create this object again with the right poolRef" {
		t.Fatal(text)
	}
	if err := api.Create(t.Context(), newLivePool(t)); err != nil {
		t.Fatal(err)
	}
	if text := lookup(); !strings.Contains(text, "has no mirror yet") {
		t.Error(text)
	}
	if _, err := newReconcilerWith(api).Reconcile(t.Context(), poolRequest); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "p.in-cluster"}, &v1alpha1.NetworkPool{}); err != nil {
		t.Error(err)
	}
}
