package tenant

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// guarding is the finalizer of another controller.
const guarding = "example.com/guard"

// setForeignFinalizer makes the foreign finalizer keep an object, or removes it.
func setForeignFinalizer(on bool, at func(*world) *faults.Server, ref faults.Ref) action {
	text, change := "is kept by another", controllerutil.AddFinalizer
	if !on {
		text, change = "is kept no more", controllerutil.RemoveFinalizer
	}
	return sim.NewAction(ref.Name+" "+text, func(w *world) {
		_ = at(w).EditObject(ref, func(o client.Object) { change(o, guarding) }) // if it does not exist, the run shows that
	})
}

func onManagement(w *world) *faults.Server { return w.mgmt }
func onWorkload(w *world) *faults.Server   { return w.work }

func dropped(at func(*world) *faults.Server, ref faults.Ref) action {
	return sim.NewAction("delete "+ref.Name, func(w *world) { w.deleteObject(at(w), ref) })
}

// TestTenantRestsWhileAnotherKeepsSomething checks that an object that is deleted, and that a foreign finalizer keeps
// for a quarter of an hour, costs next to nothing meanwhile, whatever its kind; what the Services need is served
// nevertheless.
func TestTenantRestsWhileAnotherKeepsSomething(t *testing.T) { // B57
	t.Parallel()
	block := func(name string) faults.Ref {
		return faults.Ref{Kind: faults.Allocations, Namespace: namespace, Name: name}
	}
	grown := block("ns-prod-lb-1")
	pool := faults.Ref{Kind: faults.MetalLBPools, Namespace: metallb.Namespace, Name: metallb.DefaultPool}
	advertisement := faults.Ref{Kind: faults.L2Advertisements, Namespace: metallb.Namespace, Name: metallb.DefaultPool}
	ciliumPool := faults.Ref{Kind: faults.CiliumPools, Name: cilium.DefaultPool}
	cluster := faults.Ref{Kind: faults.Clusters, Namespace: namespace, Name: clusterKey.Name}
	config := faults.Ref{Kind: faults.ProviderConfigs, Namespace: namespace, Name: "elastic"}
	for name, c := range map[string]struct {
		scenario

		// fromNothing reports whether the Cluster has no block before a Service requests one.
		fromNothing bool
		at          func(*world) *faults.Server
		kept        faults.Ref
		// before and then are the actions of the user before the object is kept, and after.
		before, then []action
	}{
		"a block that is released": {
			at: onManagement, kept: grown, before: []action{add("a"), add("b")}, then: []action{remove("b"), later(2*grace, add("c"))},
		},
		"a block that is deleted": {
			at: onManagement, kept: grown, before: []action{add("a"), add("b")}, then: []action{deleteBlock(grown.Name)},
		},
		"a block that is asked for and deleted": {
			scenario: scenario{addresses: "10.0.0.1", second: "10.1.0.1"}, at: onManagement, kept: grown,
			before: []action{add("a"), closePool("second", "Full"), add("b")}, then: []action{deleteBlock(grown.Name)},
		},
		"a block of a Cluster that ends": {
			at: onManagement, kept: grown, before: []action{add("a"), add("b")}, then: []action{deleteCluster, endMachines},
		},
		"the Cluster": {
			at: onManagement, kept: cluster, before: []action{add("a"), add("b")}, then: []action{deleteCluster, endMachines},
		},
		"the ProviderConfig": {
			at: onManagement, kept: config, before: []action{add("a"), add("b")}, then: []action{dropped(onManagement, config), add("c")},
		},
		"the pool of MetalLB": {
			at: onWorkload, kept: pool, before: []action{add("a"), add("b")}, then: []action{dropped(onWorkload, pool), add("c"), remove("b c")},
		},
		"the pool of MetalLB, of which nothing is left": {
			fromNothing: true, at: onWorkload, kept: pool, before: []action{add("a")}, then: []action{remove("a")},
		},
		"the pool of MetalLB for a block": {
			scenario: scenario{separatePools: true}, at: onWorkload, kept: faults.Ref{Kind: faults.MetalLBPools, Namespace: metallb.Namespace, Name: grown.Name},
			before: []action{add("a"), add("b")}, then: []action{remove("b")},
		},
		"the advertisement of MetalLB": {
			at: onWorkload, kept: advertisement, before: []action{add("a"), add("b")}, then: []action{dropped(onWorkload, advertisement), add("c")},
		},
		"the pool of Cilium": {
			scenario: scenario{cilium: true}, at: onWorkload, kept: ciliumPool,
			before: []action{add("a"), add("b")}, then: []action{dropped(onWorkload, ciliumPool), add("c"), remove("b c")},
		},
		"the pool of Cilium for a block": {
			scenario: scenario{separatePools: true, cilium: true}, at: onWorkload, kept: faults.Ref{Kind: faults.CiliumPools, Name: grown.Name},
			before: []action{add("a"), add("b")}, then: []action{remove("b")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for order, of := range orders {
				t.Run(order, func(t *testing.T) {
					var runs, calls [2]int
					isKept := func(w *world) bool {
						return slices.ContainsFunc(c.at(w).List(c.kept.Kind), func(o client.Object) bool {
							return o.GetName() == c.kept.Name && !o.GetDeletionTimestamp().IsZero()
						})
					}
					counted := func(text string, after time.Duration, sign int) action {
						return later(after, sim.NewAction(text, func(w *world) {
							for i := range runs {
								runs[i] += sign * w.Managers[0].queues[i].Runs
							}
							calls[0], calls[1] = calls[0]+sign*w.Reads(), calls[1]+sign*w.Writes
							if !isKept(w) {
								w.Failf("%s is not deleted, and kept", c.kept.Name)
							}
						}))
					}
					s := c.scenario
					s.name, s.increment, s.initial = name, 1, 1
					if c.fromNothing {
						s.initial = 0
					}
					s.script = slices.Concat(c.before, []action{setForeignFinalizer(true, c.at, c.kept)}, c.then, []action{
						counted("what comes is counted", 2*grace, -1), counted("it was counted", refusalDuration, 1), setForeignFinalizer(false, c.at, c.kept),
					})
					s.run(t, func(w *world) { w.Order = of })
					for i, n := range runs {
						if n > int(refusalDuration/maxRecheckDelay) {
							t.Errorf("controller %d: %d reconciles in %v", i, n, refusalDuration)
						}
					}
					if calls[1] > 0 {
						t.Errorf("%d writes in %v", calls[1], refusalDuration)
					}
					t.Logf("%v reconciles, %d live reads, %d writes in %v", runs, calls[0], calls[1], refusalDuration)
				})
			}
		})
	}
}
