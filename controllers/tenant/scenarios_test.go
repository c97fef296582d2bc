package tenant

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

const namespace = "ns"

// machines is the finalizer of Cluster API, which keeps a Cluster while it has Machines.
const machines = "cluster.cluster.x-k8s.io"

var clusterKey = client.ObjectKey{Namespace: namespace, Name: "prod"}

// scenario is a Cluster with its ProviderConfig and pool, and the actions of a user, each done when everything is at
// rest or at a moment of its own.
type scenario struct {
	name string
	// addresses are those of the pool, empty for plenty; second are those of a second pool, which is tried after it,
	// empty if there is none.
	addresses, second string
	// initial is the initialPoolSize, increment the growthIncrement, quota the maxLoadBalancerIPs (0 means none).
	initial, increment int32
	quota              int64
	// separatePools reports whether each block has a pool of its own.
	separatePools bool
	// cilium reports whether the load balancer is Cilium; both reports whether it is MetalLB until Cilium is shown
	// something.
	cilium, both bool
	script       []action
}

// at makes an action happen when a condition holds.
func at(when func(*world) bool, a action) action {
	a.When = when
	return a
}

// later makes an action happen after a time in which nothing was written.
func later(d time.Duration, a action) action {
	a.Wait = d
	return a
}

func add(names string) action {
	return sim.NewAction("create Service "+names, func(w *world) {
		for _, name := range strings.Fields(names) {
			w.CreateObject(w.work, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
			})
		}
	})
}

func remove(names string) action {
	return sim.NewAction("delete Service "+names, func(w *world) {
		for _, name := range strings.Fields(names) {
			w.deleteObject(w.work, faults.Ref{Kind: faults.Services, Namespace: "default", Name: name})
		}
	})
}

var deleteCluster = sim.NewAction("delete the Cluster", func(w *world) {
	w.deleteObject(w.mgmt, faults.Ref{Kind: faults.Clusters, Namespace: namespace, Name: clusterKey.Name})
})

// endMachines is what Cluster API does some time after the Cluster was deleted.
var endMachines = sim.NewAction("the machines of the Cluster are gone", func(w *world) {
	w.ended = true
	_ = w.mgmt.EditObject(faults.Ref{Kind: faults.Clusters, Namespace: namespace, Name: clusterKey.Name}, func(o client.Object) {
		left := o.GetFinalizers()
		for i, f := range left {
			if f == machines {
				o.SetFinalizers(append(left[:i:i], left[i+1:]...))
			}
		}
	})
})

func deleteBlock(name string) action {
	return sim.NewAction("delete IPAllocation "+name, func(w *world) {
		w.deleteObject(w.mgmt, faults.Ref{Kind: faults.Allocations, Namespace: namespace, Name: name})
	})
}

// deleteBlocks deletes all blocks of the Cluster.
var deleteBlocks = sim.NewAction("delete the IPAllocations", func(w *world) {
	for _, a := range w.allocations() {
		w.deleteObject(w.mgmt, faults.RefForObject(a))
	}
})

// chooseCilium makes the ProviderConfig name Cilium.
var chooseCilium = sim.NewAction("the ProviderConfig names Cilium", func(w *world) {
	_ = faults.EditObject(w.mgmt, faults.Ref{Kind: faults.ProviderConfigs, Namespace: namespace, Name: "elastic"}, func(c *v1alpha1.ProviderConfig) {
		c.Spec.Network.LoadBalancer.Type = v1alpha1.CiliumLoadBalancer
	})
})

func resize(addresses string) action {
	return sim.NewAction("the pool has "+addresses, func(w *world) {
		_ = faults.EditObject(w.mgmt, faults.Ref{Kind: faults.Pools, Namespace: namespace, Name: "pool"}, func(p *v1alpha1.NetworkPool) {
			p.Spec.Addresses = ranges(addresses)
		})
	})
}

// closePool makes a pool grant nothing any more, for a reason of its Ready condition; openPool ends that. A deleted
// pool goes when nothing of it is in use.
func closePool(name, reason string) action {
	return sim.NewAction("pool "+name+" is closed: "+reason, func(w *world) {
		ref := faults.Ref{Kind: faults.Pools, Namespace: namespace, Name: name}
		if reason == v1alpha1.DeletingReason {
			_ = w.mgmt.EditObject(ref, func(o client.Object) { o.SetFinalizers([]string{v1alpha1.PoolFinalizer}) })
			w.deleteObject(w.mgmt, ref)
			return
		}
		_ = w.mgmt.EditObject(ref, func(o client.Object) { o.SetAnnotations(map[string]string{closedAnnotation: reason}) })
	})
}

