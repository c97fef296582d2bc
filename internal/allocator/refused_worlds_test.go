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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// newGlobalScenario creates a global pool, and claims of it in three namespaces: those of the last one are for a
// Cluster.
func newGlobalScenario(each int) action {
	return sim.NewAttempt("a global pool with claims of three namespaces", func(w *world) bool {
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
	})
}

// TestRefusedNamespaceDelaysNoOther checks that the claims of one namespace that the API server refuses for good, by a
// quota or a policy (403), by a schema (422), or as too large (413), and those of a Cluster that is paused after a
// commit whose manager dies, delay no other claim; each shows why it waits, and all are served when they may be.
func TestRefusedNamespaceDelaysNoOther(t *testing.T) {
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
				s := scenario{name: "refused", spec: Pool("10.0.0.1-10.0.0.2"), before: []action{newGlobalScenario(each)}, capacity: 3 * each}
				s.run(t, func(w *world) {
					w.Order, w.elected = sim.Orders["eager"], elected
					if !elected {
						w.start()
					}
					(&barredNamespace{refusal: refusal, transient: name == "webhook", claimsPerNamespace: each}).begin(w)
				})
			})
		}
	}
}

// barredNamespace makes the API server refuse the IPAddresses of one namespace, and pauses a Cluster of another one,
// for two minutes.
type barredNamespace struct {
	refusal error
	// transient reports whether the refusal may pass in a moment, so that no claim shows it.
	transient bool
	// claimsPerNamespace is how many claims each namespace has.
	claimsPerNamespace int
	creates            int
	// paused reports whether the Cluster is, or was, paused; over reports whether the two minutes have passed.
	paused, over bool
}

func (b *barredNamespace) begin(w *world) {
	w.Disturb = b.disturb
	w.DelayStep(0, 2*time.Minute, func() { b.end(w) })
	w.Script = []action{sim.NewAttempt("all are served", func(w *world) bool {
		if served, _ := countServed(w); !b.over || served[""] != 3*b.claimsPerNamespace {
			return false
		}
		w.Disturb = nil
		return true
	})}
}

func (b *barredNamespace) disturb(w *world, r *faults.Request) bool {
	if b.over || !r.IsWrite() {
		return false
	}
	if r.Ref.Kind == faults.GlobalPools && r.Status && !b.paused {
		w.ExecuteAndAnswer(r)
		// The commit has landed, and none of its grants is written, nor will be by this manager.
		if b.paused = granting(w); b.paused {
			b.pause(w, true)
			w.Crash(w.Manager(r.Client))
		}
		return true
	}
	if r.Verb != "create" || r.Ref.Kind != faults.Addresses || r.Ref.Namespace != "barred" {
		return false
	}
	b.creates++
	w.StepsSinceChange = 0
	w.Answer(r, nil, b.refusal)
	return true
}

// granting reports whether a pool has grants in flight.
func granting(w *world) bool {
	return slices.ContainsFunc(w.objects().Pools, func(p v1alpha1.Pool) bool {
		return p.PoolStatus().Allocator != nil && len(p.PoolStatus().Allocator.InFlight) > 0
	})
}

func (b *barredNamespace) pause(w *world, paused bool) {
	cluster := faults.Ref{Kind: faults.Clusters, Namespace: "pausing", Name: "tenant"}
	w.Change(fmt.Sprintf("the Cluster is paused: %v", paused), func() {
		if err := w.api.EditObject(cluster, setPaused(paused)); err != nil {
			w.Failf("%v", err)
		}
	})
}

