package allocator_test

import (
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of leases, beside claims and blocks.

// givesLeases lets a pool give leases.
func givesLeases(s *v1alpha1.NetworkPoolSpec) { s.Leases = &v1alpha1.Leases{} }

// quota lets a namespace have n leases.
func quota(n int32) func(*v1alpha1.NetworkPoolSpec) {
	return func(s *v1alpha1.NetworkPoolSpec) { s.Leases = &v1alpha1.Leases{QuotaPerNamespace: &n} }
}

// addLease requests a lease; change adapts it.
func addLease(name string, change ...func(*v1alpha1.IPLease)) action {
	return sim.NewAttempt("add lease "+name, func(w *world) bool {
		o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: poolName}}}
		for _, f := range change {
			f(o)
		}
		return w.api.Create(o) == nil
	})
}

func asking(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Spec.Address = address }
}

func deleteLease(name string) action {
	return sim.NewAttempt("delete lease "+name, func(w *world) bool { return w.api.Delete(ref(faults.Leases, name), false) == nil })
}

// showLease marks a lease as shown, before it has an address, or ends that.
func showLease(name string, shown bool) action {
	text := map[bool]string{true: "is shown", false: "is not shown any more"}[shown]
	return sim.NewAttempt("lease "+name+" "+text, func(w *world) bool {
		err := w.api.EditObject(ref(faults.Leases, name), func(o client.Object) {
			if shown && o.GetDeletionTimestamp() == nil {
				controllerutil.AddFinalizer(o, v1alpha1.LeaseShownFinalizer)
			} else if !shown {
				controllerutil.RemoveFinalizer(o, v1alpha1.LeaseShownFinalizer)
			}
		})
		return err == nil || (!shown && apierrors.IsNotFound(err))
	})
}

// foundInUse sets in the status of a lease, once it has an address, that a foreign machine answers for it.
func foundInUse(name string) action {
	return sim.NewAttempt("the address of lease "+name+" is in use", func(w *world) bool {
		had := false
		err := w.api.EditStatus(ref(faults.Leases, name), func(o client.Object) {
			if l := o.(*v1alpha1.IPLease); l.Status.Address != "" {
				had = true
				usedByOthers(l)
			}
		})
		return err == nil && had
	})
}

func usedByOthers(l *v1alpha1.IPLease) {
	meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{
		Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.AddressInUseReason, Message: "02:00:00:00:00:01 answers for it",
	})
}

// advanceTime lets time pass.
func advanceTime(d time.Duration) action {
	return sim.NewAttempt(d.String()+" passes", func(w *world) bool {
		w.DelayStep(0, d, func() {})
		return true
	})
}

// checkForeignAddressRests checks that an address for which a foreign machine answers is granted to no claimant for an
// hour after its lease (P7).
func (w *world) checkForeignAddressRests(c faults.Change, users bool) {
	if r, err := poolutil.ParseRange(c.Object.GetAnnotations()[v1alpha1.AddressAnnotation]); err == nil && !c.Deleted {
		for a, until := range w.unavailableUntil {
			if r.Contains(a) && until.After(time.Now()) {
				w.Failf("P7: %s is in use by a foreign machine until %v, and %s has it", a, until.Sub(sim.Epoch), c.Object.GetName())
			}
		}
	}
	l, ok := c.Object.(*v1alpha1.IPLease)
	if !ok || !c.Deleted || users {
		return
	}
	if announced := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.AnnouncedCondition); announced == nil || announced.Reason != v1alpha1.AddressInUseReason {
		return
	}
	// The rest may have been recorded half of its duration ago.
	rest, noted := w.recordedRests[" "+l.Status.Address]
	if !noted || time.Until(rest.Until) < grants.InUseCoolingPeriod/2 {
		w.Failf("P7: %s was released by %s, a foreign machine answers for it, and it does not rest without a name", l.Status.Address, l.Name)
	}
	w.unavailableUntil[netip.MustParseAddr(l.Status.Address)] = rest.Until
}

