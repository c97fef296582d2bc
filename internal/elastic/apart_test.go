package elastic

import "testing"

// TestSeparatePools checks that, with a pool for each block (projection PoolPerAllocation), a cluster grows by a
// block of one family.
func TestSeparatePools(t *testing.T) {
	next := Pool{AutoAssign: true, ReceivesGrowth: true, PoolPerAllocation: true}
	four, six := pool("lb-1", "10.0.0.1"), pool("lb-2", "2001:db8::1")
	leaving := pool("a", "10.0.0.9")
	leaving.Draining = true
	checkAll(t, map[string]assessment{
		"One":     {reason: "a pool that does not exist yet", pools: []Pool{next}, services: []Service{svc("a"), svc("b")}, want: "a=Lacks b=Lacks", shortfall: [2]int64{2}},
		"Named":   {reason: "its name is not known before", pools: []Pool{next}, services: []Service{svc("a", named("lb-3"))}, want: "a=Stuck"},
		"Prefer":  {reason: "one address, of the first family", pools: []Pool{next}, services: []Service{svc("a", dual(PreferDualStack))}, want: "a=Lacks", shortfall: [2]int64{1}},
		"Prefer6": {reason: "of the family that there is more of", pools: []Pool{next}, grows: "6", services: []Service{svc("a", dual(PreferDualStack))}, want: "a=Lacks", shortfall: [2]int64{0, 1}},
		"Require": {reason: "both families are never in one pool: nothing is asked for, however many blocks there are", pools: []Pool{four, six, next}, services: []Service{svc("a", dual(RequireDualStack))}, want: "a=Stuck", used: "-"},
		"Leaving": {reason: "what is about to go is used by who finds nothing else", pools: []Pool{leaving, four, next}, services: []Service{svc("a")}, want: "a=Fits", used: "10.0.0.1"},
		"Resumed": {reason: "then it is", pools: []Pool{leaving, four, next}, services: []Service{svc("a"), svc("b")}, want: "a=Fits b=Fits", used: "10.0.0.1 10.0.0.9"},
	})
}
