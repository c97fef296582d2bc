package nodeipam_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// These tests have stories that the schedules of faults do not have: what users do to blocks, and what refuses them.

func blockRef(name string) faults.Ref {
	return faults.Ref{Kind: faults.Allocations, Namespace: prod.Namespace, Name: name}
}

// forceBlock deletes a block regardless of its finalizers, as a restore to a time before it was granted does.
func forceBlock(name string) action {
	return sim.NewAttempt("force block "+name, func(w *world) bool { return w.api.Delete(blockRef(name), true) == nil })
}

// killAll kills the managers, and restart starts another one.
var killAll = sim.NewAttempt("kill", func(w *world) bool {
	for _, m := range w.Managers {
		m.Kill()
	}
	return true
})

var restart = sim.NewAttempt("start", func(w *world) bool { w.start(); return true })

// checkBlockHeld checks that an IPAllocation has, or may have, the first block.
var checkBlockHeld = sim.NewAttempt("is the block held", func(w *world) bool {
	for _, b := range w.blocks() {
		for _, p := range b.RecordedPrefixes() {
			if p.String() == threeBlocks[0] {
				return true
			}
		}
	}
	w.Failf("I1: no block holds %s, and a Node has some of it; on record is %+v", threeBlocks[0], w.state)
	return true
})

// runInOrders runs a scenario in each order of steps.
func (s scenario) runInOrders(t *testing.T) {
	t.Helper()
	for _, order := range names(sim.Orders) {
		t.Run(order, func(t *testing.T) { s.run(t, func(w *world) { w.Order = sim.Orders[order] }) })
	}
}

// waitFor waits for a duration, whatever happens.
func waitFor(d time.Duration) action {
	return sim.NewAttempt("wait", func(w *world) bool {
		if w.until.IsZero() {
			w.until = time.Now().Add(d)
		}
		over := time.Now().After(w.until)
		if over {
			w.until = time.Time{}
		}
		return over
	})
}

// checkAllServed checks that no Node waits, and ends the disturbance of calls.
var checkAllServed = sim.NewAttempt("is each Node served", func(w *world) bool {
	for _, n := range w.nodes() {
		if len(n.Spec.PodCIDRs) == 0 {
			w.Failf("Node %s waits, beside %d blocks", n.Name, len(w.blocks()))
		}
	}
	w.Disturb = nil
	return true
})

// refuse makes the API server refuse a verb on IPAllocations.
func refuse(verb string) func(*world) {
	return func(w *world) {
		w.Disturb = func(w *world, r *faults.Request) bool {
			if r.Ref.Kind != faults.Allocations || r.Verb != verb {
				return false
			}
			w.Answer(r, nil, forbidden(r))
			return true
		}
	}
}

// TestALostBlockIsAskedForAgain checks that a block that is gone by force, or by a restore of the management cluster,
// is requested again and kept, also by a manager that starts then and has nothing else to do.
func TestALostBlockIsAskedForAgain(t *testing.T) {
	for name, script := range map[string][]action{
		"by force":            {forceBlock("prod-pods-4-1"), checkBlockHeld},
		"beside a new start":  {killAll, forceBlock("prod-pods-4-1"), restart, waitFor(time.Minute), checkBlockHeld},
		"and another comes":   {forceBlock("prod-pods-4-1"), add(node("b")), add(node("x")), checkBlockHeld},
		"when its Node is to": {forceBlock("prod-pods-4-1"), drain("a"), checkBlockHeld},
	} {
		t.Run(name, func(t *testing.T) {
			scenario{
				name: name, fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, script: script, served: -1,
			}.runInOrders(t)
		})
	}
}