func openPool(name string) action {
	return sim.NewAction("pool "+name+" grants again", func(w *world) {
		_ = w.mgmt.EditObject(faults.Ref{Kind: faults.Pools, Namespace: namespace, Name: name}, func(o client.Object) { o.SetAnnotations(nil) })
	})
}

// takeLabelOff makes the Cluster name no ProviderConfig any more: it keeps what it has, and gets nothing more.
var takeLabelOff = sim.NewAction("take the label off the Cluster", func(w *world) {
	_ = w.mgmt.EditObject(faults.Ref{Kind: faults.Clusters, Namespace: namespace, Name: clusterKey.Name}, func(o client.Object) { o.SetLabels(nil) })
})

// setAvoidBuggyIPs is what a user does whose Services must not have such addresses.
var setAvoidBuggyIPs = sim.NewAction("a person sets avoidBuggyIPs", func(w *world) {
	_ = faults.EditObject(w.work, faults.Ref{Kind: faults.MetalLBPools, Namespace: metallb.Namespace, Name: metallb.DefaultPool}, func(p *metallbv1beta1.IPAddressPool) {
		p.Spec.AvoidBuggyIPs = true
	})
})

var (
	outage  = sim.NewAction("the workload cluster does not answer", (*world).outage)
	back    = sim.NewAction("the workload cluster answers again", (*world).up)
	freeze  = sim.NewAction("the load balancer is frozen", func(w *world) { w.lb.currentMood().frozen = true })
	thaw    = sim.NewAction("the load balancer goes on", func(w *world) { w.lb.currentMood().frozen = false })
	another = sim.NewAction("another manager starts", (*world).start)
	restart = sim.NewAction("the manager restarts", func(w *world) { w.Crash(w.Managers[len(w.Managers)-1]) })
)

// These functions are moments at which an action happens.

// isBlockLeaving reports whether a block is being taken away while a pool still shows it, or does not any more.
func isBlockLeaving(shown bool) func(*world) bool {
	return func(w *world) bool {
		for _, a := range w.allocations() {
			r, ok := allocatedRange(a)
			if !ok || !tenancy.IsDrainingOrDeleting(a) {
				continue
			}
			found := false
			for _, ranges := range w.shownRanges() {
				found = found || slices.Contains(ranges, r.String())
			}
			if found == shown {
				return true
			}
		}
		return false
	}
}

// hasShownBlocks reports whether the load balancer is shown n blocks.
func hasShownBlocks(n int) func(*world) bool {
	return func(w *world) bool {
		return slices.ContainsFunc(w.shownRanges(), func(ranges []string) bool { return len(ranges) == n })
	}
}

// hasPendingBlock reports whether a block was requested, and is not granted.
func hasPendingBlock(w *world) bool {
	for _, a := range w.allocations() {
		if _, ok := allocatedRange(a); !ok && tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole {
			return true
		}
	}
	return false
}

// hasUnshownGrant reports whether a block was granted on demand, and is not shown.
func hasUnshownGrant(w *world) bool {
	for _, a := range w.allocations() {
		if _, ok := allocatedRange(a); ok && tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole && !tenancy.IsProjected(a) {
			return true
		}
	}
	return false
}

