package allocator_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/faults/schedule"
)

// globally makes a global pool, and claims of it in three namespaces.
func globally(each int) action {
	return action{"a global pool with claims of three namespaces", func(w *world) bool {
		bits := int32(16)
		w.create(&v1alpha1.GlobalNetworkPool{
			ObjectMeta: metav1.ObjectMeta{Name: "global"},
			Spec:       v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.1.0.1-10.1.200.0"}, Prefix: &bits}},
		})
		for _, ns := range []string{"barred", "one", "two"} {
			for i := range each {
				c := claim(fmt.Sprintf("%s-%02d", ns, i))
				c.Namespace = ns
				c.Spec.PoolRef.Kind, c.Spec.PoolRef.Name = v1alpha1.GlobalNetworkPoolKind, "global"
				w.create(c)
			}
		}
		return true
	}}
}

// The claims of one namespace that the API server refuses for good keep nobody else waiting, each says why it waits, and all are served when they may
// be: by a quota or a policy (403), by a schema (422), or as too large (413).
func TestOneNamespaceIsRefused(t *testing.T) {
	const each = 17 // more than may fail
	for name, refusal := range map[string]error{
		"quota":     apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "x", errors.New("exceeded quota")),
		"schema":    apierrors.NewInvalid(schema.GroupKind{Kind: "IPAddress"}, "x", nil),
		"too large": apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
		"webhook":   apierrors.NewInternalError(errors.New("failed calling webhook")),
	} {
		for _, elected := range []bool{true, false} {
			if !elected && name != "quota" {
				continue
			}
			t.Run(fmt.Sprint(name, " elected ", elected), func(t *testing.T) {
				lifted := false
				others := func(w *world) (served int, untold []string) {
					for _, o := range w.api.List(faults.Claims) {
						c := o.(*ipamv1.IPAddressClaim)
						switch {
						case c.Status.AddressRef.Name != "":
							served++
						case len(c.Status.Conditions) == 0:
							untold = append(untold, c.Name)
						}
					}
					return served, untold
				}
				look := action{"the others are served, and the quota is lifted", func(w *world) bool {
					served, untold := others(w)
					if served != 2*each {
						w.Wrongf("%d claims of the other namespaces are served, not %d", served, 2*each)
					}
					if len(untold) > 0 && name != "webhook" { // what may pass in a moment is not told
						w.Wrongf("not told why they wait: %v", untold)
					}
					lifted = true
					return true
				}}
				s := scenario{name: "refused", spec: pool("10.0.0.1-10.0.0.2"), before: []action{globally(each)}, capacity: 3 * each}
				s.run(t, func(w *world) {
					w.order, w.elected = orders["eager"], elected
					if !elected {
						w.start()
					}
					creates := 0
					w.After(0, 2*time.Minute, func() {
						if creates > 600 {
							w.Wrongf("%d writes were refused in two minutes", creates)
						}
						look.do(w)
					})
					w.disturb = func(w *world, r *faults.Request) bool {
						if lifted || r.Verb != "create" || r.Ref.Kind != faults.Addresses || r.Ref.Namespace != "barred" {
							return false
						}
						creates++
						w.vainly = 0
						w.answer(r, nil, refusal)
						return true
					}
					w.script = []action{{"all are served", func(w *world) bool {
						if served, _ := others(w); !lifted || served != 3*each {
							return false
						}
						w.disturb = nil
						return true
					}}}
				})
			})
		}
	}
}

// A live read that fails beside any job leaves nothing behind: what was to be done is done later.
func TestReadsFailBesideJobs(t *testing.T) {
	all := action{"force-delete claim b, make it again, delete claim a", func(w *world) bool {
		return rip(faults.Claims, "b").do(w) && add("b").do(w) && remove("a").do(w)
	}}
	for _, kind := range []faults.Kind{faults.Pools, faults.Claims, faults.Addresses} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s %d", kind, nth), func(t *testing.T) {
				s := scenario{name: "busy", spec: pool("10.0.0.1-10.0.0.3"), capacity: 3, claims: []string{"a", "b"}, script: []action{all}}
				s.run(t, func(w *world) {
					w.order = orders["eager"]
					left := nth
					w.disturb = func(w *world, r *faults.Request) bool {
						if len(w.script) > 0 || r.Verb != "get" || r.Ref.Kind != kind {
							return false
						}
						if left--; left != 0 {
							return false
						}
						w.Notef("    the read of %s fails", kind)
						w.answer(r, nil, schedule.ErrTimeout)
						return true
					}
				})
			})
		}
	}
}

// Objects that are restored one by one beside a garbage collector: it deletes an IPAddress whose owners are not there, and our finalizer keeps it.
func TestRestoredBesideAGarbageCollector(t *testing.T) {
	restored := action{"restore a, whose IPAddress the garbage collector deletes", func(w *world) bool {
		c := claim("a")
		c.Finalizers = []string{allocator.ClaimFinalizer}
		c.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.2"}
		w.create(c)
		w.create(&ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "a", Finalizers: []string{allocator.AddressFinalizer},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: string(faults.Claims), Name: "a", UID: "of-before"}},
			},
			Spec: ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "a"}, PoolRef: c.Spec.PoolRef, Address: "10.0.0.2"},
		})
		return w.api.Delete(ref(faults.Addresses, "a"), false) == nil
	}}
	for name, o := range orders {
		t.Run(name, func(t *testing.T) {
			s := scenario{name: "restored", spec: pool("10.0.0.1-10.0.0.3"), capacity: 1, before: []action{restored}, want: map[string]string{"a": "10.0.0.2"}}
			s.run(t, func(w *world) { w.order = o })
		})
	}
}

// An outage that is longer than most backoffs grow: a pool is looked at again within the backstop.
func TestPoolWakesAfterAnOutage(t *testing.T) {
	s := scenario{name: "outage", spec: pool("10.0.0.1-10.0.0.3"), capacity: 1, claims: []string{"a"}}
	s.run(t, func(w *world) {
		w.order = orders["eager"]
		begin := time.Now()
		w.disturb = func(w *world, r *faults.Request) bool {
			if time.Since(begin) < 10*time.Minute && r.Ref.Kind == faults.Pools && r.Write() {
				w.answer(r, nil, apierrors.NewInternalError(errors.New("failed calling webhook")))
				return true
			}
			if late := time.Since(begin) - 10*time.Minute; late > backstop+pause && r.Verb == "create" {
				w.Wrongf("the claim is served %v after the outage", late)
			}
			return false
		}
	})
}