// stripLeaseRecord removes from a lease what keeps its address, once it has one: a tenant may do that where the policy
// of records is missing.
func stripLeaseRecord(name string) action {
	return sim.NewAttempt("lease "+name+" is stripped", func(w *world) bool {
		had := false
		err := faults.EditObject(w.api, ref(faults.Leases, name), func(o *v1alpha1.IPLease) {
			if had = o.Status.Address != ""; had {
				o.SetFinalizers(nil)
				o.SetAnnotations(nil)
				w.stripped[o.GetUID()] = true
			}
		})
		return err == nil && had
	})
}

// useClaim marks a claim as used by a consumer, or ends that.
func useClaim(name string, used bool) action {
	const finalizer = "example.com/uses"
	text := map[bool]string{true: "is used", false: "is not used any more"}[used]
	return sim.NewAttempt("claim "+name+" "+text, func(w *world) bool {
		err := w.api.EditObject(ref(faults.Claims, name), func(o client.Object) {
			if used && o.GetDeletionTimestamp() == nil {
				controllerutil.AddFinalizer(o, finalizer)
			} else if !used {
				controllerutil.RemoveFinalizer(o, finalizer)
			}
		})
		return err == nil || (!used && apierrors.IsNotFound(err))
	})
}

// inheritLease creates a lease as a move leaves it: with its record and its finalizer, and without a status.
func inheritLease(name, address string) action {
	return sim.NewAttempt("restore lease "+name, func(w *world) bool {
		return addLease(name, func(o *v1alpha1.IPLease) {
			o.Finalizers, o.Annotations = []string{v1alpha1.IPLeaseFinalizer}, map[string]string{v1alpha1.AddressAnnotation: address}
		}).Do(w)
	})
}

