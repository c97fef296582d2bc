package elastic

import "testing"

// TestServiceDemand checks that all Services of type LoadBalancer count (B35), in one pass (B38), less what is on its
// way (B37), and that free addresses of a block in use are supply (F5).
func TestServiceDemand(t *testing.T) {
	checkAll(t, map[string]assessment{
		"Nothing": {reason: "no Services, no demand", pools: []Pool{ours("10.0.0.1")}, used: "-"},
		"NoPool":  {reason: "our pool is there though it has no block yet", pools: []Pool{ours()}, services: []Service{svc("a")}, want: "a=Lacks", shortfall: [2]int64{1}, used: "-"},
		"Fits":    {reason: "MetalLB is about to give it what is free", pools: []Pool{ours("10.0.0.1")}, services: []Service{svc("a")}, want: "a=Fits", used: "10.0.0.1"},
		"Placed":  {reason: "it has its address", pools: []Pool{ours("10.0.0.1")}, services: []Service{svc("a", withAddresses("10.0.0.1"))}, want: "a=Placed", used: "10.0.0.1"},
		"Full":    {reason: "another Service has the only one", pools: []Pool{ours("10.0.0.1")}, services: []Service{svc("a", withAddresses("10.0.0.1")), svc("b")}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}, used: "10.0.0.1", wantMessage: "no IPAddressPool that serves it has a free address"},
		"Oldest":  {reason: "the order of creation", pools: []Pool{ours("10.0.0.1")}, services: []Service{svc("z"), svc("a")}, want: "a=Lacks z=Fits", shortfall: [2]int64{1}, used: "10.0.0.1"},
		"Batch":   {reason: "all at once (B38)", pools: []Pool{ours("10.0.0.1")}, services: []Service{svc("a", withAddresses("10.0.0.1")), svc("b"), svc("c"), svc("d")}, want: "a=Placed b=Lacks c=Lacks d=Lacks", shortfall: [2]int64{3}},
		"PartlyUsed": {reason: "1 of 4 used: three are supply (F5)", pools: []Pool{ours("10.0.0.1", "10.0.0.4-10.0.0.7")},
			services: []Service{svc("a", withAddresses("10.0.0.1")), svc("b", withAddresses("10.0.0.6")), svc("c"), svc("d"), svc("e"), svc("f")},
			want:     "a=Placed b=Placed c=Fits d=Fits e=Fits f=Lacks", shortfall: [2]int64{1}, used: "10.0.0.1 10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.7"},
		"Others": {reason: "what another pool can serve is not grown for", pools: []Pool{ours(), pool("theirs", "10.9.0.1")},
			services: []Service{svc("a"), svc("b")}, want: "a=Fits b=Lacks", shortfall: [2]int64{1}, used: "10.9.0.1"},
		"OthersFirst": {reason: "nor is our own address used for it", pools: []Pool{ours("10.0.0.1"), pool("theirs", "10.9.0.1")},
			services: []Service{svc("a"), svc("b", named("default-pool"))}, want: "a=Fits b=Fits"},
		"Twins": {reason: "one name in two namespaces, created at once", pools: []Pool{ours("10.0.0.1")},
			services: []Service{svc("a", in("y")), svc("a", in("x"))}, want: "a=Fits a=Lacks", shortfall: [2]int64{1}},
		"CannotGrow": {reason: "a cluster that is not to grow", pools: []Pool{ours("10.0.0.1")}, grows: "-", services: []Service{svc("a"), svc("b")}, want: "a=Fits b=Stuck"},
	})
}

// TestSortByAgeBreaksTies checks that Services with the same creation time are served by namespace and name: the order
// in which they are listed is random.
func TestSortByAgeBreaksTies(t *testing.T) {
	services := []Service{svc("b", in("x")), svc("a", in("y")), svc("a", in("x"))}
	got := sortByAge(services)
	if got[0] != &services[2] || got[1] != &services[0] || got[2] != &services[1] {
		t.Errorf("got %s, %s, %s", got[0].Key(), got[1].Key(), got[2].Key())
	}
}