var scenarios = []scenario{
	{name: "grow", initial: 1, increment: 1, script: []action{add("a"), add("b"), add("c")}},
	{name: "grow at once", initial: 1, increment: 2, script: []action{add("a b c d e")}},
	{name: "from nothing", increment: 1, script: []action{add("a"), remove("a"), later(2*grace, add("b"))}},
	{name: "shrink", initial: 1, increment: 1, script: []action{add("a b"), add("c"), remove("b c")}},
	{name: "back in time", initial: 1, increment: 1, script: []action{add("a"), add("b"), remove("b"), at(isBlockLeaving(true), add("c"))}},
	{name: "back late", initial: 1, increment: 1, script: []action{add("a"), add("b"), remove("b"), at(isBlockLeaving(false), add("c"))}},
	{name: "more while draining", initial: 1, increment: 1, script: []action{add("a"), add("b"), remove("b"), at(isBlockLeaving(false), add("c d"))}},
	{name: "room beside what drains", increment: 2, script: []action{add("a b"), add("c"), remove("a b"), at(isBlockLeaving(true), add("d")), remove("c d")}},
	{name: "silent while draining", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), remove("b"), at(isBlockLeaving(true), outage), later(4*time.Minute, back), later(4*time.Minute, add("c")),
	}},
	{name: "silent while growing", initial: 1, increment: 1, script: []action{add("a"), add("b"), at(hasUnshownGrant, outage), later(4*time.Minute, back)}},
	{name: "ends growing", initial: 1, increment: 1, script: []action{add("a"), add("b"), at(hasPendingBlock, deleteCluster), endMachines}},
	{name: "ends draining", initial: 1, increment: 1, script: []action{add("a"), add("b"), remove("b"), at(isBlockLeaving(false), deleteCluster), endMachines}},
	{name: "quota", initial: 1, increment: 2, quota: 3, script: []action{add("a b c d"), remove("b"), add("e"), remove("a c d")}},
	{name: "exhausted", addresses: "10.0.0.1 10.0.0.3-10.0.0.4", initial: 1, increment: 1, script: []action{
		add("a b c d"), resize("10.0.0.1 10.0.0.3-10.0.0.4 10.0.0.6"), remove("a b c d"),
	}},
	{name: "deleted while it is asked", second: "10.1.0.1-10.1.0.9", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), at(hasPendingBlock, closePool("pool", v1alpha1.DeletingReason)), add("c"), remove("b c"),
	}},
	{name: "overlaps while it is asked", addresses: "10.0.0.1-10.0.0.4", second: "10.1.0.1", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), at(hasPendingBlock, closePool("pool", v1alpha1.OverlapReason)), add("c"), later(2*grace, openPool("pool")), remove("b c"),
	}},
	{name: "label taken off while it lacks room", addresses: "10.0.0.1 10.0.0.3", initial: 1, increment: 1, script: []action{
		add("a b c"), takeLabelOff, remove("b"),
	}},
	{name: "label taken off while it asks", initial: 1, increment: 1, script: []action{add("a"), add("b"), at(hasPendingBlock, takeLabelOff), add("c")}},
	{name: "label taken off while it asks for its first", addresses: "10.0.0.1", increment: 2, script: []action{
		add("a"), at(hasPendingBlock, takeLabelOff),
	}},
	{name: "apart", initial: 1, increment: 1, separatePools: true, script: []action{add("a"), add("b"), remove("b")}},
	{name: "back apart", initial: 1, increment: 1, separatePools: true, script: []action{add("a"), add("b"), remove("b"), at(isBlockLeaving(true), add("c"))}},
	// Nothing shows that MetalLB has applied the deletion of a pool (ADR 7): this is for Cilium alone.
	{name: "Cilium apart while frozen", initial: 1, increment: 1, separatePools: true, cilium: true, script: []action{
		add("a"), add("b"), remove("b"), at(isBlockLeaving(false), freeze), later(2*time.Minute, thaw),
	}},
	{name: "deleted block", initial: 1, increment: 1, script: []action{add("a"), add("b"), deleteBlock("ns-prod-lb-1")}},
	{name: "deleted while frozen", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), freeze, deleteBlock("ns-prod-lb-1"), later(2*time.Minute, thaw),
	}},
	{name: "deleted while the growth is not counted", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), freeze, add("c"), at(hasShownBlocks(3), remove("b")), at(hasShownBlocks(3), deleteBlock("ns-prod-lb-1")), later(2*time.Minute, thaw),
	}},
	{name: "deleted before it is taken", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), at(hasUnshownGrant, freeze), at(hasShownBlocks(2), remove("b")), at(hasShownBlocks(2), deleteBlock("ns-prod-lb-1")), later(2*time.Minute, thaw),
	}},
	{name: "leaves out 0 and 255", addresses: "10.0.0.254-10.0.1.20", initial: 2, increment: 1, script: []action{
		add("a"), setAvoidBuggyIPs, add("b"), add("c"), remove("b c"), add("d"), remove("d"),
	}},
	{name: "deleted while it leaves out 0 and 255", addresses: "10.0.0.253-10.0.1.20", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), setAvoidBuggyIPs, remove("b"), freeze, deleteBlock("ns-prod-lb-1"), later(2*time.Minute, thaw), add("c"),
	}},
	{name: "frozen MetalLB", initial: 1, increment: 1, script: []action{
		add("a"), add("b"), remove("b"), at(isBlockLeaving(true), freeze), later(30*time.Second, add("c")), later(30*time.Second, thaw),
	}},
	{name: "moves to Cilium", initial: 2, increment: 1, both: true, script: []action{add("a b"), chooseCilium, deleteBlocks, add("c"), remove("c")}},
	{name: "moves to Cilium while MetalLB is frozen", initial: 1, increment: 1, both: true, script: []action{
		add("a"), chooseCilium, freeze, deleteBlocks, later(2*time.Minute, thaw),
	}},
	{name: "takeover", initial: 1, increment: 1, script: []action{add("a"), add("b"), at(hasUnshownGrant, another), remove("b"), at(isBlockLeaving(false), another), add("c")}},
	{name: "restarts", initial: 1, increment: 1, script: []action{add("a"), add("b"), at(hasPendingBlock, restart), at(hasUnshownGrant, restart), remove("b"), at(isBlockLeaving(true), restart), at(isBlockLeaving(false), restart)}},
}

