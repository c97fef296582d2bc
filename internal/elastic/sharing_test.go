package elastic

import "testing"

// TestServicesShareAddress checks that Services that can share an address lack one together (B38).
func TestServicesShareAddress(t *testing.T) {
	udp := func(s *Service) { s.Ports = []Port{{"UDP", 80}} }
	full := ours("10.0.0.1")
	a := svc("a", shares("k", 80), withAddresses("10.0.0.1"))
	local := backend("app=x")
	checkAll(t, map[string]assessment{
		"Ports":      {reason: "one key, other ports: one address", pools: []Pool{ours()}, services: []Service{svc("a", shares("k", 80)), svc("b", shares("k", 443, 8443)), svc("c", shares("k", 22))}, want: "a=Lacks b=Lacks c=Lacks", shortfall: [2]int64{1}},
		"SamePort":   {reason: "one port is another address", pools: []Pool{full}, services: []Service{a, svc("b", shares("k", 443, 80))}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}, wantMessage: "no IPAddressPool that serves it has a free address"},
		"Protocols":  {reason: "UDP joins TCP of the same number", pools: []Pool{full}, services: []Service{a, svc("b", shares("k"), udp)}, want: "a=Placed b=Fits"},
		"Namespaces": {reason: "keys are not bound to a namespace", pools: []Pool{full}, services: []Service{a, svc("b", in("other"), shares("k", 443))}, want: "a=Placed b=Fits"},
		"Keys":       {reason: "another key", pools: []Pool{full}, services: []Service{a, svc("b", shares("l", 443))}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}},
		"NoKey":      {reason: "no key", pools: []Pool{full}, services: []Service{a, svc("b", shares("", 443))}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}},
		"NoKeys":     {reason: "two without a key have no key in common", pools: []Pool{full}, services: []Service{svc("a", shares("", 80), withAddresses("10.0.0.1")), svc("b", shares("", 443))}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}},
		"Local":      {reason: "Local with another selector", pools: []Pool{full}, services: []Service{svc("a", shares("k", 80), local, withAddresses("10.0.0.1")), svc("b", shares("k", 443), backend("app=y"))}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}},
		"LocalSame":  {reason: "Local with the same one", pools: []Pool{full}, services: []Service{svc("a", shares("k", 80), local, withAddresses("10.0.0.1")), svc("b", shares("k", 443), local)}, want: "a=Placed b=Fits"},
		"Mixed":      {reason: "Local and Cluster never mix", pools: []Pool{full}, services: []Service{a, svc("b", shares("k", 443), local)}, want: "a=Placed b=Lacks", shortfall: [2]int64{1}},
		"Lowest":     {reason: "the first that it can have may be one that no Service has", pools: []Pool{ours("10.0.0.1-10.0.0.2")}, services: []Service{svc("a", shares("k", 80), withAddresses("10.0.0.2")), svc("b", shares("k", 443)), svc("c")}, want: "a=Placed b=Fits c=Lacks", shortfall: [2]int64{1}, used: "10.0.0.1 10.0.0.2"},
		"LowestLast": {reason: "which depends on who comes first", pools: []Pool{ours("10.0.0.1-10.0.0.2")}, services: []Service{svc("a", shares("k", 80), withAddresses("10.0.0.2")), svc("c"), svc("b", shares("k", 443))}, want: "a=Placed b=Fits c=Fits"},
		"Families":   {reason: "one address of each family", pools: []Pool{ours()}, services: []Service{svc("a", dual(RequireDualStack), shares("k", 80)), svc("b", of(IPv6), shares("k", 443)), svc("c", shares("k", 443))}, want: "a=Lacks b=Lacks c=Lacks", shortfall: [2]int64{1, 1}},
		"Groups":     {reason: "a group for each port that is doubled", pools: []Pool{ours()}, services: []Service{svc("a", shares("k", 1)), svc("b", shares("k", 1)), svc("c", shares("k", 2)), svc("d", shares("k", 2)), svc("e", shares("k", 1))}, want: "a=Lacks b=Lacks c=Lacks d=Lacks e=Lacks", shortfall: [2]int64{3}},
		"IP":         {reason: "the very address, with a key", pools: []Pool{full}, services: []Service{a, svc("b", shares("k", 443), withRequestedIPs("10.0.0.1"))}, want: "a=Placed b=Fits"},
		"IPPort":     {reason: "its port is taken there", pools: []Pool{full}, services: []Service{a, svc("b", shares("k", 80), withRequestedIPs("10.0.0.1"))}, want: "a=Placed b=Stuck", wantMessage: "asks for 10.0.0.1, which Service team/a has, and both use port TCP/80"},
		"IPLocal":    {reason: "another policy is there", pools: []Pool{full}, services: []Service{a, svc("b", shares("k", 443), local, withRequestedIPs("10.0.0.1"))}, want: "a=Placed b=Stuck", wantMessage: "with another external traffic policy or selector"},
	})
}