var leased = []scenario{
	{
		name: "leases", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), prompt: true, capacity: 8, claims: []string{"a"},
		before: []action{addLease("x"), addLease("y", asking("10.0.0.8"))},
		script: []action{allocate("b", 3), addLease("z"), deleteLease("x"), add("c"), deallocate("b"), deleteLease("y"), addLease("y", asking("10.0.0.8"))},
		want:   map[string]string{"y": "10.0.0.8"},
	},
	{
		name: "leases and claims in a full pool", spec: Pool("10.0.0.1-10.0.0.3", givesLeases), capacity: 1, ordered: true,
		before: []action{addLease("x"), addLease("y"), addLease("z")},
		script: []action{add("a"), addLease("v"), deleteLease("x"), deleteLease("y"), deleteLease("v")},
	},
	{
		name: "quota of leases", spec: Pool("10.0.0.1-10.0.0.8", quota(2)), capacity: 8, ordered: true, claims: []string{"a"},
		before: []action{addLease("u"), addLease("v"), addLease("w")},
		script: []action{deleteLease("u"), addLease("x"), edit(poolName, "a larger quota", quota(3)), edit(poolName, "a smaller quota", quota(1)), deleteLease("v"), deleteLease("w")},
	},
	{
		// No lease was served before, and none is after.
		name: "leases allowed and not any more", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 8, claims: []string{"a"},
		before: []action{addLease("x")},
		script: []action{
			edit(poolName, "leases", givesLeases), addLease("y"), edit(poolName, "no leases", func(s *v1alpha1.NetworkPoolSpec) { s.Leases = nil }), addLease("z"), deleteLease("x"),
		},
	},
	{
		name: "lease cooling", spec: Pool("10.0.0.1-10.0.0.2", givesLeases, grace(30)), capacity: 0,
		script: slices.Concat([]action{addLease("x"), addLease("y"), deleteLease("x")}, []action{addLease("z"), deleteLease("y"), addLease("y")}),
	},
	{
		// Not even a lease of the same name gets it again, nor one that requests it.
		name: "lease in use", spec: Pool("10.0.0.1-10.0.0.3", givesLeases), capacity: 0, ordered: true,
		before: []action{addLease("x")},
		script: []action{foundInUse("x"), deleteLease("x"), addLease("x"), addLease("y", asking("10.0.0.1")), addLease("z"), foundInUse("z"), deleteLease("z"), addLease("z"), advanceTime(grants.InUseCoolingPeriod * 5 / 4)},
		want:   map[string]string{"x": "10.0.0.2", "y": "10.0.0.1", "z": "10.0.0.3"},
	},
	{
		name: "lease in use cooling", spec: Pool("10.0.0.1-10.0.0.2", givesLeases, grace(30)), capacity: 0, ordered: true,
		before: []action{addLease("x"), addLease("y")},
		script: []action{foundInUse("y"), deleteLease("x"), deleteLease("y"), addLease("x"), addLease("y"), deleteLease("x"), addLease("z"), advanceTime(time.Minute)},
		want:   map[string]string{"y": "10.0.0.1", "z": ""},
	},
	{
		// A name in the pool's preAllocations counts for a lease, too.
		name: "pinned lease", spec: Pool("10.0.0.1-10.0.0.3", givesLeases, func(s *v1alpha1.NetworkPoolSpec) {
			s.PreAllocations = map[string]string{"vip": "10.0.0.1"}
		}), capacity: 3,
		script: []action{addLease("x"), addLease("vip"), deleteLease("vip"), addLease("y", asking("10.0.0.1")), addLease("vip")},
		want:   map[string]string{"vip": "10.0.0.1"},
	},
	{
		name: "lease asks for what another has", spec: Pool("10.0.0.1-10.0.0.4", givesLeases), capacity: 2, ordered: true,
		before: []action{request("a", "10.0.0.2")},
		script: []action{addLease("x", asking("10.0.0.2")), add("b"), remove("a")},
		want:   map[string]string{"x": "10.0.0.2"},
	},
	{
		// A lease whose address is shown keeps it. An address that was granted and never recorded is not shown.
		name: "shown leases", spec: Pool("10.0.0.1-10.0.0.2", givesLeases), capacity: 1, ordered: true,
		before: []action{addLease("x", func(o *v1alpha1.IPLease) { o.Finalizers = []string{v1alpha1.LeaseShownFinalizer} })},
		script: []action{addLease("y"), showLease("y", true), deleteLease("x"), addLease("z"), deleteLease("y"), add("a"), showLease("x", false), showLease("y", false), deleteLease("z")},
	},
	{
		name: "used claims", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2, ordered: true,
		claims: []string{"a"}, script: []action{useClaim("a", true), add("b"), useClaim("b", true), remove("a"), add("c"), remove("b"), useClaim("a", false), useClaim("b", false)},
	},
	{
		name: "stripped leases", spec: Pool("10.0.0.1-10.0.0.3", quota(2)), capacity: 1, ordered: true,
		before: []action{addLease("x"), addLease("y")},
		script: []action{stripLeaseRecord("x"), stripLeaseRecord("y"), add("a"), stripLeaseRecord("y"), deleteLease("y"), addLease("z")},
	},
	{
		name: "forced leases", spec: Pool("10.0.0.1-10.0.0.2", givesLeases), capacity: 2, ordered: true,
		before: []action{addLease("x")},
		script: []action{addLease("y"), forceDelete(faults.Leases, "x"), addLease("x"), addLease("z"), forceDelete(faults.Leases, "y"), deleteLease("x"), deleteLease("z"), add("a"), add("b")},
	},
	{
		name: "moved leases", spec: Pool("10.0.0.1-10.0.0.3", givesLeases), capacity: 1, ordered: true,
		before: []action{poolServedBefore, inheritLease("x", "10.0.0.2"), addLease("y"), add("a")},
		script: []action{addLease("z"), deleteLease("x"), addLease("v"), deleteLease("y")},
	},
	{
		// A prefix of a pool of prefixes is no address for a lease.
		name: "lease of a pool of prefixes", spec: v1alpha1.NetworkPoolSpec{
			CIDR: "10.0.0.0/26", AllocationPrefixLength: ptr.To[int32](28), Leases: &v1alpha1.Leases{},
		}, capacity: 4,
		claims: []string{"a"}, script: []action{addLease("x"), add("b"), deleteLease("x")},
	},
}

func init() { scenarios = slices.Concat(scenarios, leased) } //nolint:gochecknoinits // one list, in several files
