package allocator_test

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of pools beside the first one, of the same network unless they set another.

const neighbour = "neighbour"

func makeNeighbour(addresses string, change ...func(*v1alpha1.NetworkPoolSpec)) action {
	return sim.NewAttempt("add pool "+neighbour+" of "+addresses, func(w *world) bool {
		return w.api.Create(&v1alpha1.NetworkPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: neighbour}, Spec: Pool(addresses, change...),
		}) == nil
	})
}

// addTo adds a claim of another pool than the first one.
func addTo(poolName, name string) action {
	return sim.NewAttempt("add claim "+name+" of pool "+poolName, func(w *world) bool {
		c := claim(name)
		c.Spec.PoolRef.Name = poolName
		return w.api.Create(c) == nil
	})
}

// edit changes the spec of a pool.
func edit(poolName, description string, change func(*v1alpha1.NetworkPoolSpec)) action {
	return sim.NewAttempt("pool "+poolName+" has "+description, func(w *world) bool {
		return faults.EditObject(w.api, ref(faults.Pools, poolName), func(o *v1alpha1.NetworkPool) { change(&o.Spec) }) == nil
	})
}

func ofNetwork(name string) func(*v1alpha1.NetworkPoolSpec) {
	return func(s *v1alpha1.NetworkPoolSpec) { s.Network = name }
}

func ofAddresses(addresses string) func(*v1alpha1.NetworkPoolSpec) {
	return func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = []string{addresses} }
}

// reservedVIP reserves an address for the claim vip alone.
func reservedVIP(s *v1alpha1.NetworkPoolSpec) {
	s.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.1"}}
	vipAt(1)(s)
}

func reservedVIP5(s *v1alpha1.NetworkPoolSpec) {
	s.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.5"}}
	vipAt(5)(s)
}

