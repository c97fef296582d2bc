package allocator

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// patchRecorder keeps the object that a patch sends.
type patchRecorder struct {
	singleWriteAPI
	obj client.Object
}

func (p *patchRecorder) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
	p.obj = obj
	return nil
}

// TestUnservedMirrorIsReleased checks that a mirror that no manager serves keeps neither its pool nor its namespace:
// grants of the in-cluster provider do not matter.
func TestUnservedMirrorIsReleased(t *testing.T) {
	inFlight := func(o *v1alpha1.NetworkPool) {
		o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 1, InFlight: []v1alpha1.Grant{
			{Kind: claims.IPAddressClaimKind, Namespace: "ns", Name: "c", UID: "uid-c", First: "10.0.0.10", Last: "10.0.0.10"},
		}}
	}
	claims := func(change ...func(*ipamv1.IPAddressClaim)) func(*listedObjects) {
		return func(e *listedObjects) { e.claims = append(e.claims, grantstest.NewClaim("c", 0, change...)) }
	}
	deleted := func(c *ipamv1.IPAddressClaim) { c.DeletionTimestamp = &metav1.Time{Time: grantstest.Noon} }
	for name, c := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		there func(*listedObjects)
		stays bool
	}{
		"no users": {},
		"a claim of the in-cluster provider": {there: func(e *listedObjects) {
			e.addServedClaim(grantstest.MirrorKey, "c", "10.0.0.10")
			e.claims[0].Spec.PoolRef, e.addrs[0].Spec.PoolRef = grantstest.MirroredPoolRef, grantstest.MirroredPoolRef
		}},
		"an IPAddress that names the mirror":      {there: func(e *listedObjects) { e.addServedClaim(grantstest.MirrorKey, "c", "10.0.0.10") }, stays: true},
		"a claim that does, and remembers":        {there: claims(grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference()), grantstest.WithRecordedAddress("10.0.0.10")), stays: true},
		"one that has nothing":                    {there: claims(grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference()))},
		"a block of the mirror":                   {there: func(e *listedObjects) { e.addBlock(grantstest.MirrorKey, "b", "10.0.0.8/29") }, stays: true},
		"a grant that is not finished":            {pool: inFlight, there: claims(grantstest.WithPoolRef(grantstest.MirroredPoolRef)), stays: true},
		"one of which the claim is being deleted": {pool: inFlight, there: claims(grantstest.WithPoolRef(grantstest.MirroredPoolRef), deleted)},
		"one of which the claim is gone":          {pool: inFlight},
		"one that is finished, and not noted": {pool: inFlight, there: func(e *listedObjects) {
			e.addServedClaim(grantstest.MirrorKey, "c", "10.0.0.10")
			e.claims[0].Spec.PoolRef, e.addrs[0].Spec.PoolRef = grantstest.MirroredPoolRef, grantstest.MirroredPoolRef
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
				o.Name, o.Finalizers, o.DeletionTimestamp = grantstest.MirrorKey.Name, []string{v1alpha1.PoolFinalizer}, &metav1.Time{Time: grantstest.Noon}
				if c.pool != nil {
					c.pool(o)
				}
			})
			lists, api := &listedObjects{}, &patchRecorder{}
			if c.there != nil {
				c.there(lists)
			}
			a := New(Options{Client: api, Live: api, Lister: lists})
			if _, err := a.Reconcile(t.Context(), grantstest.MirrorKey, p.Base.Pool); err != nil {
				t.Fatal(err)
			}
			if went := api.obj != nil && len(api.obj.GetFinalizers()) == 0; went == c.stays {
				t.Errorf("it goes: %t", went)
			}
		})
	}
}

// TestNotServedIsWrittenWithoutStatus checks U86: a move copies no status, so an existing mirror has no condition at
// first.
func TestNotServedIsWrittenWithoutStatus(t *testing.T) {
	p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
		o.Name, o.Generation, o.Status = grantstest.MirrorKey.Name, 3, v1alpha1.NetworkPoolStatus{}
	})
	api := &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Lister: &listedObjects{}})
	if _, err := a.Reconcile(t.Context(), grantstest.MirrorKey, p.Base.Pool); err != nil || api.writes != 1 {
		t.Fatalf("%d writes, %v", api.writes, err)
	}
	condition := meta.FindStatusCondition(api.sent.Status.Conditions, v1alpha1.ReadyCondition)
	if condition == nil || condition.Status != metav1.ConditionFalse || condition.ObservedGeneration != 3 || !strings.Contains(condition.Message, "add the component in-cluster-pools") {
		t.Errorf("it says %+v", condition)
	}
}

// TestNotServedIsNotWrittenAgain checks that NotServed is not written again after another manager has overwritten it:
// that manager serves the mirror.
func TestNotServedIsNotWrittenAgain(t *testing.T) {
	p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
		o.Name = grantstest.MirrorKey.Name
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason}}
	})
	api := &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Lister: &listedObjects{}})
	for _, api.err = range []error{apierrors.NewConflict(schema.GroupResource{}, "p.in-cluster", nil), nil, nil} {
		if _, err := a.Reconcile(t.Context(), grantstest.MirrorKey, p.Base.Pool); err != nil {
			t.Fatal(err)
		}
	}
	if api.writes != 2 || !wasUnserved(api.sent) {
		t.Errorf("%d writes, the last one is %+v", api.writes, api.sent)
	}
}