// TestUnsatisfiableServicesAreNoDemand checks that a Service that growth cannot help is no demand (F4).
func TestUnsatisfiableServicesAreNoDemand(t *testing.T) {
	full := ours("10.0.0.1")
	first := svc("first", withAddresses("10.0.0.1"))
	other := pool("other", "10.9.0.1-10.9.0.2").closed()
	checkAll(t, map[string]assessment{
		"Class":        {reason: "another load balancer's", pools: []Pool{full}, services: []Service{first, svc("a", class("x"))}, want: "a=Foreign first=Placed", wantMessage: `of the load-balancer class "x"`},
		"ClassHas":     {reason: "no other Service can free what it has", pools: []Pool{ours()}, services: []Service{svc("a", class("x"), withAddresses("10.0.0.1"))}, want: "a=Foreign", used: "10.0.0.1"},
		"NoClass":      {reason: "MetalLB serves a class", pools: []Pool{full}, class: "x", services: []Service{svc("a")}, want: "a=Foreign", wantMessage: `class ""`},
		"ItsClass":     {reason: "and those of it", pools: []Pool{full}, class: "x", services: []Service{svc("a", class("x")), svc("b", class("x"))}, want: "a=Fits b=Lacks", shortfall: [2]int64{1}},
		"Error":        {reason: "what it asks for cannot be read", pools: []Pool{full}, services: []Service{svc("a", withError("no address"))}, want: "a=Stuck", used: "-", wantMessage: "no address"},
		"NoClusterIP":  {reason: "no family can be chosen", pools: []Pool{full}, services: []Service{svc("a", of())}, want: "a=Stuck", wantMessage: "it lacks a cluster IP of an IP family"},
		"UnknownPool":  {reason: "a bad annotation", pools: []Pool{full}, services: []Service{svc("a", named("nope"))}, want: "a=Stuck", wantMessage: `it asks for IPAddressPool "nope", which does not exist`},
		"OtherPool":    {reason: "their pool has room, though it is closed for others", pools: []Pool{full, other}, services: []Service{svc("a", named("other"))}, want: "a=Fits", used: "10.9.0.1"},
		"OtherFull":    {reason: "ours growing does not help", pools: []Pool{full, other}, services: []Service{svc("a", named("other"), withAddresses("10.9.0.1")), svc("b", named("other")), svc("c", named("other"))}, want: "a=Placed b=Fits c=Stuck", wantMessage: `IPAddressPool "other" has no address for it`},
		"OurPool":      {reason: "our growing helps who names our pool", pools: []Pool{full}, services: []Service{first, svc("a", named("default-pool"))}, want: "a=Lacks first=Placed", shortfall: [2]int64{1}, wantMessage: `"default-pool" has no address`},
		"OurPoolNew":   {reason: "it does not exist in the cluster before its first block", pools: []Pool{ours()}, services: []Service{svc("a", named("default-pool"))}, want: "a=Lacks", shortfall: [2]int64{1}},
		"Closed":       {reason: "no pool takes who names none", pools: []Pool{ours().closed(), other}, services: []Service{svc("a")}, want: "a=Stuck", wantMessage: "no IPAddressPool serves it"},
		"ClosedNamed":  {reason: "autoAssign matters to who names none only", pools: []Pool{ours().closed()}, services: []Service{svc("a", named("default-pool"))}, want: "a=Lacks", shortfall: [2]int64{1}},
		"ClosedKeeps":  {reason: "who is there stays", pools: []Pool{full.closed()}, services: []Service{first}, want: "first=Placed"},
		"IP":           {reason: "the very address is free", pools: []Pool{full}, services: []Service{svc("a", withRequestedIPs("10.0.0.1"))}, want: "a=Fits", used: "10.0.0.1"},
		"IPLast":       {reason: "not the first that is free", pools: []Pool{ours("10.0.0.1-10.0.0.9")}, services: []Service{svc("a", withRequestedIPs("10.0.0.9"))}, want: "a=Fits", used: "10.0.0.9"},
		"IPClosed":     {reason: "autoAssign does not matter", pools: []Pool{other}, services: []Service{svc("a", withRequestedIPs("10.9.0.2"))}, want: "a=Fits", used: "10.9.0.2"},
		"IPElsewhere":  {reason: "no pool has it", pools: []Pool{full}, services: []Service{svc("a", withRequestedIPs("192.0.2.7"))}, want: "a=Stuck", used: "-", wantMessage: "asks for 192.0.2.7, which is in no IPAddressPool"},
		"IPTaken":      {reason: "another Service has it", pools: []Pool{full}, services: []Service{first, svc("a", withRequestedIPs("10.0.0.1"))}, want: "a=Stuck first=Placed", wantMessage: "asks for 10.0.0.1, which Service team/first has and does not share"},
		"IPTwice":      {reason: "the older one gets it", pools: []Pool{full}, services: []Service{svc("a", withRequestedIPs("10.0.0.1")), svc("b", withRequestedIPs("10.0.0.1"))}, want: "a=Fits b=Stuck"},
		"IPFamily":     {reason: "it is of the other family", pools: []Pool{ours("2001:db8::1")}, services: []Service{svc("a", withRequestedIPs("2001:db8::1"))}, want: "a=Stuck", wantMessage: "not of its IP families"},
		"IPHalf":       {reason: "two families, one address: MetalLB refuses that", pools: []Pool{full}, services: []Service{svc("a", dual(PreferDualStack), withRequestedIPs("10.0.0.1"))}, want: "a=Stuck"},
		"IPPair":       {reason: "both of one pool", pools: []Pool{ours("10.0.0.1", "2001:db8::1")}, services: []Service{svc("a", dual(RequireDualStack), withRequestedIPs("2001:db8::1 10.0.0.1"))}, want: "a=Fits", used: "10.0.0.1 2001:db8::1"},
		"IPPairSame":   {reason: "two of one family are not one of each", pools: []Pool{ours("10.0.0.1-10.0.0.2")}, services: []Service{svc("a", dual(PreferDualStack), withRequestedIPs("10.0.0.1 10.0.0.2"))}, want: "a=Stuck"},
		"IPPairApart":  {reason: "of two pools: in none that has both", pools: []Pool{ours("10.0.0.1"), pool("six", "2001:db8::1")}, services: []Service{svc("a", dual(RequireDualStack), withRequestedIPs("10.0.0.1 2001:db8::1"))}, want: "a=Stuck", wantMessage: "asks for 10.0.0.1, 2001:db8::1, which is in no"},
		"IPPool":       {reason: "both wishes agree", pools: []Pool{full}, services: []Service{svc("a", withRequestedIPs("10.0.0.1"), named("default-pool"))}, want: "a=Fits"},
		"IPNotPool":    {reason: "they do not", pools: []Pool{full, other}, services: []Service{svc("a", withRequestedIPs("10.0.0.1"), named("other"))}, want: "a=Stuck", wantMessage: `asks for 10.0.0.1, but also for IPAddressPool "other", which does not have it`},
		"IPRestricted": {reason: "its pool is for others", pools: []Pool{full.onlyFor(Restriction{Namespaces: []string{"x"}})}, services: []Service{svc("a", withRequestedIPs("10.0.0.1"))}, want: "a=Stuck", wantMessage: `asks for 10.0.0.1 of IPAddressPool "default-pool", which does not serve it`},
	})
}

func TestCountInState(t *testing.T) {
	c := assessment{pools: []Pool{ours("10.0.0.1-10.0.0.2")}, services: []Service{svc("a"), svc("b"), svc("c"), svc("d", class("x"))}}
	got := AssessServices(c.inventory())
	if got.CountInState(ServicePlaceable) != 2 || got.CountInState(ServiceNeedsGrowth) != 1 || got.CountInState(ServiceOtherClass) != 1 || got.CountInState(ServicePlaced)+got.CountInState(ServiceStuck) != 0 {
		t.Errorf("got %s", formatAssessment(got))
	}
}
