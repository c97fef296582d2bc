package elastic

import "testing"

type selectors = []func(map[string]string) bool

// TestServiceAllocationRestriction checks spec.serviceAllocation, and that a Service that growth cannot help is no
// demand (F4).
func TestServiceAllocationRestriction(t *testing.T) {
	room, none := "10.9.0.1-10.9.0.9", []string(nil)
	team, other := []string{"team"}, []string{"other"}
	blue := selectors{app("blue"), app("navy")}
	restricted := func(r Restriction) Pool { return pool("theirs", room).onlyFor(r) }
	a, b := svc("a"), svc("b", label("blue"))
	checkAll(t, map[string]assessment{
		"Namespace":       {reason: "a pool of its namespace", pools: []Pool{restricted(Restriction{Namespaces: team})}, services: []Service{a}, want: "a=Fits"},
		"OtherNamespace":  {reason: "a pool of another one", pools: []Pool{restricted(Restriction{Namespaces: other})}, services: []Service{a}, want: "a=Stuck", wantMessage: "no IPAddressPool serves it"},
		"Selector":        {reason: "one of the selectors is enough", pools: []Pool{restricted(Restriction{Selectors: blue})}, services: []Service{a, b}, want: "a=Stuck b=Fits"},
		"Both":            {reason: "the namespace and a selector", pools: []Pool{restricted(Restriction{Namespaces: team, Selectors: blue})}, services: []Service{a, b, svc("c", label("navy"), in("other"))}, want: "a=Stuck b=Fits c=Stuck"},
		"Everything":      {reason: "an empty restriction is one selector that matches all", pools: []Pool{restricted(Restriction{Selectors: selectors{func(map[string]string) bool { return true }}})}, services: []Service{a}, want: "a=Fits"},
		"NoNamespace":     {reason: "namespace selectors that select none: not a choice of any user", pools: []Pool{restricted(Restriction{Namespaces: none})}, services: []Service{a}, want: "a=Stuck"},
		"NobodyNamed":     {reason: "but who names it is not refused", pools: []Pool{restricted(Restriction{Namespaces: none})}, services: []Service{svc("a", named("theirs"))}, want: "a=Fits"},
		"NobodyAnywhere":  {reason: "with a selector they are no bound", pools: []Pool{restricted(Restriction{Namespaces: none, Selectors: blue})}, services: []Service{a, b}, want: "a=Stuck b=Fits"},
		"Named":           {reason: "a name does not lift it", pools: []Pool{restricted(Restriction{Namespaces: other})}, services: []Service{svc("a", named("theirs"))}, want: "a=Stuck", wantMessage: "does not serve it (spec.serviceAllocation)"},
		"NamedFull":       {reason: "nor does it help to grow", pools: []Pool{ours().onlyFor(Restriction{Namespaces: other})}, services: []Service{svc("a", named("default-pool"))}, want: "a=Stuck", wantMessage: "does not serve it"},
		"Ours":            {reason: "our pool grows for those it serves", pools: []Pool{ours().onlyFor(Restriction{Namespaces: team})}, services: []Service{a, svc("c", in("other"))}, want: "a=Lacks c=Stuck", shortfall: [2]int64{1}},
		"Closed":          {reason: "closed is closed for those it serves too", pools: []Pool{restricted(Restriction{Namespaces: team}).closed()}, services: []Service{a}, want: "a=Stuck"},
		"Preferred":       {reason: "a restricted pool before an open one", pools: []Pool{pool("open", "10.8.0.1"), restricted(Restriction{Namespaces: team})}, services: []Service{a}, want: "a=Fits", used: "10.9.0.1"},
		"PreferredFull":   {reason: "an open one if it is full", pools: []Pool{pool("open", "10.8.0.1"), pool("full").onlyFor(Restriction{Namespaces: team})}, services: []Service{a}, want: "a=Fits", used: "10.8.0.1"},
		"PreferredGrows":  {reason: "what is open and free is used before ours grows", pools: []Pool{pool("open", "10.8.0.1"), ours().onlyFor(Restriction{Namespaces: team})}, services: []Service{a, svc("c")}, want: "a=Fits c=Lacks", shortfall: [2]int64{1}, used: "10.8.0.1"},
		"HasRestricted":   {reason: "a pool closed to who is there evicts it", pools: []Pool{restricted(Restriction{Namespaces: other}), pool("open", "10.8.0.1")}, services: []Service{svc("a", withAddresses("10.9.0.1"))}, want: "a=Fits", used: "10.8.0.1 10.9.0.1"},
		"NotInRestricted": {reason: "an open pool serves who no restricted pool fits", pools: []Pool{ours(), restricted(Restriction{Selectors: blue})}, services: []Service{a, b}, want: "a=Lacks b=Fits", shortfall: [2]int64{1}},
	})
}

