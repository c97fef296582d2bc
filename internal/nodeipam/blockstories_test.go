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
)

// What people do to blocks, and what refuses them: stories that the schedules of faults do not have.

func blockRef(name string) faults.Ref {
	return faults.Ref{Kind: faults.Allocations, Namespace: prod.Namespace, Name: name}
}

// forceBlock deletes a block whatever holds it, as a restore to before it was given does.
func forceBlock(name string) action {
	return action{"force block " + name, func(w *world) bool { return w.api.Delete(blockRef(name), true) == nil }}
}

// killAll kills the managers, and restart starts another one.
var killAll = action{"kill", func(w *world) bool {
	for _, m := range w.managers {
		m.dead = true
		m.kill()
	}
	return true
}}

var restart = action{"start", func(w *world) bool { w.start(); return true }}

// isHeld checks that an IPAllocation has, or may have, the first block.
var isHeld = action{"is the block held", func(w *world) bool {
	for _, b := range w.blocks() {
		for _, p := range b.Had {
			if p.String() == threeBlocks[0] {
				return true
			}
		}
	}
	w.Wrongf("I1: nobody holds %s, and a Node has some of it; on record is %+v", threeBlocks[0], w.state)
	return true
}}

// runInOrders runs a scenario in each order of steps.
func (s scenario) runInOrders(t *testing.T) {
	t.Helper()
	for _, order := range names(orders) {
		t.Run(order, func(t *testing.T) { s.run(t, func(w *world) { w.order = orders[order] }) })
	}
}

// lasting waits for so long, whatever happens.
func lasting(d time.Duration) action {
	return action{"wait", func(w *world) bool {
		if w.until.IsZero() {
			w.until = time.Now().Add(d)
		}
		over := time.Now().After(w.until)
		if over {
			w.until = time.Time{}
		}
		return over
	}}
}

// allServed checks that no Node waits, and lets writes through again.
var allServed = action{"is each Node served", func(w *world) bool {
	for _, n := range w.nodes() {
		if len(n.Spec.PodCIDRs) == 0 {
			w.Wrongf("Node %s waits, beside %d blocks", n.Name, len(w.blocks()))
		}
	}
	w.disturb = nil
	return true
}}

// refuse has the API server refuse a verb on IPAllocations.
func refuse(verb string) func(*world) {
	return func(w *world) {
		w.disturb = func(w *world, r *faults.Request) bool {
			if r.Ref.Kind != faults.Allocations || r.Verb != verb {
				return false
			}
			w.answer(r, nil, forbidden(r))
			return true
		}
	}
}

// A block that is gone by force, or by a restore of the management cluster, is asked for again, and kept: also by a manager
// that starts then, and has nothing else to do.
func TestALostBlockIsAskedForAgain(t *testing.T) {
	for name, script := range map[string][]action{
		"by force":            {forceBlock("prod-pods-4-1"), isHeld},
		"beside a new start":  {killAll, forceBlock("prod-pods-4-1"), restart, lasting(time.Minute), isHeld},
		"and another comes":   {forceBlock("prod-pods-4-1"), add(node("b")), add(node("x")), isHeld},
		"when its Node is to": {forceBlock("prod-pods-4-1"), drain("a"), isHeld},
	} {
		t.Run(name, func(t *testing.T) {
			scenario{
				name: name, fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, script: script, served: -1,
			}.runInOrders(t)
		})
	}
}

