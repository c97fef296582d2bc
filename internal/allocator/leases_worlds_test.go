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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// Leases, beside claims and blocks.

// givesLeases lets a pool give leases.
func givesLeases(s *v1alpha1.NetworkPoolSpec) { s.Leases = &v1alpha1.Leases{} }

// quota lets a namespace have so many.
func quota(n int32) func(*v1alpha1.NetworkPoolSpec) {
	return func(s *v1alpha1.NetworkPoolSpec) { s.Leases = &v1alpha1.Leases{QuotaPerNamespace: &n} }
}

// rent asks for a lease; change makes it a particular one.
func rent(name string, change ...func(*v1alpha1.IPLease)) action {
	return action{"add lease " + name, func(w *world) bool {
		o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: poolName}}}
		for _, f := range change {
			f(o)
		}
		return w.api.Create(o) == nil
	}}
}

func asking(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Spec.Address = address }
}

func giveUp(name string) action {
	return action{"delete lease " + name, func(w *world) bool { return w.api.Delete(ref(faults.Leases, name), false) == nil }}
}

// showLease has somebody show the address of a lease, before it has one, or end that.
func showLease(name string, shown bool) action {
	text := map[bool]string{true: "is shown", false: "is not shown any more"}[shown]
	return action{"lease " + name + " " + text, func(w *world) bool {
		err := w.api.Edit(ref(faults.Leases, name), func(o client.Object) {
			if shown && o.GetDeletionTimestamp() == nil {
				controllerutil.AddFinalizer(o, v1alpha1.LeaseShownFinalizer)
			} else if !shown {
				controllerutil.RemoveFinalizer(o, v1alpha1.LeaseShownFinalizer)
			}
		})
		return err == nil || (!shown && apierrors.IsNotFound(err))
	}}
}

// foundInUse has it said of a lease, once it has an address, that somebody foreign answers for that.
func foundInUse(name string) action {
	return action{"the address of lease " + name + " is in use", func(w *world) bool {
		had := false
		err := w.api.EditStatus(ref(faults.Leases, name), func(o client.Object) {
			if l := o.(*v1alpha1.IPLease); l.Status.Address != "" {
				had = true
				usedByOthers(l)
			}
		})
		return err == nil && had
	}}
}

func usedByOthers(l *v1alpha1.IPLease) {
	meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{
		Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.AddressInUseReason, Message: "02:00:00:00:00:01 answers for it",
	})
}

// passes lets time pass.
func passes(d time.Duration) action {
	return action{d.String() + " passes", func(w *world) bool {
		w.After(0, d, func() {})
		return true
	}}
}

// keepsFromAll checks that an address for which somebody foreign answers is nobody's for an hour after its lease (P7).
func (w *world) keepsFromAll(c faults.Change, users bool) {
	if r, err := poolutil.ParseRange(c.Object.GetAnnotations()[v1alpha1.AddressAnnotation]); err == nil && !c.Deleted {
		for a, until := range w.nobodys {
			if r.Contains(a) && until.After(time.Now()) {
				w.Wrongf("P7: %s is in use by somebody foreign until %v, and %s has it", a, until.Sub(schedule.Epoch), c.Object.GetName())
			}
		}
	}
	l, is := c.Object.(*v1alpha1.IPLease)
	if !is || !c.Deleted || users {
		return
	}
	if announced := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.AnnouncedCondition); announced == nil || announced.Reason != v1alpha1.AddressInUseReason {
		return
	}
	// Its note may be half as old as it lasts.
	rest, noted := w.noted[" "+l.Status.Address]
	if !noted || time.Until(rest.Until) < grants.InUseRest/2 {
		w.Wrongf("P7: %s was released by %s, somebody foreign answers for it, and it does not rest for nobody", l.Status.Address, l.Name)
	}
	w.nobodys[netip.MustParseAddr(l.Status.Address)] = rest.Until
}

