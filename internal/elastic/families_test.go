package elastic

import "testing"

func TestDemandOfEachFamily(t *testing.T) {
	four, six, both := ours("10.0.0.1"), ours("2001:db8::1"), ours("2001:db8::1", "10.0.0.1")
	prefer, require := svc("a", dual(PreferDualStack)), svc("a", dual(RequireDualStack))
	sixFirst := svc("a", of(IPv6, IPv4), func(s *Service) { s.FamilyPolicy = PreferDualStack })
	fourOnly, sixOnly := pool("x", "10.9.0.1"), pool("y", "2001:db8:9::1")
	checkAll(t, map[string]assessment{
		"Six":      {reason: "the pool has that family", pools: []Pool{six}, services: []Service{svc("a", of(IPv6))}, want: "a=Fits", used: "2001:db8::1"},
		"NoSix":    {reason: "the pool has none of that family: one is lacking", pools: []Pool{four}, services: []Service{svc("a", of(IPv6))}, want: "a=Lacks", shortfall: [2]int64{0, 1}},
		"NeverSix": {reason: "and can be given none", pools: []Pool{four}, grows: "4", services: []Service{svc("a", of(IPv6)), svc("b"), svc("c")}, want: "a=Stuck b=Fits c=Lacks", shortfall: [2]int64{1}},
		"Each":     {reason: "families are counted apart", pools: []Pool{ours()}, services: []Service{svc("a"), svc("b", of(IPv6)), svc("c", of(IPv6))}, want: "a=Lacks b=Lacks c=Lacks", shortfall: [2]int64{1, 2}},

		"Require":         {reason: "one of each", pools: []Pool{both}, services: []Service{require}, want: "a=Fits", used: "10.0.0.1 2001:db8::1"},
		"RequireHalf":     {reason: "one family is short: that is lacking, and the other is spoken for", pools: []Pool{four}, services: []Service{require}, want: "a=Lacks", shortfall: [2]int64{0, 1}, used: "10.0.0.1"},
		"RequireNone":     {reason: "both are", pools: []Pool{ours()}, services: []Service{require}, want: "a=Lacks", shortfall: [2]int64{1, 1}, used: "-"},
		"RequireNever":    {reason: "a family that cannot grow: nothing is asked for or kept for it", pools: []Pool{four}, grows: "4", services: []Service{require}, want: "a=Stuck", used: "-"},
		"RequireApart":    {reason: "not from two pools", pools: []Pool{fourOnly, sixOnly}, services: []Service{require}, want: "a=Stuck"},
		"RequireYields":   {reason: "what it cannot take alone a younger one takes", pools: []Pool{four}, services: []Service{require, svc("b")}, want: "a=Lacks b=Fits", shortfall: [2]int64{1, 1}, used: "10.0.0.1"},
		"RequireClusters": {reason: "the Service has one cluster IP only", pools: []Pool{both}, services: []Service{svc("a", func(s *Service) { s.FamilyPolicy = RequireDualStack })}, want: "a=Stuck", wantMessage: "lacks a cluster IP of an IP family"},
		"RequireMore":     {reason: "it has one and asks for two now: MetalLB takes that away", pools: []Pool{four}, services: []Service{svc("a", dual(RequireDualStack), withAddresses("10.0.0.1"))}, want: "a=Lacks", shortfall: [2]int64{0, 1}},
		"RequireLess":     {reason: "it has two and asks for one now", pools: []Pool{both}, services: []Service{svc("a", withAddresses("10.0.0.1 2001:db8::1"))}, want: "a=Fits"},
		"WrongFamily":     {reason: "what it has is of a family that it does not ask for", pools: []Pool{both}, services: []Service{svc("a", withAddresses("2001:db8::1"))}, want: "a=Fits", used: "10.0.0.1 2001:db8::1"},

		"Prefer":        {reason: "one of each where there is", pools: []Pool{both}, services: []Service{prefer}, want: "a=Fits", used: "10.0.0.1 2001:db8::1"},
		"PreferFour":    {reason: "one otherwise: nothing is lacking", pools: []Pool{four}, services: []Service{prefer}, want: "a=Fits", used: "10.0.0.1"},
		"PreferSix":     {reason: "whichever there is", pools: []Pool{six}, services: []Service{prefer}, want: "a=Fits", used: "2001:db8::1"},
		"PreferNone":    {reason: "if there is nothing it gets both", pools: []Pool{ours()}, services: []Service{prefer}, want: "a=Lacks", shortfall: [2]int64{1, 1}},
		"PreferNever":   {reason: "as far as the cluster can grow", pools: []Pool{ours()}, grows: "6", services: []Service{prefer}, want: "a=Lacks", shortfall: [2]int64{0, 1}},
		"PreferBoth":    {reason: "a pool of both families before one that comes first", pools: []Pool{fourOnly, pool("z", "10.8.0.1", "2001:db8:8::1")}, services: []Service{prefer}, want: "a=Fits", used: "10.8.0.1 2001:db8:8::1"},
		"PreferFirst":   {reason: "its first family before a pool that comes first", pools: []Pool{fourOnly, sixOnly}, services: []Service{sixFirst}, want: "a=Fits", used: "2001:db8:9::1"},
		"PreferFirst4":  {reason: "the same for IPv4", pools: []Pool{sixOnly, fourOnly}, services: []Service{prefer}, want: "a=Fits", used: "10.9.0.1"},
		"PreferSingle":  {reason: "with one cluster IP it is like any other", pools: []Pool{both}, services: []Service{svc("a", func(s *Service) { s.FamilyPolicy = PreferDualStack })}, want: "a=Fits", used: "10.0.0.1"},
		"PreferKeeps":   {reason: "it has one, and there is no other", pools: []Pool{four}, services: []Service{svc("a", dual(PreferDualStack), withAddresses("10.0.0.1"))}, want: "a=Placed", used: "10.0.0.1"},
		"PreferAdds":    {reason: "the other family comes from the same pool as soon as it has one", pools: []Pool{both, sixOnly}, services: []Service{svc("a", dual(PreferDualStack), withAddresses("10.0.0.1"))}, want: "a=Placed", used: "10.0.0.1 2001:db8::1"},
		"PreferAdds4":   {reason: "the same for IPv4", pools: []Pool{both}, services: []Service{svc("a", dual(PreferDualStack), withAddresses("2001:db8::1"))}, want: "a=Placed", used: "10.0.0.1 2001:db8::1"},
		"PreferAddsOld": {reason: "MetalLB looks first at those that have an address", pools: []Pool{both}, services: []Service{svc("b", of(IPv6)), svc("a", dual(PreferDualStack), withAddresses("10.0.0.1"))}, want: "a=Placed b=Lacks", shortfall: [2]int64{0, 1}},
		"PreferElse":    {reason: "not from another pool", pools: []Pool{four, sixOnly}, services: []Service{svc("a", dual(PreferDualStack), withAddresses("10.0.0.1"))}, want: "a=Placed", used: "10.0.0.1"},
		"PreferTwins":   {reason: "two of one family are not one of each", pools: []Pool{ours("10.0.0.1-10.0.0.2", "2001:db8::1")}, services: []Service{svc("a", dual(PreferDualStack), withAddresses("10.0.0.1 10.0.0.2"))}, want: "a=Fits"},
	})
}

func TestFamilyNames(t *testing.T) {
	if got := IPv4.String() + IPv6.String(); got != "IPv4IPv6" {
		t.Error(got)
	}
}