// A block that is being deleted stays while a Node has some of it, whatever somebody makes of its record.
func TestABlockWithoutItsRecordStays(t *testing.T) {
	s := scenario{name: "record", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
	s.script = []action{removeBlock("prod-pods-4-1"), {"edit the record", func(w *world) bool {
		return w.api.Edit(blockRef("prod-pods-4-1"), func(o client.Object) { o.SetAnnotations(nil) }) == nil
	}}, isHeld}
	s.run(t, func(*world) {})
}

// says checks how many blocks are told of that Nodes use, and that the pool does not give back.
func says(contested int) action {
	return action{fmt.Sprintf("%d are contested", contested), func(w *world) bool {
		if found, _ := w.managers[0].site.Report(); len(found.Contested) != contested {
			w.Wrongf("contested are %v, want %d", found.Contested, contested)
		}
		return true
	}}
}

// anothersBlock has the addresses of the first block, and giveOn gives it these.
var anothersBlock = &v1alpha1.IPAllocation{
	ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "x", Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.0-10.0.1.255"}},
	Spec:       v1alpha1.IPAllocationSpec{Type: v1alpha1.NodesAllocation},
}

func giveOn(w *world) bool {
	_ = w.api.Create(anothersBlock.DeepCopy())
	return w.api.EditStatus(faults.RefOf(anothersBlock), func(o client.Object) { o.(*v1alpha1.IPAllocation).Status.StartAddress = "10.0.0.0" }) == nil
}

var forceAndGiveOn = action{"force, give on", func(w *world) bool { return forceBlock("prod-pods-4-1").do(w) && giveOn(w) }}

var otherGone = action{"the other is gone", func(w *world) bool { return w.api.Delete(faults.RefOf(anothersBlock), true) == nil }}

// The block was given on while its IPAllocation was gone; its Nodes go then, and another one comes.
func TestABlockThatWasGivenOn(t *testing.T) {
	s := scenario{name: "given on", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: 1}
	s.script = []action{forceAndGiveOn, says(1), remove(faults.Nodes, "a"), add(node("b")), says(0)}
	s.runInOrders(t)
}

// blockOfProd is a block by the name of the first one, as a restore brings it, with a record.
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

// takeName deletes the first block whatever holds it, and has its name taken by an IPAllocation of a type that has the second block's
// addresses: for something else, or as a restore brings the block that had the name before.
func takeName(by v1alpha1.AllocationType) action {
	return action{"force, take the name", func(w *world) bool {
		second := netipx.RangeOfPrefix(netip.MustParsePrefix(threeBlocks[1]))
		o := blockOfProd(second.String())
		o.Spec.Type = by
		_ = w.api.Delete(blockRef(o.Name), true)
		_ = w.api.Create(o)
		return w.api.EditStatus(blockRef(o.Name), func(live client.Object) {
			s := &live.(*v1alpha1.IPAllocation).Status
			s.StartAddress, s.EndAddress = second.From().String(), second.To().String()
		}) == nil
	}}
}

var takenBy = map[string]v1alpha1.AllocationType{"an IPAllocation for something else": v1alpha1.NodesAllocation, "what a restore brings": v1alpha1.PodsAllocation}

// Something else has the name of a block that is gone, or the block has come back as it was before: its addresses are asked for under
// another name, once, and are held until the last Node that has some of them is gone.
func TestANameThatIsTaken(t *testing.T) {
	for name, kind := range takenBy {
		take := takeName(kind)
		for end, script := range map[string][]action{
			"its Node stays":  {take, isHeld, isOpenOnce},
			"another comes":   {take, add(node("b")), isHeld, isOpenOnce, allServed},
			"after a restart": {killAll, take, restart, lasting(time.Minute), isHeld, isOpenOnce},
			"its Node goes":   {take, isHeld, remove(faults.Nodes, "a"), add(node("x")), allServed},
		} {
			t.Run(name+", "+end, func(t *testing.T) {
				scenario{
					name: "taken", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, script: script, served: -1,
				}.runInOrders(t)
			})
		}
	}
}

// Whatever befalls a request, or a read, that a lost block's replacement takes, the block is held and open in the end, also where another
// manager works meanwhile. A ConfigMap that is lost too says nothing of it.
func TestFaultsOfANameThatIsTaken(t *testing.T) {
	for name, kind := range takenBy {
		take, writes, calls := takeName(kind), 0, 0
		s := scenario{name: "taken", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
		s.script = []action{{take.text, func(w *world) bool { writes, calls = w.Writes, w.calls; return take.do(w) }}, lasting(5 * time.Minute), isHeld, isOpenOnce}
		for _, order := range names(orders) {
			in, allCalls := func(w *world) { w.order = orders[order] }, 0
			allWrites := s.run(t, func(w *world) {
				in(w)
				w.disturb = func(w *world, _ *faults.Request) bool { allCalls = w.calls; return false }
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

// Nodes use a lost block whose ClusterCIDR is being deleted, and another has its name, and perhaps its addresses: it is asked for once.
func TestALostBlockOfWhatIsDeleted(t *testing.T) {
	few := action{"were few made", func(w *world) bool {
		made := map[types.UID]bool{}
		for _, c := range w.api.Changes(faults.Allocations, 0) {
			made[c.Object.GetUID()] = true
		}
		if len(made) > 4 { // the block, what has its name, what has its addresses, what is to replace it
			w.Wrongf("%d IPAllocations were made", len(made))
		}
		return true
	}}
	for name, take := range map[string]action{"given on": {"take the name, give on", func(w *world) bool {
		return takeName(v1alpha1.NodesAllocation).do(w) && giveOn(w)
	}}, "free": takeName(v1alpha1.NodesAllocation)} {
		t.Run(name, func(t *testing.T) {
			scenario{
				name: "closing", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
				script: []action{remove(faults.ClusterCIDRs, "c"), take, lasting(time.Minute), few, remove(faults.Nodes, "a")}, served: -1,
			}.runInOrders(t)
		})
	}
}

// What asks for a lost block's addresses is refused, as another has them, and is deleted; then the other is gone.
func TestARequestForALostBlockIsDeleted(t *testing.T) {
	scenario{
		name: "deleted request", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
		script: []action{forceAndGiveOn, lasting(time.Minute),
			removeBlock("prod-pods-4-1"), lasting(time.Minute), otherGone,
			lasting(time.Minute), isHeld, isOpenOnce}, served: -1,
	}.runInOrders(t)
}

// A lost block was given on, and the ConfigMap is lost too: what asks for it stays, and gets it when the other is gone.
func TestARequestOutlivesTheConfigMap(t *testing.T) {
	scenario{
		name: "lost twice", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")},
		script: []action{forceAndGiveOn, lasting(time.Minute),
			loseFence, add(node("b")), lasting(5 * time.Minute), otherGone,
			lasting(time.Minute), isHeld, isOpenOnce}, served: -1,
	}.runInOrders(t)
}

// Two ClusterCIDRs of a Cluster ask for blocks in the same turn: each has one of its own name, and no more than that.
func TestTwoClusterCIDRsAskAtOnce(t *testing.T) {
	one, two := forSize(fromPool("c"), "small"), forSize(fromPool("d"), "big")
	each := action{"has each one block", func(w *world) bool {
		of := map[string]int{}
		for _, b := range w.blocks() {
			of[b.For]++
		}
		if len(of) != 2 || of["c"] != 1 || of["d"] != 1 {
			w.Wrongf("the blocks of each ClusterCIDR are %v", of)
		}
		return true
	}}
	scenario{
		name: "two", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), one, two, sized("s", "small"), sized("b", "big")},
		script: []action{each, allServed}, served: 2,
	}.runInOrders(t)
}

// isOpenOnce checks that the first block is open, and once.
var isOpenOnce = action{"is the block open", func(w *world) bool {
	var open []fence.Open
	for _, on := range w.state.Open {
		if on.For != "" && on.CIDRs[0].String() == threeBlocks[0] {
			open = append(open, on)
		}
	}
	if len(open) != 1 || open[0].Draining {
		w.Wrongf("%s is open as %+v", threeBlocks[0], open)
	}
	return true
}}

// A Node does not wait for a block that may never have anything: another one comes.
func TestAnotherBlockComes(t *testing.T) {
	share := action{"it shares addresses", func(w *world) bool {
		return w.api.EditStatus(blockRef("prod-pods-4-1"), func(o client.Object) {
			s := &o.(*v1alpha1.IPAllocation).Status
			s.StartAddress, s.EndAddress = "10.9.0.0", "10.9.1.255"
			s.Conditions = []metav1.Condition{
				{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason},
				{Type: v1alpha1.OverlapCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.SharedRangeReason},
			}
		}) == nil
	}}
	for name, script := range map[string][]action{
		"for one whose addresses another has since a restore": {add(node("a")), add(node("b")), allServed},
		"for one that shares addresses":                       {share, add(node("a")), add(node("b")), allServed},
	} {
		t.Run(name, func(t *testing.T) {
			scenario{
				name: "another", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), blockOfProd("10.9.0.0-10.9.1.255")},
				script: script, served: 2,
			}.runInOrders(t)
		})
	}
}

// Where no other block can come, a Node takes the next ClusterCIDR that is for it.
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
			script: []action{lasting(2 * time.Minute), allServed}, served: 1,
		}.run(t, refuse("create"))
	})
}

