package allocator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of restores that bring one object after the other, in any order, are interrupted and resumed, while others
// request addresses.

// restoreObject restores an object. A resumed restore skips what it has already restored.
func restoreObject(brought map[string]bool, kind faults.Kind, name string, a action) action {
	text := fmt.Sprintf("the restore brings %s %s", kind, name)
	return sim.NewAttempt(text, func(w *world) bool {
		exists := slices.ContainsFunc(w.api.List(kind), func(o client.Object) bool { return o.GetName() == name })
		switch {
		case brought[text] && !exists:
			w.Failf("%s %s, which a restore has brought, is gone", kind, name)
		case !exists:
			a.Do(w)
		}
		brought[text] = true
		return true
	})
}

// restorePoolObject restores a pool as its backup has it: with its annotations, and without a status.
func restorePoolObject(o *v1alpha1.NetworkPool) action {
	o.Finalizers = []string{v1alpha1.PoolFinalizer}
	o.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: home, v1alpha1.ClustersAnnotation: "tenant"}
	return sim.NewAttempt("", func(w *world) bool { return w.api.Create(o.DeepCopy()) == nil })
}

// restoreClaimObject restores a claim of a pool alone, restoreAddressObject its IPAddress, which names the former UID
// of the claim.
func restoreClaimObject(pool, name, address string) action {
	c := claim(name)
	c.Spec.PoolRef.Name, c.Finalizers, c.Annotations = pool, []string{v1alpha1.ClaimFinalizer}, map[string]string{v1alpha1.AddressAnnotation: address}
	return sim.NewAttempt("", func(w *world) bool { return w.api.Create(c.DeepCopy()) == nil })
}

func restoreAddressObject(pool, name, address string) action {
	o := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Finalizers: []string{v1alpha1.AddressFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: string(faults.Claims), Name: name, UID: "before"}},
		},
		Spec: ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: claim(name).Spec.PoolRef, Address: address},
	}
	o.Spec.PoolRef.Name = pool
	return sim.NewAttempt("", func(w *world) bool { return w.api.Create(o.DeepCopy()) == nil })
}

// drawRestore draws a restore of a pool, a pool that is carved from it, and the objects that both granted to. Some of
// it comes, minutes apart; all of it, in another order, when the restore is resumed. The Cluster is paused until then.
func drawRestore(r *rand.Rand) scenario {
	s := scenario{name: "restored in any order", spec: Pool("10.0.0.0-10.0.0.31", reserve, carvable, givesLeases), capacity: 100}
	s.before = []action{setClusterPaused(true), forceDelete(faults.Pools, poolName)}
	s.want = map[string]string{"a": "10.0.0.0", "b": "10.0.0.5", "x": "10.0.0.3-10.0.0.4", "l": "10.0.0.2", "c": "10.0.0.9", child + "-1": "10.0.0.8/31"}
	carved := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: child}, Spec: v1alpha1.NetworkPoolSpec{
		AllocateReservedIPAddresses: true, Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: poolName}, PrefixLength: 31, Blocks: v1alpha1.CarvedBlocks{Min: 1, Max: 2}},
	}}
	brought := map[string]bool{}
	all := []action{
		restoreObject(brought, faults.Pools, poolName, restorePoolObject(s.pool())), restoreObject(brought, faults.Pools, child, restorePoolObject(carved)),
		restoreObject(brought, faults.Claims, "a", restoreClaimObject(poolName, "a", s.want["a"])), restoreObject(brought, faults.Addresses, "a", restoreAddressObject(poolName, "a", s.want["a"])),
		restoreObject(brought, faults.Claims, "b", restoreClaimObject(poolName, "b", s.want["b"])), restoreObject(brought, faults.Addresses, "b", restoreAddressObject(poolName, "b", s.want["b"])),
		restoreObject(brought, faults.Claims, "c", restoreClaimObject(child, "c", s.want["c"])), restoreObject(brought, faults.Addresses, "c", restoreAddressObject(child, "c", s.want["c"])),
		restoreObject(brought, faults.Allocations, "x", inheritAllocation("x", 2, s.want["x"])), restoreObject(brought, faults.Leases, "l", inheritLease("l", s.want["l"])),
		restoreObject(brought, faults.Allocations, child+"-1", inheritBlock(child+"-1", "10.0.0.8", "10.0.0.9")),
	}
	meanwhile := []action{add("new"), add("newer"), addTo(child, "newest"), allocate("y", 2), addLease("m"), another}
	var passed time.Duration
	bring := func(n int) {
		for _, i := range r.Perm(len(all))[:n] {
			if s.script = append(s.script, all[i]); r.IntN(3) == 0 {
				passed += time.Duration(1+r.IntN(4)) * time.Minute
				s.script = append(s.script, waitElapsed(passed))
			}
			if len(meanwhile) > 0 && r.IntN(3) == 0 {
				j := r.IntN(len(meanwhile))
				s.script = append(s.script, meanwhile[j])
				meanwhile = slices.Delete(meanwhile, j, j+1)
			}
		}
	}
	bring(r.IntN(len(all)))
	passed += 20 * time.Minute
	s.script = append(s.script, waitElapsed(passed))
	bring(len(all))
	s.script = append(s.script, setClusterPaused(false))
	return s
}

// TestRestoresInAnyOrder runs random restores, with random disturbances: no address is granted twice, no granted
// address changes, and none is lost.
func TestRestoresInAnyOrder(t *testing.T) {
	for seed := range 4 * seeds() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), crc("restored in any order", 0)))
			drawRestore(r).run(t, func(w *world) {
				w.Order = sim.RandomOrder(r)
				w.Disturb = randomDisturbance(r, seed%4)
			})
		})
	}
}
