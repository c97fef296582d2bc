package allocator_test

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of pools with subnets that serve failure domains. The Machine of a claim has its name.

// machineOf finds the Machine that owns a claim, unless lookups hang.
func (w *world) machineOf(ctx context.Context, namespace string, owners []metav1.OwnerReference) (grants.Machine, error) {
	if w.hangs.Load() {
		<-ctx.Done()
		return grants.Machine{}, ctx.Err()
	}
	name := types.NamespacedName{Namespace: namespace, Name: owners[0].Name}
	domain, _ := w.domains.Load(name.Name)
	text, _ := domain.(string)
	return grants.Machine{Name: name, FailureDomain: text}, nil
}

// addIn adds a claim for a Machine in a failure domain.
func addIn(name, domain string) action {
	return sim.NewAttempt("add claim "+name+" of a Machine in "+domain, func(w *world) bool {
		w.domains.Store(name, domain)
		c := claim(name)
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "infrastructure.cluster.x-k8s.io/v1", Kind: "VM", Name: name, UID: types.UID("vm-" + name)}}
		return w.api.Create(c) == nil
	})
}

// moveMachine moves a Machine to another failure domain.
func moveMachine(name, domain string) action {
	return sim.NewAttempt("Machine "+name+" is in "+domain, func(w *world) bool {
		w.domains.Store(name, domain)
		return true
	})
}

// setServedDomains makes the second subnet serve other failure domains.
func setServedDomains(domains ...string) action {
	return sim.NewAttempt("the second subnet serves others", func(w *world) bool {
		return faults.EditObject(w.api, ref(faults.Pools, poolName), func(o *v1alpha1.NetworkPool) {
			o.Spec.Subnets[1].FailureDomains = domains
		}) == nil
	})
}

var twoZones = v1alpha1.NetworkPoolSpec{
	Addresses: []string{"10.0.0.1-10.0.0.2", "10.0.1.1-10.0.1.2", "10.0.2.1-10.0.2.2"},
	Subnets: []v1alpha1.Subnet{
		{CIDR: "10.0.0.0/24"}, {CIDR: "10.0.1.0/24", FailureDomains: []string{"a"}}, {CIDR: "10.0.2.0/24", FailureDomains: []string{"b"}},
	},
}

var ofMachines = []scenario{
	{
		// U53, U56: a failure domain decides on the subnet, and an address stays when its Machine moves.
		name: "failure domains", spec: twoZones, prompt: true, ordered: true, capacity: 5, claims: []string{"x"},
		before: []action{addIn("a1", "a"), addIn("b1", "b")},
		script: []action{addIn("a2", "a"), moveMachine("a1", "b"), another, forceDelete(faults.Addresses, "a1"), remove("b1"), addIn("b2", "b"), addIn("b3", "b"), addIn("b4", "b")},
		want:   map[string]string{"x": "10.0.0.1", "a1": "10.0.1.1", "a2": "10.0.1.2", "b2": "10.0.2.1", "b3": "10.0.2.2"},
	},
	{
		name: "failure domains, changed", spec: twoZones, ordered: true, capacity: 2,
		before: []action{addIn("a1", "a"), addIn("c1", "c")},
		script: []action{setServedDomains("c"), addIn("a2", "a"), remove("a1"), addIn("c2", "c"), setServedDomains("a", "c"), remove("c1")},
	},
}

func init() { scenarios = slices.Concat(scenarios, ofMachines) } //nolint:gochecknoinits // one list, in several files
