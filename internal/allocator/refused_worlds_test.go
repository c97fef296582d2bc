package allocator_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// globally makes a global pool, and claims of it in three namespaces: those of the last one are for a Cluster.
func globally(each int) action {
	return action{"a global pool with claims of three namespaces", func(w *world) bool {
		bits := int32(16)
		w.create(&v1alpha1.GlobalNetworkPool{
			ObjectMeta: metav1.ObjectMeta{Name: "global"},
			Spec:       v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.1.0.1-10.1.200.0"}, Prefix: &bits}},
		})
		w.create(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "pausing", Name: "tenant"}})
		for _, ns := range []string{"barred", "one", "pausing"} {
			for i := range each {
				c := claim(fmt.Sprintf("%s-%02d", ns, i))
				c.Namespace = ns
				c.Spec.PoolRef.Kind, c.Spec.PoolRef.Name = v1alpha1.GlobalNetworkPoolKind, "global"
				if ns == "pausing" {
					c.Spec.ClusterName = "tenant"
				}
				w.create(c)
			}
		}
		return true
	}}
}

// The claims of one namespace that the API server refuses for good, by a quota or a policy (403), by a schema (422), or
// as too large (413), and those of a Cluster that pauses after a commit whose manager dies, keep nobody else waiting;
// each says why it waits, and all are served when they may be.
func TestOneNamespaceIsRefused(t *testing.T) {
	const each = 17 // more than may fail
	for name, refusal := range map[string]error{
		"quota":     apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "x", errors.New("exceeded quota")),
		"schema":    apierrors.NewInvalid(schema.GroupKind{Kind: "IPAddress"}, "x", nil),
		"too large": apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
		"webhook":   apierrors.NewInternalError(errors.New("failed calling webhook")),
	} {
		for _, elected := range []bool{true, false} {
			if name != "quota" && (!elected || testing.Short()) {
				continue
			}
			t.Run(fmt.Sprint(name, " elected ", elected), func(t *testing.T) {
				s := scenario{name: "refused", spec: Pool("10.0.0.1-10.0.0.2"), before: []action{globally(each)}, capacity: 3 * each}
				s.run(t, func(w *world) {
					w.order, w.elected = orders["eager"], elected
					if !elected {
						w.start()
					}
					(&barred{refusal: refusal, passing: name == "webhook", each: each}).begin(w)
				})
			})
		}
	}
}

// barred has the API server refuse the IPAddresses of one namespace, and a Cluster of another pause, for two minutes.
type barred struct {
	refusal error
	// passing: the refusal may pass in a moment, and is not told.
	passing bool
	// each is how many claims each namespace has.
	each    int
	creates int
	// paused: the Cluster is, or was; over: the two minutes are.
	paused, over bool
}

func (b *barred) begin(w *world) {
	w.disturb = b.disturb
	w.After(0, 2*time.Minute, func() { b.end(w) })
	w.script = []action{{"all are served", func(w *world) bool {
		if served, _ := whoIsServed(w); !b.over || served[""] != 3*b.each {
			return false
		}
		w.disturb = nil
		return true
	}}}
}

func (b *barred) disturb(w *world, r *faults.Request) bool {
	if b.over || !r.Write() {
		return false
	}
	if r.Ref.Kind == faults.GlobalPools && r.Status && !b.paused {
		value, err := w.do(r)
		w.answer(r, value, err)
		if b.paused = granting(w); b.paused { // the commit has landed, and nothing of it is written, nor will be by this manager
			b.pause(w, true)
			w.crash(w.manager(r.Client))
		}
		return true
	}
	if r.Verb != "create" || r.Ref.Kind != faults.Addresses || r.Ref.Namespace != "barred" {
		return false
	}
	b.creates++
	w.vainly = 0
	w.answer(r, nil, b.refusal)
	return true
}

