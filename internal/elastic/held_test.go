package elastic

import "testing"

// TestHeldAddresses checks whether MetalLB lets a Service keep the addresses that it has.
func TestHeldAddresses(t *testing.T) {
	full, other := ours("10.0.0.1"), pool("other", "10.9.0.1").closed()
	checkAll(t, map[string]assessment{
		"Gone":       {reason: "its pool has it no more: it moves", pools: []Pool{ours("10.0.0.2")}, services: []Service{svc("a", withAddresses("10.0.0.1"))}, want: "a=Fits", used: "10.0.0.1 10.0.0.2"},
		"GoneFull":   {reason: "it cannot move", pools: []Pool{ours()}, services: []Service{svc("a", withAddresses("10.0.0.1"))}, want: "a=Lacks", shortfall: [2]int64{1}, used: "10.0.0.1"},
		"NoPools":    {reason: "nor where there are no pools", services: []Service{svc("a", withAddresses("10.0.0.1"))}, want: "a=Stuck", used: "10.0.0.1"},
		"Renamed":    {reason: "the address is in another pool now", pools: []Pool{pool("new", "10.0.0.1")}, services: []Service{svc("a", withAddresses("10.0.0.1"))}, want: "a=Placed"},
		"HalfGone":   {reason: "one of two is gone: both are", pools: []Pool{full}, services: []Service{svc("a", dual(PreferDualStack), withAddresses("10.0.0.1 2001:db8::1"))}, want: "a=Fits", used: "10.0.0.1 2001:db8::1"},
		"Other":      {reason: "it asks for another pool now", pools: []Pool{full, other}, services: []Service{svc("a", named("other"), withAddresses("10.0.0.1"))}, want: "a=Fits", used: "10.0.0.1 10.9.0.1"},
		"OtherFrees": {reason: "and leaves its place to who waits", pools: []Pool{full, other}, services: []Service{svc("a", named("other"), withAddresses("10.0.0.1")), svc("b")}, want: "a=Fits b=Fits"},
		"Same":       {reason: "it names the pool that it is in", pools: []Pool{full}, services: []Service{svc("a", named("default-pool"), withAddresses("10.0.0.1"))}, want: "a=Placed"},
		"IP":         {reason: "it asks for what it has", pools: []Pool{full}, services: []Service{svc("a", withRequestedIPs("10.0.0.1"), withAddresses("10.0.0.1"))}, want: "a=Placed"},
		"IPs":        {reason: "in any order", pools: []Pool{ours("10.0.0.1", "2001:db8::1")}, services: []Service{svc("a", dual(RequireDualStack), withRequestedIPs("10.0.0.1 2001:db8::1"), withAddresses("2001:db8::1 10.0.0.1"))}, want: "a=Placed"},
		"IPMoves":    {reason: "it asks for another one", pools: []Pool{ours("10.0.0.1-10.0.0.2")}, services: []Service{svc("a", withRequestedIPs("10.0.0.2"), withAddresses("10.0.0.1"))}, want: "a=Fits", used: "10.0.0.1 10.0.0.2"},
		"IPNowhere":  {reason: "it asks for one that is nowhere: MetalLB takes away what it has", pools: []Pool{full}, services: []Service{svc("a", withRequestedIPs("192.0.2.1"), withAddresses("10.0.0.1")), svc("b")}, want: "a=Stuck b=Fits"},
		"Error":      {reason: "MetalLB takes nothing away for a wish that cannot be read", pools: []Pool{full}, services: []Service{svc("a", withError("no address"), withAddresses("10.0.0.1")), svc("b")}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}},
		"ErrorGone":  {reason: "but gives nothing either", pools: []Pool{full}, services: []Service{svc("a", withError("no address"), withAddresses("192.0.2.1"))}, want: "a=Stuck", wantMessage: "no address"},
		"ErrorHalf":  {reason: "not even the other family", pools: []Pool{ours("10.0.0.1", "2001:db8::1")}, services: []Service{svc("a", dual(PreferDualStack), withError("no address"), withAddresses("10.0.0.1"))}, want: "a=Placed", used: "10.0.0.1"},
		"Cluster":    {reason: "without a cluster IP it loses what it has", pools: []Pool{full}, services: []Service{svc("a", of(), withAddresses("10.0.0.1")), svc("b")}, want: "a=Stuck b=Fits"},
		"Clash":      {reason: "two have one address and do not share it: the younger moves", pools: []Pool{full}, services: []Service{svc("a", withAddresses("10.0.0.1")), svc("b", withAddresses("10.0.0.1"))}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}},
		"Shared":     {reason: "two share one", pools: []Pool{full}, services: []Service{svc("a", shares("k", 80), withAddresses("10.0.0.1")), svc("b", shares("k", 81), withAddresses("10.0.0.1"))}, want: "a=Placed b=Placed", used: "10.0.0.1"},
		"Before":     {reason: "who has an address goes before who is older and waits", pools: []Pool{full}, services: []Service{svc("a"), svc("b", withAddresses("10.0.0.1"))}, want: "a=Lacks b=Placed", shortfall: [2]int64{1}},
	})
}