// TestABlockWithoutItsRecordStays checks that a block that is being deleted stays while a Node has some of it, whatever
// a user changes in its record.
func TestABlockWithoutItsRecordStays(t *testing.T) {
	s := scenario{name: "record", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
	s.script = []action{removeBlock("prod-pods-4-1"), sim.NewAttempt("edit the record", func(w *world) bool {
		return w.api.EditObject(blockRef("prod-pods-4-1"), func(o client.Object) { o.SetAnnotations(nil) }) == nil
	}), checkBlockHeld}
	s.run(t, func(*world) {})
}

// expectContested checks how many blocks are reported that Nodes use and that the pool refuses.
func expectContested(want int) action {
	return sim.NewAttempt(fmt.Sprintf("%d are contested", want), func(w *world) bool {
		if found, _ := w.Managers[0].site.BuildReport(); len(found.ConflictingBlocks) != want {
			w.Failf("contested are %v, want %d", found.ConflictingBlocks, want)
		}
		return true
	})
}

// foreignBlock is an IPAllocation with the addresses of the first block; grantToForeign grants it these.
var foreignBlock = &v1alpha1.IPAllocation{
	ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "x", Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.0-10.0.1.255"}},
	Spec:       v1alpha1.IPAllocationSpec{Type: v1alpha1.NodesAllocation},
}

func grantToForeign(w *world) bool {
	_ = w.api.Create(foreignBlock.DeepCopy())
	return faults.EditStatus(w.api, faults.RefForObject(foreignBlock), func(o *v1alpha1.IPAllocation) { o.Status.StartAddress = "10.0.0.0" }) == nil
}

var forceAndGrantToForeign = sim.NewAttempt("force, give on", func(w *world) bool { return forceBlock("prod-pods-4-1").Do(w) && grantToForeign(w) })

var foreignBlockGone = sim.NewAttempt("the other is gone", func(w *world) bool { return w.api.Delete(faults.RefForObject(foreignBlock), true) == nil })

// TestLostBlockGrantedToAnother checks a block that was granted to another IPAllocation while its own was gone; then
// its Nodes are deleted, and another one comes.
func TestLostBlockGrantedToAnother(t *testing.T) {
	s := scenario{name: "given on", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: 1}
	s.script = []action{forceAndGrantToForeign, expectContested(1), remove(faults.Nodes, "a"), add(node("b")), expectContested(0)}
	s.runInOrders(t)
}

// blockOfProd returns a block with the name of the first one, as a restore brings it, with a record.
func blockOfProd(record string) *v1alpha1.IPAllocation {
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: prod.Namespace, Name: "prod-pods-4-1"}}
	o.Spec = v1alpha1.IPAllocationSpec{
		Type: v1alpha1.PodsAllocation, PoolRef: v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods"},
		PrefixLength: ptr.To[int32](23), TenantClusterRef: v1alpha1.ClusterReference{Namespace: prod.Namespace, Name: prod.Name},
	}
	o.Annotations = map[string]string{v1alpha1.AddressAnnotation: record, v1alpha1.ClusterCIDRAnnotation: "c"}
	o.Finalizers = []string{v1alpha1.PodsFinalizer}
	return o
}

// takeName deletes the first block regardless of its finalizers, and creates an IPAllocation of its name with the
// second block's addresses: for another purpose, or as a restore brings the block that had the name before, according
// to the type.
func takeName(by v1alpha1.AllocationType) action {
	return sim.NewAttempt("force, take the name", func(w *world) bool {
		second := netipx.RangeOfPrefix(netip.MustParsePrefix(threeBlocks[1]))
		o := blockOfProd(second.String())
		o.Spec.Type = by
		_ = w.api.Delete(blockRef(o.Name), true)
		_ = w.api.Create(o)
		return w.api.EditStatus(blockRef(o.Name), func(live client.Object) {
			s := &live.(*v1alpha1.IPAllocation).Status
			s.StartAddress, s.EndAddress = second.From().String(), second.To().String()
		}) == nil
	})
}

var takenBy = map[string]v1alpha1.AllocationType{"an IPAllocation for something else": v1alpha1.NodesAllocation, "what a restore brings": v1alpha1.PodsAllocation}