// strip takes off a lease what keeps its address, once it has one: as a tenant may where the policy of records is missing.
func strip(name string) action {
	return action{"lease " + name + " is stripped", func(w *world) bool {
		had := false
		err := w.api.Edit(ref(faults.Leases, name), func(o client.Object) {
			if had = o.(*v1alpha1.IPLease).Status.Address != ""; had {
				o.SetFinalizers(nil)
				o.SetAnnotations(nil)
				w.stripped[o.GetUID()] = true
			}
		})
		return err == nil && had
	}}
}

// useClaim has a consumer use a claim, or end that.
func useClaim(name string, used bool) action {
	const finalizer = "example.com/uses"
	text := map[bool]string{true: "is used", false: "is not used any more"}[used]
	return action{"claim " + name + " " + text, func(w *world) bool {
		err := w.api.Edit(ref(faults.Claims, name), func(o client.Object) {
			if used && o.GetDeletionTimestamp() == nil {
				controllerutil.AddFinalizer(o, finalizer)
			} else if !used {
				controllerutil.RemoveFinalizer(o, finalizer)
			}
		})
		return err == nil || (!used && apierrors.IsNotFound(err))
	}}
}

// inheritLease makes a lease as a move leaves it: with its record and its finalizer, and without a status.
func inheritLease(name, address string) action {
	return action{"restore lease " + name, func(w *world) bool {
		return rent(name, func(o *v1alpha1.IPLease) {
			o.Finalizers, o.Annotations = []string{v1alpha1.IPLeaseFinalizer}, map[string]string{v1alpha1.AddressAnnotation: address}
		}).do(w)
	}}
}