// A block that cannot be given back keeps nobody from getting one.
func TestAnErrandThatFailsHoldsUpNoOther(t *testing.T) {
	scenario{
		name: "held up", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), forSize(fromPool("a"), "small"), forSize(fromPool("c"), "big"), sized("s", "small")},
		script: []action{remove(faults.Nodes, "s"), lasting(2 * time.Minute), add(sized("b", "big")), lasting(2 * time.Minute), allServed}, served: 1,
	}.run(t, refuse("delete"))
}

// A ClusterCIDR that was made again, of another pool, gives nothing of the blocks of the one before.
func TestBlocksOfAnotherPool(t *testing.T) {
	again := fromPool("c")
	again.Spec.IPv4Pool.Name = "others"
	s := scenario{name: "again", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: 2}
	s.script = []action{{"force c, c again, Node b", func(w *world) bool {
		_ = w.api.Delete(ref(faults.ClusterCIDRs, "c"), true)
		return w.api.Create(again) == nil && w.api.Create(node("b")) == nil
	}}, {"look", func(w *world) bool {
		for _, n := range w.nodes() {
			if n.Name == "b" && overlap(prefixes(n.Spec.PodCIDRs), prefixes(threeBlocks[:1])) {
				w.Wrongf("b has %v of a block of another pool", n.Spec.PodCIDRs)
			}
		}
		return true
	}}}
	s.run(t, func(*world) {})
}