// end checks the claims of the other namespaces, and ends the refusals and the pause.
func (b *barredNamespace) end(w *world) {
	served, unreported := countServed(w)
	if served["one"] != b.claimsPerNamespace {
		w.Failf("%d claims of the other namespace are served, not %d", served["one"], b.claimsPerNamespace)
	}
	if !b.paused || served["pausing"] == b.claimsPerNamespace {
		w.Failf("the Cluster did not pause before its claims were served")
	}
	unreported = slices.DeleteFunc(unreported, func(c *ipamv1.IPAddressClaim) bool { return b.transient && c.Namespace == "barred" })
	for _, c := range unreported {
		w.Failf("%s/%s does not report why it waits", c.Namespace, c.Name)
	}
	if b.creates > 600 {
		w.Failf("%d writes were refused in two minutes", b.creates)
	}
	b.over = true
	b.pause(w, false)
}

// countServed returns how many claims of each namespace, and in total, are served, and the claims without a condition
// that shows why they wait.
func countServed(w *world) (served map[string]int, unreported []*ipamv1.IPAddressClaim) {
	served = map[string]int{}
	for _, o := range w.api.List(faults.Claims) {
		c, ok := o.(*ipamv1.IPAddressClaim)
		switch {
		case !ok:
		case c.Status.AddressRef.Name != "":
			served[c.Namespace]++
			served[""]++
		case len(c.Status.Conditions) == 0:
			unreported = append(unreported, c)
		}
	}
	return served, unreported
}

// TestReadsFailBesideJobs checks that a live read that fails beside any job leaves nothing behind: the work is done
// later.
func TestReadsFailBesideJobs(t *testing.T) {
	all := sim.NewAttempt("force-delete claim b, make it again, delete claim a", func(w *world) bool {
		return forceDelete(faults.Claims, "b").Do(w) && add("b").Do(w) && remove("a").Do(w)
	})
	for _, kind := range []faults.Kind{faults.Pools, faults.Claims, faults.Addresses} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s %d", kind, nth), func(t *testing.T) {
				s := scenario{name: "busy", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 3, claims: []string{"a", "b"}, script: []action{all}}
				s.run(t, func(w *world) {
					w.Order = sim.Orders["eager"]
					left := nth
					w.Disturb = func(w *world, r *faults.Request) bool {
						if len(w.Script) > 0 || r.Verb != "get" || r.Ref.Kind != kind {
							return false
						}
						if left--; left != 0 {
							return false
						}
						w.Tracef("    the read of %s fails", kind)
						w.Answer(r, nil, sim.ErrTimeout)
						return true
					}
				})
			})
		}
	}
}

// TestRestoredBesideAGarbageCollector checks objects that are restored one by one beside a garbage collector: it
// deletes an IPAddress whose owners do not exist, and our finalizer keeps it.
func TestRestoredBesideAGarbageCollector(t *testing.T) {
	restored := sim.NewAttempt("restore a, whose IPAddress the garbage collector deletes", func(w *world) bool {
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
	})
	for name, o := range sim.Orders {
		t.Run(name, func(t *testing.T) {
			s := scenario{name: "restored", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, before: []action{restored}, want: map[string]string{"a": "10.0.0.2"}}
			s.run(t, func(w *world) { w.Order = o })
		})
	}
}

// TestPoolWakesAfterAnOutage checks that a pool is reconciled again within the backstop after an outage that is longer
// than most backoffs grow.
func TestPoolWakesAfterAnOutage(t *testing.T) {
	s := scenario{name: "outage", spec: Pool("10.0.0.1-10.0.0.3"), capacity: 1, claims: []string{"a"}}
	s.run(t, func(w *world) {
		w.Order = sim.Orders["eager"]
		begin := time.Now()
		w.Disturb = func(w *world, r *faults.Request) bool {
			if time.Since(begin) < 10*time.Minute && r.Ref.Kind == faults.Pools && r.IsWrite() {
				w.Answer(r, nil, apierrors.NewInternalError(errors.New("failed calling webhook")))
				return true
			}
			if late := time.Since(begin) - 10*time.Minute; late > backstop+pause && r.Verb == "create" {
				w.Failf("the claim is served %v after the outage", late)
			}
			return false
		}
	})
}