// TestLostBlockWhileNameIsTaken checks that, where something else has the name of a block that is gone, or the block
// has come back as it was before, its addresses are requested under another name, once, and are kept until the last
// Node is gone that has some of them.
func TestLostBlockWhileNameIsTaken(t *testing.T) {
	for name, kind := range takenBy {
		take := takeName(kind)
		for end, script := range map[string][]action{
			"its Node stays":  {take, checkBlockHeld, checkBlockOpenOnce},
			"another comes":   {take, add(node("b")), checkBlockHeld, checkBlockOpenOnce, checkAllServed},
			"after a restart": {killAll, take, restart, waitFor(time.Minute), checkBlockHeld, checkBlockOpenOnce},
			"its Node goes":   {take, checkBlockHeld, remove(faults.Nodes, "a"), add(node("x")), checkAllServed},
		} {
			t.Run(name+", "+end, func(t *testing.T) {
				scenario{
					name: "taken", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, script: script, served: -1,
				}.runInOrders(t)
			})
		}
	}
}

// TestFaultsWhileNameIsTaken checks that the first block is held and open in the end whatever happens to a request,
// or a read, that the replacement of a lost block takes, also where another manager works meanwhile. Faults that lose
// the ConfigMap too are left out, as nothing is known of the block then.
func TestFaultsWhileNameIsTaken(t *testing.T) {
	for name, kind := range takenBy {
		take, writes, calls := takeName(kind), 0, 0
		s := scenario{name: "taken", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
		s.script = []action{sim.NewAttempt(take.Text, func(w *world) bool { writes, calls = w.Writes, w.Calls; return take.Do(w) }), waitFor(5 * time.Minute), checkBlockHeld, checkBlockOpenOnce}
		for _, order := range names(sim.Orders) {
			in, allCalls := func(w *world) { w.Order = sim.Orders[order] }, 0
			allWrites := s.run(t, func(w *world) {
				in(w)
				w.Disturb = func(w *world, _ *faults.Request) bool { allCalls = w.Calls; return false }
			})
			firstWrite, firstCall := writes+1, calls+1
			for _, f := range faultsOfWrites {
				n, most := firstWrite, allWrites
				if f.reads {
					n, most = firstCall, allCalls
				}
				for ; n <= most && !strings.Contains(f.name, "ConfigMap lost"); n++ {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", name, order, f.name, n), func(t *testing.T) {
						s.run(t, func(w *world) { in(w); at(n, f)(w) })
					})
				}
			}
		}
	}
}

// TestALostBlockOfWhatIsDeleted checks that a lost block that Nodes use is requested once where its ClusterCIDR is
// being deleted, and another IPAllocation has its name, and perhaps its addresses.
func TestALostBlockOfWhatIsDeleted(t *testing.T) {
	few := sim.NewAttempt("were few made", func(w *world) bool {
		made := map[types.UID]bool{}
		for _, c := range w.api.ChangesSince(faults.Allocations, 0) {
			made[c.Object.GetUID()] = true
		}
		if len(made) > 4 { // the block, the one with its name, the one with its addresses, and the replacement
			w.Failf("%d IPAllocations were made", len(made))
		}
		return true
	})
	for name, take := range map[string]action{"given on": sim.NewAttempt("take the name, give on", func(w *world) bool {
		return takeName(v1alpha1.NodesAllocation).Do(w) && grantToForeign(w)
	}), "free": takeName(v1alpha1.NodesAllocation)} {
		t.Run(name, func(t *testing.T) {
			scenario{
				name: "closing", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
				script: []action{remove(faults.ClusterCIDRs, "c"), take, waitFor(time.Minute), few, remove(faults.Nodes, "a")}, served: -1,
			}.runInOrders(t)
		})
	}
}

// TestARequestForALostBlockIsDeleted checks a request for the addresses of a lost block that is refused, as another
// IPAllocation has them, and is deleted; then the other IPAllocation is deleted.
func TestARequestForALostBlockIsDeleted(t *testing.T) {
	scenario{
		name: "deleted request", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
		script: []action{forceAndGrantToForeign, waitFor(time.Minute),
			removeBlock("prod-pods-4-1"), waitFor(time.Minute), foreignBlockGone,
			waitFor(time.Minute), checkBlockHeld, checkBlockOpenOnce}, served: -1,
	}.runInOrders(t)
}