// Who can write the ConfigMap of the workload cluster cannot ask the pool for more than the Cluster may have.
func TestAForgedBlockIsNotAskedFor(t *testing.T) {
	forged := fence.Open{Kind: v1alpha1.IPAllocationKind, Name: "prod-pods-4-99", UID: "u", For: "c", Draining: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	s := scenario{name: "forged", fleet: true, pool: threeBlocks, before: []client.Object{clusterProd(), fromPool("c"), node("a")}, served: -1}
	s.script = []action{{"forge", func(w *world) bool {
		return w.api.Edit(fenceRef, func(c client.Object) {
			var state fence.State
			data := c.(*corev1.ConfigMap).Data
			_ = json.Unmarshal([]byte(data["state"]), &state)
			state.Open = append(state.Open, forged)
			raw, _ := json.Marshal(state)
			data["state"] = string(raw)
		}) == nil
	}}, add(node("b")), add(node("x")), {"look", func(w *world) bool {
		for _, o := range w.api.List(faults.Allocations) {
			if bits := *o.(*v1alpha1.IPAllocation).Spec.PrefixLength; bits != 23 {
				w.Wrongf("a block of /%d is asked for", bits)
			}
		}
		return true
	}}}
	s.run(t, func(w *world) { w.order = orders["lazy"] })
}

// Who deletes the ConfigMap is told what comes of it, once: kubectl waits for the finalizer, and says nothing.
func TestADeletedConfigMapIsSaid(t *testing.T) {
	s := scenario{name: "deleted", before: []client.Object{clusterCIDR("c", "10.0.0.0/22", 8), node("a")}, served: 3}
	s.script = []action{deleteFence, add(node("b")), add(node("x")), {"was it said", func(w *world) bool {
		said := slices.DeleteFunc(slices.Clone(w.events), func(text string) bool { return !strings.HasPrefix(text, "*v1.ConfigMap "+nodeipam.FenceDeleted) })
		if len(said) != 1 {
			w.Wrongf("of the ConfigMap is said %q", said)
		}
		return true
	}}}
	s.run(t, func(*world) {})
}
