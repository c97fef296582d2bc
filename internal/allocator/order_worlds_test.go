package allocator_test

import (
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// Scenarios of pools that grant what was released longest ago. A restart forgets a release that no commit has on record
// yet, so the result is known only where the managers had the time to commit.

// byRelease lets a pool grant what was released longest ago.
func byRelease(s *v1alpha1.NetworkPoolSpec) { s.AllocationOrder = v1alpha1.LeastRecentlyUsedOrder }

var orderScenarios = []scenario{
	{
		// U50, U51: addresses are granted in the order of their release, also after a restart.
		name: "by release", spec: Pool("10.0.0.1-10.0.0.4", byRelease), prompt: true, ordered: true, starts: 2, capacity: 4, claims: []string{"a", "b"},
		script: []action{remove("b"), add("c"), remove("a"), add("d"), another, add("e"), add("f"), remove("d"), remove("c"), add("g"), add("h")},
		want:   map[string]string{"e": "10.0.0.2", "f": "10.0.0.1", "g": "10.0.0.4", "h": "10.0.0.3"},
	},
	{
		name: "by release, after a rest", spec: Pool("10.0.0.1-10.0.0.3", byRelease, grace(30)), ordered: true, capacity: 3,
		claims: []string{"a", "b"}, script: []action{remove("b"), remove("a"), add("c"), add("d"), add("e"), remove("c"), add("f")},
	},
	{
		name: "by release, of prefixes", spec: v1alpha1.NetworkPoolSpec{
			CIDR: "10.0.0.0/26", AllocationPrefixLength: new(int32(28)), AllocationOrder: v1alpha1.LeastRecentlyUsedOrder,
		}, ordered: true, capacity: 4,
		claims: []string{"a", "b"}, script: []action{remove("a"), add("c"), forceDelete(faults.Claims, "b"), add("d"), add("e"), add("f")},
	},
	{
		name: "by release, beside blocks", spec: Pool("10.0.0.1-10.0.0.8", byRelease, reserve), ordered: true, capacity: 4,
		claims: []string{"a", "b"}, script: []action{allocate("x", 4), remove("a"), add("c"), resize("10.0.0.1-10.0.0.9"), remove("b"), add("d"), add("e")},
	},
}

func init() { scenarios = slices.Concat(scenarios, orderScenarios) } //nolint:gochecknoinits // one list, in several files