// TestARequestOutlivesTheConfigMap checks a lost block that was granted to another IPAllocation, where the ConfigMap is
// lost too: the request for it stays, and is granted when the other one is gone.
func TestARequestOutlivesTheConfigMap(t *testing.T) {
	scenario{
		name: "lost twice", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
		script: []action{forceAndGrantToForeign, waitFor(time.Minute),
			loseFence, add(node("b")), waitFor(5 * time.Minute), foreignBlockGone,
			waitFor(time.Minute), checkBlockHeld, checkBlockOpenOnce}, served: -1,
	}.runInOrders(t)
}

// TestConcurrentRequestsGetOneBlockEach checks that two ClusterCIDRs of a Cluster that request blocks in the same
// reconcile get one each, with a name of its own, and no more than that.
func TestConcurrentRequestsGetOneBlockEach(t *testing.T) {
	one, two := forSize(fromPool("c"), "small"), forSize(fromPool("d"), "big")
	each := sim.NewAttempt("has each one block", func(w *world) bool {
		of := map[string]int{}
		for _, b := range w.blocks() {
			of[b.ClusterCIDRName]++
		}
		if len(of) != 2 || of["c"] != 1 || of["d"] != 1 {
			w.Failf("the blocks of each ClusterCIDR are %v", of)
		}
		return true
	})
	scenario{
		name: "two", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), one, two, sized("s", "small"), sized("b", "big")},
		script: []action{each, checkAllServed}, served: 2,
	}.runInOrders(t)
}

// checkBlockOpenOnce checks that the first block is open, and only once.
var checkBlockOpenOnce = sim.NewAttempt("is the block open", func(w *world) bool {
	var open []fence.OpenRange
	for _, on := range w.state.OpenRanges {
		if on.ClusterCIDRName != "" && on.CIDRs[0].String() == threeBlocks[0] {
			open = append(open, on)
		}
	}
	if len(open) != 1 || open[0].Draining {
		w.Failf("%s is open as %+v", threeBlocks[0], open)
	}
	return true
})

// TestUnservableBlockIsNotAwaited checks that a Node does not wait for a block that may never get any addresses:
// another block is requested.
func TestUnservableBlockIsNotAwaited(t *testing.T) {
	share := sim.NewAttempt("it shares addresses", func(w *world) bool {
		return faults.EditStatus(w.api, blockRef("prod-pods-4-1"), func(o *v1alpha1.IPAllocation) {
			s := &o.Status
			s.StartAddress, s.EndAddress = "10.9.0.0", "10.9.1.255"
			s.Conditions = []metav1.Condition{
				{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason},
				{Type: v1alpha1.OverlapCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.SharedRangeReason},
			}
		}) == nil
	})
	for name, script := range map[string][]action{
		"for one whose addresses another has since a restore": {add(node("a")), add(node("b")), checkAllServed},
		"for one that shares addresses":                       {share, add(node("a")), add(node("b")), checkAllServed},
	} {
		t.Run(name, func(t *testing.T) {
			scenario{
				name: "another", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), blockOfProd("10.9.0.0-10.9.1.255")},
				script: script, served: 2,
			}.runInOrders(t)
		})
	}
}

// TestTheNextClusterCIDRServes checks that a Node takes the next ClusterCIDR that selects it where no other block can
// come.
func TestTheNextClusterCIDRServes(t *testing.T) {
	other := forClusters(clusterCIDR("d", "10.1.0.0/24", 8))
	t.Run("one of one is deleted in use", func(t *testing.T) {
		scenario{
			name: "next", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), atMost(1, forSize(fromPool("c"), "big")), other, sized("a", "big")},
			script: []action{removeBlock("prod-pods-4-1"), add(sized("b", "big"))}, served: 2,
		}.run(t, func(*world) {})
	})
	t.Run("none can be made", func(t *testing.T) {
		scenario{
			name: "next", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), forSize(fromPool("c"), "big"), other, sized("a", "big")},
			script: []action{waitFor(2 * time.Minute), checkAllServed}, served: 1,
		}.run(t, refuse("create"))
	})
}