// granting reports whether a pool has grants in flight.
func granting(w *world) bool {
	return slices.ContainsFunc(w.objects().Pools, func(p v1alpha1.Pool) bool {
		return p.PoolStatus().Allocator != nil && len(p.PoolStatus().Allocator.InFlight) > 0
	})
}

func (b *barred) pause(w *world, paused bool) {
	cluster := faults.Ref{Kind: faults.Clusters, Namespace: "pausing", Name: "tenant"}
	before := w.api.Version()
	if err := w.api.Edit(cluster, setPaused(paused)); err != nil {
		w.Wrongf("%v", err)
	}
	w.changed(before, fmt.Sprintf("the Cluster is paused: %v", paused))
}

// end looks at what the others have, and ends both.
func (b *barred) end(w *world) {
	served, untold := whoIsServed(w)
	if served["one"] != b.each {
		w.Wrongf("%d claims of the other namespace are served, not %d", served["one"], b.each)
	}
	if !b.paused || served["pausing"] == b.each {
		w.Wrongf("the Cluster did not pause before its claims were served")
	}
	untold = slices.DeleteFunc(untold, func(c *ipamv1.IPAddressClaim) bool { return b.passing && c.Namespace == "barred" })
	for _, c := range untold {
		w.Wrongf("%s/%s is not told why it waits", c.Namespace, c.Name)
	}
	if b.creates > 600 {
		w.Wrongf("%d writes were refused in two minutes", b.creates)
	}
	b.over = true
	b.pause(w, false)
}

// whoIsServed returns how many claims of each namespace, and of all, are served, and those of which no condition says
// why they wait.
func whoIsServed(w *world) (served map[string]int, untold []*ipamv1.IPAddressClaim) {
	served = map[string]int{}
	for _, o := range w.api.List(faults.Claims) {
		c, ok := o.(*ipamv1.IPAddressClaim)
		switch {
		case !ok:
		case c.Status.AddressRef.Name != "":
			served[c.Namespace]++
			served[""]++
		case len(c.Status.Conditions) == 0:
			untold = append(untold, c)
		}
	}
	return served, untold
}

// A live read that fails beside any job leaves nothing behind: what was to be done is done later.
func TestReadsFailBesideJobs(t *testing.T) {
	all := action{"force-delete claim b, make it again, delete claim a", func(w *world) bool {
		return forceDelete(faults.Claims, "b").do(w) && add("b").do(w) && remove("a").do(w)
	}}
	for _, kind := range []faults.Kind{faults.Pools, faults.Claims, faults.Addresses} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s %d", kind, nth), func(t *testing.T) {
				s := scenario{name: "busy", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 3, claims: []string{"a", "b"}, script: []action{all}}
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

// Objects that are restored one by one beside a garbage collector: it deletes an IPAddress whose owners are not there,
// and our finalizer keeps it.
func TestRestoredBesideAGarbageCollector(t *testing.T) {
	restored := action{"restore a, whose IPAddress the garbage collector deletes", func(w *world) bool {
		c := claim("a")
		c.Finalizers = []string{v1alpha1.ClaimFinalizer}
		c.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.2"}
		w.create(c)
		w.create(&ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "a", Finalizers: []string{v1alpha1.AddressFinalizer},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: string(faults.Claims), Name: "a", UID: "of-before"}},
			},
			Spec: ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "a"}, PoolRef: c.Spec.PoolRef, Address: "10.0.0.2"},
		})
		return w.api.Delete(ref(faults.Addresses, "a"), false) == nil
	}}
	for name, o := range orders {
		t.Run(name, func(t *testing.T) {
			s := scenario{name: "restored", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, before: []action{restored}, want: map[string]string{"a": "10.0.0.2"}}
			s.run(t, func(w *world) { w.order = o })
		})
	}
}

// An outage that is longer than most backoffs grow: a pool is looked at again within the backstop.
func TestPoolWakesAfterAnOutage(t *testing.T) {
	s := scenario{name: "outage", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, claims: []string{"a"}}
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