func TestPoolPriority(t *testing.T) {
	at := func(name, address string, priority int) Pool {
		return pool(name, address).onlyFor(Restriction{Priority: priority, Namespaces: []string{"team"}})
	}
	one := []Service{svc("a")}
	checkAll(t, map[string]assessment{
		"Lowest":  {reason: "the lowest number first", pools: []Pool{at("a", "10.0.0.20", 20), at("b", "10.0.0.10", 10)}, services: one, want: "a=Fits", used: "10.0.0.10"},
		"Unset":   {reason: "none is last", pools: []Pool{at("a", "10.0.0.1", 0), at("b", "10.0.0.99", 99)}, services: one, want: "a=Fits", used: "10.0.0.99"},
		"Full":    {reason: "the next one if it is full", pools: []Pool{at("a", "10.0.0.20", 20), at("b", "10.0.0.10", 10)}, services: []Service{svc("a"), svc("b")}, want: "a=Fits b=Fits", used: "10.0.0.10 10.0.0.20"},
		"Equal":   {reason: "ours is spared where MetalLB leaves it to chance", pools: []Pool{ours("10.0.0.1").onlyFor(Restriction{Priority: 5, Namespaces: []string{"team"}}), at("z", "10.0.0.9", 5)}, services: one, want: "a=Fits", used: "10.0.0.9"},
		"Ours":    {reason: "but not where it is preferred", pools: []Pool{ours("10.0.0.1").onlyFor(Restriction{Priority: 1, Namespaces: []string{"team"}}), at("z", "10.0.0.9", 5)}, services: one, want: "a=Fits", used: "10.0.0.1"},
		"ByName":  {reason: "and by name, so that chance is none of ours", pools: []Pool{pool("b", "10.0.0.2"), pool("a", "10.0.0.3")}, services: one, want: "a=Fits", used: "10.0.0.3"},
		"InOrder": {reason: "within a pool as the ranges are listed", pools: []Pool{ours("10.0.0.7-10.0.0.8", "10.0.0.1-10.0.0.2")}, services: one, want: "a=Fits", used: "10.0.0.7"},
	})
}

func TestAvoidBuggyIPs(t *testing.T) {
	checkAll(t, map[string]assessment{
		"Kept":      {reason: "without the setting they are as good as others", pools: []Pool{ours("10.0.0.255-10.0.1.0")}, services: []Service{svc("a"), svc("b")}, want: "a=Fits b=Fits", used: "10.0.0.255 10.0.1.0"},
		"Passed":    {reason: ".0 and .255 are passed over", pools: []Pool{ours("10.0.0.254-10.0.1.1").careful()}, services: []Service{svc("a"), svc("b"), svc("c")}, want: "a=Fits b=Fits c=Lacks", shortfall: [2]int64{1}, used: "10.0.0.254 10.0.1.1"},
		"Six":       {reason: "IPv6 has none", pools: []Pool{ours("2001:db8::-2001:db8::ff").careful()}, services: []Service{svc("a", of(IPv6))}, want: "a=Fits", used: "2001:db8::"},
		"Asked":     {reason: "who asks for one gets none", pools: []Pool{ours("10.0.0.0-10.0.0.9").careful()}, services: []Service{svc("a", withRequestedIPs("10.0.0.0"))}, want: "a=Stuck", wantMessage: "in no IPAddressPool"},
		"Held":      {reason: "who has one is moved", pools: []Pool{ours("10.0.0.0-10.0.0.9").careful()}, services: []Service{svc("a", withAddresses("10.0.0.0"))}, want: "a=Fits", used: "10.0.0.0 10.0.0.1"},
		"OnlyBuggy": {reason: "it has an address, and lacks one all the same", pools: []Pool{ours("10.0.0.0").careful()}, services: []Service{svc("a")}, want: "a=Lacks", shortfall: [2]int64{1}, used: "-"},
	})
}