// init adds the scenarios that are also run with Cilium, where it acknowledges in another way.
func init() {
	for _, s := range slices.Clone(scenarios) {
		if name, ok := withCilium[s.name]; ok {
			s.name, s.cilium = name, true
			scenarios = append(scenarios, s)
		}
	}
}

var withCilium = map[string]string{
	"grow": "Cilium grows", "from nothing": "Cilium from nothing", "shrink": "Cilium shrinks", "back in time": "Cilium back in time",
	"back late": "Cilium back late", "more while draining": "Cilium more while draining", "silent while draining": "Cilium silent while draining",
	"apart": "Cilium apart", "back apart": "Cilium back apart", "deleted block": "Cilium deleted block", "deleted while frozen": "Cilium deleted while frozen",
	"deleted while the growth is not counted": "Cilium deleted while the growth is not taken", "deleted before it is taken": "Cilium deleted before it is taken",
	"frozen MetalLB": "frozen Cilium", "takeover": "Cilium takeover", "restarts": "Cilium restarts",
}

// ranges formats addresses as ranges.
func ranges(text string) []string {
	out := strings.Fields(text)
	for i, r := range out {
		if !strings.Contains(r, "-") {
			out[i] = r + "-" + r
		}
	}
	return out
}

// balancer returns the load balancer of the workload cluster.
func (s scenario) balancer() fakeBalancer {
	switch {
	case s.cilium:
		return &fakeCilium{}
	case s.both:
		return &fakeMigration{}
	}
	return &fakeMetalLB{}
}

// build creates the objects that exist before a manager starts.
func (s scenario) build(w *world) {
	ns := lookup.NamespaceMetadata()
	ns.Name = namespace
	w.CreateObject(w.mgmt, ns)
	w.CreateObject(w.mgmt, framework.MakePool("pool").Namespace(namespace).Addresses(ranges(cmp.Or(s.addresses, "10.0.0.1-10.0.0.40"))...).Obj())
	refs := []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Name: "pool"}}}
	if s.second != "" {
		w.CreateObject(w.mgmt, framework.MakePool("second").Namespace(namespace).Addresses(ranges(s.second)...).Obj())
		refs = append(refs, v1alpha1.ProviderPoolReference{PoolReference: v1alpha1.PoolReference{Name: "second"}})
	}
	lb := &v1alpha1.LoadBalancerPool{AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: &s.initial, GrowthIncrement: &s.increment}
	if s.cilium {
		lb.Type = v1alpha1.CiliumLoadBalancer
	}
	if s.separatePools {
		lb.Projection = v1alpha1.PoolPerAllocationProjection
	}
	network := &v1alpha1.ProviderNetwork{Mode: v1alpha1.IPAMMode, LoadBalancer: lb, PoolRefs: refs}
	if s.quota > 0 {
		quota := int32(s.quota)
		network.QuotaPerTenant = &v1alpha1.TenantQuota{MaxLoadBalancerIPs: &quota}
	}
	w.CreateObject(w.mgmt, &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "elastic"}, Spec: v1alpha1.ProviderConfigSpec{Network: network}})
	w.CreateObject(w.mgmt, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: clusterKey.Name, Finalizers: []string{machines}, Labels: map[string]string{v1alpha1.ProviderConfigLabel: "elastic"},
	}})
	w.CreateObject(w.work, &metallbv1beta1.ConfigurationState{ObjectMeta: metav1.ObjectMeta{Namespace: metallb.Namespace, Name: "controller"}})
}

func (w *world) deleteObject(at *faults.Server, ref faults.Ref) {
	if err := client.IgnoreNotFound(at.Delete(ref, false)); err != nil {
		w.T.Fatal(err)
	}
}
