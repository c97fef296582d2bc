package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The import dies at every write, before it and after it, and is resumed or rolled back; the rollback dies at every
// write and is resumed. Cluster API's own admission checks all writes. Afterwards a manager serves what was imported.
func TestImportSurvivesCrashes(t *testing.T) {
	served := importDyingAnywhere(t, newLocalWorld)
	t.Run("global", func(t *testing.T) {
		w := newWorld(t, true)
		if _, err := w.move(k8s).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectMoved(t)
		served = append(served, w)
	})
	t.Run("served", func(t *testing.T) { serve(t, served) })
}

// importDyingAnywhere runs imports that die at each write, and returns the worlds that are imported at the end.
func importDyingAnywhere[W importedWorld](t *testing.T, newOne func(t *testing.T) W) (served []importedWorld) {
	t.Helper()
	writes, back := 0, 0
	t.Run("in one go, and back", func(t *testing.T) {
		w := newOne(t)
		counting := newDyingClient(0, false)
		if _, err := w.base().move(counting).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectMoved(t)
		writes = counting.n
		counting = newDyingClient(0, false)
		if err := w.base().move(counting).Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectBack(t)
		back = counting.n
	})
	t.Logf("an import has %d writes, a rollback %d", writes, back)
	var mu sync.Mutex
	t.Run("dies", func(t *testing.T) {
		// A lost response leaves the same state as a death before the next write, except after the last write.
		for n := 1; n <= writes+1; n += stride() {
			at, lost := min(n, writes), n > writes
			for _, rollback := range []bool{false, true} {
				t.Run(fmt.Sprintf("at %d lost=%t rollback=%t", at, lost, rollback), func(t *testing.T) {
					t.Parallel()
					w := newOne(t)
					if _, err := w.base().move(newDyingClient(at, lost)).Apply(t.Context()); !errors.Is(err, errDied) {
						t.Fatalf("it did not die: %v", err)
					}
					w.expectHeld(t)
					if rollback {
						undo(t, w)
						return
					}
					resume(t, w)
					mu.Lock()
					defer mu.Unlock()
					served = append(served, w)
				})
			}
		}
		for n := 1; n <= back+1; n += stride() {
			at, lost := min(n, back), n > back
			t.Run(fmt.Sprintf("on the way back at %d lost=%t", at, lost), func(t *testing.T) {
				t.Parallel()
				w := newOne(t)
				if _, err := w.base().move(k8s).Apply(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := w.base().move(newDyingClient(at, lost)).Rollback(t.Context()); !errors.Is(err, errDied) {
					t.Fatalf("it did not die: %v", err)
				}
				w.expectHeld(t)
				undo(t, w)
			})
		}
	})
	return served
}

// stride returns the distance between the writes at which an import dies: with -short every third is enough.
func stride() int {
	if testing.Short() {
		return 3
	}
	return 1
}

// undo rolls an import back; it is a no-op if the journal is not written yet, or is removed already.
func undo(t *testing.T, w importedWorld) {
	t.Helper()
	if err := w.base().move(k8s).Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectBack(t)
}

// resume continues an import, or starts it again if it had not begun; it is a no-op if the import has finished.
func resume(t *testing.T, w importedWorld) {
	t.Helper()
	if _, err := w.base().move(k8s).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectMoved(t)
}

// serve runs a manager on the imported pools: no existing claim gets another address, and new claims get other ones.
func serve(t *testing.T, all []importedWorld) {
	t.Helper()
	before := map[string]ipamv1.IPAddress{}
	addresses := &ipamv1.IPAddressList{}
	if err := k8s.List(t.Context(), addresses); err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses.Items {
		before[a.Namespace+"/"+a.Name] = a
	}
	for _, w := range all {
		w.base().unpause(t)
	}
	m := startManager(t, "")
	for _, w := range all {
		eventually(t, adopted(w.base().target()))
	}
	// The wait of the adoption is shortened by an earlier transition time; the manager is stopped meanwhile.
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		w := one.base()
		pool := w.target()
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
		c.LastTransitionTime = metav1.NewTime(c.LastTransitionTime.Add(-2 * time.Minute))
		pool.SetConditions([]metav1.Condition{*c})
		if err := k8s.Status().Update(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		builder := framework.MakeClaim(w.ns, "new").Pool(w.source.Name)
		if w.source.Namespace == "" {
			builder = framework.MakeClaim(w.ns, "new").GlobalPool(w.source.Name)
		}
		create(t, builder.Obj())
	}
	startManager(t, "")
	for _, one := range all {
		w := one.base()
		for _, name := range append(slices.Clone(w.claims), "new") {
			claim := framework.MakeClaim(w.ns, name).Obj()
			ready(t, claim, metav1.ConditionTrue)
		}
		eventually(t, settled(w.target(), int64(len(w.claims))+1))
		w.expectServed(t, before)
	}
}

// expectServed compares IPAddresses with their state before a manager ran.
func (w *world) expectServed(t *testing.T, before map[string]ipamv1.IPAddress) {
	t.Helper()
	var o pools.Objects
	addresses, claims := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}
	for _, l := range []client.ObjectList{addresses, claims} {
		if err := k8s.List(t.Context(), l, client.InNamespace(w.ns)); err != nil {
			t.Fatal(err)
		}
	}
	pool := w.target()
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
		t.Fatal(err)
	}
	o.Pools, o.Claims, o.Addresses = []v1alpha1.Pool{pool}, claims.Items, addresses.Items
	if bad := (&invariants.History{}).CheckAtRest(o); len(bad) > 0 {
		t.Errorf("%s: %v", w.ns, bad)
	}
	for i := range addresses.Items {
		a := &addresses.Items[i]
		was, had := before[w.ns+"/"+a.Name]
		if had != (w.before[a.Name].Address != "") {
			t.Errorf("%s/%s: an IPAddress before %t", w.ns, a.Name, had)
		}
		if had && (a.UID != was.UID || a.Spec.Address != w.before[a.Name].Address) {
			t.Errorf("%s/%s was created anew: %s, it was %s", w.ns, a.Name, a.Spec.Address, w.before[a.Name].Address)
		}
	}
	if len(addresses.Items) != len(w.claims)+1 {
		t.Errorf("%s: %d IPAddresses", w.ns, len(addresses.Items))
	}
}