var neighbours = []scenario{
	{
		// An address that the younger pool has in use is not granted again until it is free.
		name: "elder widened", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 6, ordered: true, claims: []string{"a"},
		script: []action{
			makeNeighbour("10.0.0.3-10.0.0.6"), addTo(neighbour, "y"), addTo(neighbour, "z"), resize("10.0.0.1-10.0.0.6"),
			add("b"), add("c"), add("d"), add("e"), remove("y"),
		},
		want: map[string]string{"z": "10.0.0.4"},
	},
	{
		// The younger pool is moved to other addresses, as the condition Overlap suggests: the older one is reconciled
		// before it.
		name: "elder widened, younger narrowed", spec: Pool("10.0.0.1-10.0.0.1"), capacity: 5, ordered: true, claims: []string{"a"},
		script: []action{
			makePlain("third", "10.0.0.2-10.0.0.4"), addTo("third", "y"), addTo("third", "z"), resize("10.0.0.1-10.0.0.4"),
			add("b"), add("c"), edit("third", "10.0.0.9", ofAddresses("10.0.0.9")), addTo("third", "x"), remove("z"),
		},
		want: map[string]string{"y": "10.0.0.2", "x": "10.0.0.9"},
	},
	{
		// Two networks that turn out to be one.
		name: "network renamed", spec: Pool("10.0.0.1-10.0.0.3", ofNetwork("x")), capacity: 3, ordered: true, claims: []string{"a"},
		script: []action{
			makeNeighbour("10.0.0.1-10.0.0.3"), addTo(neighbour, "y"), addTo(neighbour, "z"), edit(poolName, "the other's network", ofNetwork("")),
			add("b"), addTo(neighbour, "x"), remove("z"),
		},
		want: map[string]string{"a": "10.0.0.1", "y": "10.0.0.1"},
	},
	{
		// The younger pool waits until the older one is gone, whatever restarts meanwhile.
		name: "elder deleted", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 1, ordered: true, claims: []string{"a"},
		script: []action{makeNeighbour("10.0.0.1-10.0.0.2"), dropPool, addTo(neighbour, "y"), remove("a")},
	},
	{
		// The claims of the older pool keep what its spec no longer has.
		name: "elder narrowed", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 4, ordered: true, claims: []string{"a", "b"},
		script: []action{
			makeNeighbour("10.0.0.1-10.0.0.4"), addTo(neighbour, "y"), resize("10.0.0.9"), addTo(neighbour, "z"), addTo(neighbour, "x"), remove("a"),
		},
		want: map[string]string{"b": "10.0.0.2", "y": "10.0.0.3"},
	},
	{
		// The manager that serves the younger pool has not seen what another manager granted from the older one before
		// that was narrowed.
		name: "elder narrowed unseen", spec: Pool("10.0.0.1-10.0.0.1"), capacity: 2, ordered: true,
		script: []action{
			makeNeighbour("10.0.0.1-10.0.0.2"), addTo(neighbour, "y"), addTo(neighbour, "z"), another,
			stallWatches(faults.Claims, faults.Addresses), request("b", "10.0.0.1"),
			resize("10.0.0.9"), resumeWatches,
		},
	},
	{
		// As above, and it takes over from the manager that has seen all that.
		name: "elder narrowed before a takeover", spec: Pool("10.0.0.1-10.0.0.1"), capacity: 2, ordered: true,
		script: []action{
			makeNeighbour("10.0.0.1-10.0.0.2"), addTo(neighbour, "y"), addTo(neighbour, "z"), another,
			stallWatches(faults.Claims, faults.Addresses, faults.Pools),
			request("b", "10.0.0.1"), resize("10.0.0.9"), resumePoolWatch, killOtherManagers, resumeWatches,
		},
	},
	{
		name: "one second", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 2, claims: []string{"a", "b"},
		before: []action{makeNeighbour("10.0.0.1-10.0.0.4"), addTo(neighbour, "y"), addTo(neighbour, "z")},
	},
	{
		name: "overlap allowed", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 2, ordered: true, claims: []string{"a"},
		script: []action{makeNeighbour("10.0.0.1-10.0.0.2", func(s *v1alpha1.NetworkPoolSpec) { s.AllowOverlap = true }), addTo(neighbour, "y")},
	},
	{
		// A pre-allocation may be reserved, and is granted all the same, but not while a claim of another pool keeps
		// its address.
		name: "elder narrowed before a reserved pin", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 1, claims: []string{"a"},
		script: []action{resize("10.0.0.9"), makeNeighbour("10.0.0.1-10.0.0.2", reservedVIP), addTo(neighbour, "vip"), remove("a")},
		want:   map[string]string{"vip": "10.0.0.1"},
	},
	{
		name: "elder narrowed under a reserved pin", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 1, claims: []string{"a"},
		script: []action{makeNeighbour("10.0.0.1-10.0.0.2", reservedVIP), resize("10.0.0.9"), addTo(neighbour, "vip"), remove("a")},
		want:   map[string]string{"vip": "10.0.0.1"},
	},
	{
		name: "elder narrowed under a pin outside tenantAllocation", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 1, claims: []string{"a"},
		script: []action{
			makeNeighbour("10.0.0.1-10.0.0.4", vipAt(1), func(s *v1alpha1.NetworkPoolSpec) {
				s.TenantAllocation = &v1alpha1.TenantAllocation{Start: "10.0.0.3", End: "10.0.0.4"}
			}),
			resize("10.0.0.9"), addTo(neighbour, "vip"), remove("a"),
		},
		want: map[string]string{"vip": "10.0.0.1"},
	},
	{
		// Its grants in flight count for a manager that reconciles the younger pool first, too.
		name: "elder narrowed and deleted", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 1, ordered: true,
		script: []action{
			makeNeighbour("10.0.0.1-10.0.0.4"), add("x"), resize("10.0.0.9"), dropPool, addTo(neighbour, "z"), remove("x"),
		},
	},
	{
		// The pool in the middle yields to one, and waits for the other.
		name: "three pools", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 5, ordered: true, claims: []string{"a"},
		script: []action{
			makeNeighbour("10.0.0.5-10.0.0.8", reservedVIP5), makePlain("third", "10.0.0.7-10.0.0.9"), addTo("third", "x"),
			edit(neighbour, "10.0.0.3-10.0.0.6", ofAddresses("10.0.0.3-10.0.0.6")), addTo(neighbour, "y"), addTo("third", "z"),
			resize("10.0.0.1-10.0.0.2"), addTo(neighbour, "vip"),
		},
	},
	{
		// A block of the younger pool counts like an address.
		name: "elder widened over a block", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 3, ordered: true, claims: []string{"a"},
		script: []action{
			makeNeighbour("10.0.0.3-10.0.0.8"), allocate("x", 4, func(o *v1alpha1.IPAllocation) { o.Spec.PoolRef.Name = neighbour }),
			resize("10.0.0.1-10.0.0.8"), add("b"), add("c"), allocate("y", 2), deallocate("x"),
		},
	},
	{
		// The block of the younger pool reaches over addresses that the older one leaves out.
		name: "elder widened around the middle of a block", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 6, ordered: true, claims: []string{"a"},
		script: []action{
			makeNeighbour("10.0.0.3-10.0.0.8"), allocate("x", 4, func(o *v1alpha1.IPAllocation) { o.Spec.PoolRef.Name = neighbour }),
			edit(poolName, "two ranges", func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = []string{"10.0.0.1-10.0.0.4", "10.0.0.6-10.0.0.8"} }),
			add("b"), add("c"), add("d"), add("e"), deallocate("x"),
		},
	},
}

func init() { scenarios = slices.Concat(scenarios, neighbours) } //nolint:gochecknoinits // one list, in three files