var leased = []scenario{
	{
		name: "leases", spec: Pool("10.0.0.1-10.0.0.8", givesLeases), prompt: true, capacity: 8, claims: []string{"a"},
		before: []action{rent("x"), rent("y", asking("10.0.0.8"))},
		script: []action{allocate("b", 3), rent("z"), giveUp("x"), add("c"), deallocate("b"), giveUp("y"), rent("y", asking("10.0.0.8"))},
		want:   map[string]string{"y": "10.0.0.8"},
	},
	{
		name: "leases and claims in a full pool", spec: Pool("10.0.0.1-10.0.0.3", givesLeases), capacity: 1, ordered: true,
		before: []action{rent("x"), rent("y"), rent("z")},
		script: []action{add("a"), rent("v"), giveUp("x"), giveUp("y"), giveUp("v")},
	},
	{
		name: "quota of leases", spec: Pool("10.0.0.1-10.0.0.8", quota(2)), capacity: 8, ordered: true, claims: []string{"a"},
		before: []action{rent("u"), rent("v"), rent("w")},
		script: []action{giveUp("u"), rent("x"), edit(poolName, "a larger quota", quota(3)), edit(poolName, "a smaller quota", quota(1)), giveUp("v"), giveUp("w")},
	},
	{
		// Nobody asked for leases before, and nobody gets them after.
		name: "leases allowed and not any more", spec: Pool("10.0.0.1-10.0.0.8"), capacity: 8, claims: []string{"a"},
		before: []action{rent("x")},
		script: []action{
			edit(poolName, "leases", givesLeases), rent("y"), edit(poolName, "no leases", func(s *v1alpha1.NetworkPoolSpec) { s.Leases = nil }), rent("z"), giveUp("x"),
		},
	},
	{
		name: "lease cooling", spec: Pool("10.0.0.1-10.0.0.2", givesLeases, grace(30)), capacity: 0,
		script: slices.Concat([]action{rent("x"), rent("y"), giveUp("x")}, []action{rent("z"), giveUp("y"), rent("y")}),
	},
	{
		// Not even a lease of the same name has it again, nor one that asks for it.
		name: "lease in use", spec: Pool("10.0.0.1-10.0.0.3", givesLeases), capacity: 0, ordered: true,
		before: []action{rent("x")},
		script: []action{foundInUse("x"), giveUp("x"), rent("x"), rent("y", asking("10.0.0.1")), rent("z"), foundInUse("z"), giveUp("z"), rent("z"), passes(grants.InUseRest * 5 / 4)},
		want:   map[string]string{"x": "10.0.0.2", "y": "10.0.0.1", "z": "10.0.0.3"},
	},
	{
		name: "lease in use cooling", spec: Pool("10.0.0.1-10.0.0.2", givesLeases, grace(30)), capacity: 0, ordered: true,
		before: []action{rent("x"), rent("y")},
		script: []action{foundInUse("y"), giveUp("x"), giveUp("y"), rent("x"), rent("y"), giveUp("x"), rent("z"), passes(time.Minute)},
		want:   map[string]string{"y": "10.0.0.1", "z": ""},
	},
	{
		// A name of the pool's is a lease's too.
		name: "pinned lease", spec: Pool("10.0.0.1-10.0.0.3", givesLeases, func(s *v1alpha1.NetworkPoolSpec) {
			s.PreAllocations = map[string]string{"vip": "10.0.0.1"}
		}), capacity: 3,
		script: []action{rent("x"), rent("vip"), giveUp("vip"), rent("y", asking("10.0.0.1")), rent("vip")},
		want:   map[string]string{"vip": "10.0.0.1"},
	},
	{
		name: "lease asks for what somebody has", spec: Pool("10.0.0.1-10.0.0.4", givesLeases), capacity: 2, ordered: true,
		before: []action{request("a", "10.0.0.2")},
		script: []action{rent("x", asking("10.0.0.2")), add("b"), remove("a")},
		want:   map[string]string{"x": "10.0.0.2"},
	},
	{
		// Whoever shows the address keeps it. What was granted and never recorded, nobody shows.
		name: "shown leases", spec: Pool("10.0.0.1-10.0.0.2", givesLeases), capacity: 1, ordered: true,
		before: []action{rent("x", func(o *v1alpha1.IPLease) { o.Finalizers = []string{v1alpha1.LeaseShownFinalizer} })},
		script: []action{rent("y"), showLease("y", true), giveUp("x"), rent("z"), giveUp("y"), add("a"), showLease("x", false), showLease("y", false), giveUp("z")},
	},
	{
		name: "used claims", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2, ordered: true,
		claims: []string{"a"}, script: []action{useClaim("a", true), add("b"), useClaim("b", true), remove("a"), add("c"), remove("b"), useClaim("a", false), useClaim("b", false)},
	},
	{
		name: "stripped leases", spec: Pool("10.0.0.1-10.0.0.3", quota(2)), capacity: 1, ordered: true,
		before: []action{rent("x"), rent("y")},
		script: []action{strip("x"), strip("y"), add("a"), strip("y"), giveUp("y"), rent("z")},
	},
	{
		name: "forced leases", spec: Pool("10.0.0.1-10.0.0.2", givesLeases), capacity: 2, ordered: true,
		before: []action{rent("x")},
		script: []action{rent("y"), forceDelete(faults.Leases, "x"), rent("x"), rent("z"), forceDelete(faults.Leases, "y"), giveUp("x"), giveUp("z"), add("a"), add("b")},
	},
	{
		name: "moved leases", spec: Pool("10.0.0.1-10.0.0.3", givesLeases), capacity: 1, ordered: true,
		before: []action{servedElsewhere, inheritLease("x", "10.0.0.2"), rent("y"), add("a")},
		script: []action{rent("z"), giveUp("x"), rent("v"), giveUp("y")},
	},
	{
		// An address of a pool of prefixes is none.
		name: "lease of a pool of prefixes", spec: v1alpha1.NetworkPoolSpec{
			CIDR: "10.0.0.0/26", AllocationPrefixLength: ptr.To[int32](28), Leases: &v1alpha1.Leases{},
		}, capacity: 4,
		claims: []string{"a"}, script: []action{rent("x"), add("b"), giveUp("x")},
	},
}

func init() { scenarios = slices.Concat(scenarios, leased) } //nolint:gochecknoinits // one list, in several files