// A manager runs all the time, and observes every step.
func TestImportWatched(t *testing.T) {
	w := newWorld(t, false)
	startManager(t, "")
	if _, err := w.move(k8s).Apply(t.Context()); err != nil { // although the manager writes the pool, too
		t.Fatal(err)
	}
	before := map[string]ipamv1.IPAddress{}
	addresses := &ipamv1.IPAddressList{}
	if err := k8s.List(t.Context(), addresses, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses.Items {
		before[a.Name] = a
	}
	eventually(t, adopted(w.target()))
	w.unpause(t)
	for name, was := range w.before {
		if was.Address == "" {
			continue
		}
		claim := framework.MakeClaim(w.ns, name).Obj()
		ready(t, claim, metav1.ConditionTrue)
		a := &ipamv1.IPAddress{}
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), a); err != nil {
			t.Fatal(err)
		}
		if a.Spec.Address != was.Address || a.UID != before[name].UID {
			t.Errorf("%s has %s, it had %s", name, a.Spec.Address, was.Address)
		}
	}
	// The way back, with the manager running: its pending writes must be done first.
	if err := k8s.Patch(t.Context(), w.cluster, pausePatch); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { return w.move(k8s).Rollback(ctx) })
	current := w.listClaimsAndAddresses(t)
	for name, was := range w.before {
		if current[name].Address != was.Address || current[name].AddressPool != was.AddressPool || current[name].PoolRef != was.PoolRef {
			t.Errorf("%s: %v, it was %v", name, current[name], was)
		}
	}
	eventually(t, gone(w.target()))
}