// TestFailedDeletionDelaysNoRequest checks that a block that cannot be deleted blocks no requests for other blocks.
func TestFailedDeletionDelaysNoRequest(t *testing.T) {
	scenario{
		name: "held up", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), forSize(fromPool("a"), "small"), forSize(fromPool("c"), "big"), sized("s", "small")},
		script: []action{remove(faults.Nodes, "s"), waitFor(2 * time.Minute), add(sized("b", "big")), waitFor(2 * time.Minute), checkAllServed}, served: 1,
	}.run(t, refuse("delete"))
}

// TestBlocksOfAnotherPool checks that nothing is granted from the blocks of a deleted ClusterCIDR by another one of the
// same name with another pool.
func TestBlocksOfAnotherPool(t *testing.T) {
	again := fromPool("c")
	again.Spec.IPv4Pool.Name = "others"
	s := scenario{name: "again", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: 2}
	s.script = []action{sim.NewAttempt("force c, c again, Node b", func(w *world) bool {
		_ = w.api.Delete(ref(faults.ClusterCIDRs, "c"), true)
		return w.api.Create(again) == nil && w.api.Create(node("b")) == nil
	}), sim.NewAttempt("look", func(w *world) bool {
		for _, n := range w.nodes() {
			if n.Name == "b" && overlapCondition(prefixes(n.Spec.PodCIDRs), prefixes(threeBlocks[:1])) {
				w.Failf("b has %v of a block of another pool", n.Spec.PodCIDRs)
			}
		}
		return true
	})}
	s.run(t, func(*world) {})
}

// TestAForgedBlockIsNotAskedFor checks that users who can write the ConfigMap of the workload cluster cannot make the
// manager request more from the pool than the Cluster may have.
func TestAForgedBlockIsNotAskedFor(t *testing.T) {
	forged := fence.OpenRange{Kind: v1alpha1.IPAllocationKind, Name: "prod-pods-4-99", UID: "u", ClusterCIDRName: "c", Draining: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	s := scenario{name: "forged", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
	s.script = []action{sim.NewAttempt("forge", func(w *world) bool {
		return w.api.EditObject(fenceRef, func(c client.Object) {
			var state fence.State
			data := c.(*corev1.ConfigMap).Data
			_ = json.Unmarshal([]byte(data["state"]), &state)
			state.OpenRanges = append(state.OpenRanges, forged)
			raw, _ := json.Marshal(state)
			data["state"] = string(raw)
		}) == nil
	}), add(node("b")), add(node("x")), sim.NewAttempt("look", func(w *world) bool {
		for _, o := range faults.ListObjects[*v1alpha1.IPAllocation](w.api) {
			if bits := *o.Spec.PrefixLength; bits != 23 {
				w.Failf("a block of /%d is asked for", bits)
			}
		}
		return true
	})}
	s.run(t, func(w *world) { w.Order = sim.Orders["lazy"] })
}

// TestConfigMapDeletionRecordsEvent checks that the deletion of the ConfigMap is followed by one event with its
// consequences: kubectl waits for the finalizer without a message.
func TestConfigMapDeletionRecordsEvent(t *testing.T) {
	s := scenario{name: "deleted", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a")}, served: 3}
	s.script = []action{deleteFence, add(node("b")), add(node("x")), sim.NewAttempt("was it said", func(w *world) bool {
		events := slices.DeleteFunc(slices.Clone(w.events), func(text string) bool { return !strings.HasPrefix(text, "*v1.ConfigMap "+nodeipam.FenceDeleted) })
		if len(events) != 1 {
			w.Failf("of the ConfigMap is said %q", events)
		}
		return true
	})}
	s.run(t, func(*world) {})
}
