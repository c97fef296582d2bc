package cilium

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

func class(name string) func(*service) { return func(s *service) { s.LoadBalancerClass = name } }

func shares(key string, port int32) func(*service) {
	return func(s *service) { s.SharingKey, s.Ports = key, []elastic.Port{{Protocol: "TCP", Number: port}} }
}

func in(namespace string, across ...string) func(*service) {
	return func(s *service) { s.Namespace, s.sharedNamespaces = namespace, across }
}

func dual(stack elastic.IPFamilyPolicy) func(*service) {
	return func(s *service) { s.FamilyPolicy, s.Families = stack, []elastic.Family{elastic.IPv4, elastic.IPv6} }
}

func withRequestedIPs(text string) func(*service) {
	return func(s *service) {
		for _, a := range strings.Fields(text) {
			s.RequestedIPs = append(s.RequestedIPs, netip.MustParseAddr(a))
		}
	}
}

func withUnmetReason(reason string) func(*service) {
	return func(s *service) { s.unsatisfied = &metav1.Condition{Reason: reason, Message: "why"} }
}

func labelled(label string) func(*service) {
	return func(s *service) {
		key, value, _ := strings.Cut(label, "=")
		s.Labels = map[string]string{key: value}
	}
}

// TestAssessServices checks what Cilium will do with the Services of a cluster: U72 (which ones growth helps), U73
// (which ones it does not help).
func TestAssessServices(t *testing.T) {
	const l2, bgp = "io.cilium/l2-announcer", "io.cilium/bgp-control-plane"
	local := func(s *service) { s.isTrafficPolicyLocal, s.BackendKey = true, "app=a" }
	for name, tc := range map[string]struct {
		services      []service
		pools         []Pool // in addition to ours, or ours with settings beside its ranges
		shown         string // the ranges of the default pool
		class         string
		separatePools bool
		families      string // those that the cluster can grow by
		states        string
		shortfall     [2]int64
		why           string // of the last Service
	}{
		"has one":                     {services: []service{newTestService("a", "10.0.0.1")}, shown: "10.0.0.1", states: "1 Placed"},
		"will have one":               {services: []service{newTestService("a", "")}, shown: "10.0.0.1", states: "1 Fits"},
		"finds none":                  {services: []service{newTestService("a", "10.0.0.1"), newTestService("b", ""), newTestService("c", "")}, shown: "10.0.0.1", families: "4", states: "1 Placed, 2 Lacks", shortfall: [2]int64{2}},
		"finds no pool":               {services: []service{newTestService("a", "")}, families: "4", states: "1 Lacks", shortfall: [2]int64{1}},
		"no growth":                   {services: []service{newTestService("a", "")}, states: "1 Stuck", why: "no CiliumLoadBalancerIPPool"},
		"out of what cannot grow":     {services: []service{newTestService("a", "", withUnmetReason("out_of_ips"))}, states: "1 Stuck", why: "out_of_ips: why"},
		"lost what it has":            {services: []service{newTestService("a", "10.0.0.9")}, shown: "10.0.0.1", states: "1 Fits"},
		"its class":                   {services: []service{newTestService("a", "", class(l2)), newTestService("b", "", class(bgp)), newTestService("c", "", class("x"))}, shown: "10.0.0.1", families: "4", states: "1 Fits, 1 Lacks, 1 Foreign", shortfall: [2]int64{1}},
		"one class":                   {services: []service{newTestService("a", "", class(l2)), newTestService("b", "")}, class: l2, families: "4", states: "1 Lacks, 1 Foreign", shortfall: [2]int64{1}},
		"of a class with an address":  {services: []service{newTestService("a", "10.0.0.1", class("x")), newTestService("b", "")}, shown: "10.0.0.1", families: "4", states: "1 Lacks, 1 Foreign", shortfall: [2]int64{1}},
		"shares":                      {services: []service{newTestService("a", "10.0.0.1", shares("k", 80)), newTestService("b", "", shares("k", 81))}, shown: "10.0.0.1-10.0.0.9", states: "1 Placed, 1 Fits"},
		"shares what is to come":      {services: []service{newTestService("a", "", shares("k", 80)), newTestService("b", "", shares("k", 81)), newTestService("c", "", shares("k", 80))}, families: "4", states: "3 Lacks", shortfall: [2]int64{2}},
		"not across namespaces":       {services: []service{newTestService("a", "10.0.0.1", shares("k", 80)), newTestService("b", "", shares("k", 81), in("other"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Lacks", shortfall: [2]int64{1}},
		"across namespaces":           {services: []service{newTestService("a", "10.0.0.1", shares("k", 80), in("ns", "*")), newTestService("b", "", shares("k", 81), in("other", "ns"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Fits"},
		"across, one way":             {services: []service{newTestService("a", "10.0.0.1", shares("k", 80), in("ns", "*")), newTestService("b", "", shares("k", 81), in("other"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Lacks", shortfall: [2]int64{1}},
		"another policy":              {services: []service{newTestService("a", "10.0.0.1", shares("k", 80)), newTestService("b", "", shares("k", 81), local)}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Lacks", shortfall: [2]int64{1}},
		"local, same backends":        {services: []service{newTestService("a", "10.0.0.1", shares("k", 80), local), newTestService("b", "", shares("k", 81), local)}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Fits"},
		"two families of two pools":   {services: []service{newTestService("a", "10.0.0.1", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", pools: []Pool{pool("v6", "fd00::1", makeForeign)}, states: "1 Fits"},
		"lacks the second family":     {services: []service{newTestService("a", "10.0.0.1", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", families: "46", states: "1 Lacks", shortfall: [2]int64{0, 1}},
		"requires what cannot be had": {services: []service{newTestService("a", "10.0.0.1", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "free IPv6 address"},
		"prefers what cannot be had":  {services: []service{newTestService("a", "10.0.0.1", dual(elastic.PreferDualStack), withUnmetReason("no_pool"))}, shown: "10.0.0.1", families: "4", states: "1 Placed"},
		"prefers two, first is free":  {services: []service{newTestService("a", "", dual(elastic.PreferDualStack))}, shown: "10.0.0.1", states: "1 Fits"},
		"prefers two, second is free": {services: []service{newTestService("a", "", dual(elastic.PreferDualStack))}, shown: "fd00::1", states: "1 Fits"},
		"prefers two, one can grow":   {services: []service{newTestService("a", "", dual(elastic.PreferDualStack))}, families: "4", states: "1 Lacks", shortfall: [2]int64{1}},
		"prefers two, none is free":   {services: []service{newTestService("a", "", dual(elastic.PreferDualStack))}, states: "1 Stuck", why: "free IPv6 address"},
		"requires two, one is free":   {services: []service{newTestService("a", "", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", states: "1 Stuck", why: "free IPv6 address"},
		"no cluster IP":               {services: []service{newTestService("a", "", func(s *service) { s.Families = nil })}, shown: "10.0.0.1", states: "1 Stuck", why: "cluster IP"},
		"asks for one of ours":        {services: []service{newTestService("a", "", withRequestedIPs("10.0.0.2"))}, shown: "10.0.0.1-10.0.0.2", states: "1 Fits"},
		"asks for one of no pool":     {services: []service{newTestService("a", "", withRequestedIPs("10.9.0.2"), withUnmetReason("no_pool"))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "10.9.0.2, which is in no"},
		"asks for what another has":   {services: []service{newTestService("a", "10.0.0.1"), newTestService("b", "", withRequestedIPs("10.0.0.1"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Stuck", why: "another Service has"},
		"has what it asks for":        {services: []service{newTestService("a", "10.0.0.1", withRequestedIPs("10.0.0.1"))}, shown: "10.0.0.1", states: "1 Placed"},
		"has one of two":              {services: []service{newTestService("a", "10.0.0.1", withRequestedIPs("10.0.0.1 10.0.0.2"))}, shown: "10.0.0.1-10.0.0.2", states: "1 Fits"},
		"Cilium says why":             {services: []service{newTestService("a", "", withUnmetReason("pool_selector_mismatch"))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "pool_selector_mismatch: why"},
		"ours is restricted":          {services: []service{newTestService("a", "")}, pools: []Pool{pool(DefaultPool, "10.0.0.1", withServiceSelector("color=red"))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "spec.serviceSelector"},
		"ours is restricted to it":    {services: []service{newTestService("a", "", labelled("color=red"))}, pools: []Pool{pool(DefaultPool, "10.0.0.1", withServiceSelector("color=red"))}, shown: "10.0.0.1", states: "1 Fits"},
		"restricted to its namespace": {services: []service{newTestService("a", "")}, pools: []Pool{pool(DefaultPool, "10.0.0.1", withServiceSelector("io.kubernetes.service.namespace=ns"))}, shown: "10.0.0.1", states: "1 Fits"},
		"restricted, and apart":       {services: []service{newTestService("a", "")}, pools: []Pool{pool(DefaultPool, "10.0.0.1", withServiceSelector("color=red"))}, shown: "10.0.0.1", separatePools: true, families: "4", states: "1 Lacks", shortfall: [2]int64{1}},
		"a foreign pool has room":     {services: []service{newTestService("a", "")}, pools: []Pool{pool("other", "10.5.0.1", makeForeign)}, families: "4", states: "1 Fits"},
		"that is disabled":            {services: []service{newTestService("a", "")}, pools: []Pool{pool("other", "10.5.0.1", makeForeign, disabled)}, families: "4", states: "1 Lacks", shortfall: [2]int64{1}},
		"that conflicts":              {services: []service{newTestService("a", "")}, pools: []Pool{pool("other", "10.5.0.1", makeForeign, withPoolCondition(conflictCondition, metav1.ConditionTrue, 3))}, families: "4", states: "1 Lacks", shortfall: [2]int64{1}},
		"ends of a CIDR": {services: []service{newTestService("a", ""), newTestService("b", ""), newTestService("c", "")}, families: "4", states: "2 Fits, 1 Lacks", shortfall: [2]int64{1}, pools: []Pool{pool("other", "", makeForeign, func(p *Pool) {
			p.Spec.Blocks, p.Spec.AllowFirstLastIPs = []Block{{CIDR: "10.5.0.0/30"}}, "No"
		})}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &observedCluster{services: tc.services, pools: tc.pools}
			out := balancer.DesiredState{GrowthPool: DefaultPool, LoadBalancerClass: tc.class, GrowableFamilies: [2]bool{strings.Contains(tc.families, "4"), strings.Contains(tc.families, "6")}}
			if tc.shown != "" {
				out.Pools = []elastic.DesiredPool{desired(DefaultPool, tc.shown)}
			}
			if tc.separatePools {
				out.GrowthPool = ""
			}
			a := o.AssessServices(out)
			var states []string
			for state, name := range []string{"Placed", "Fits", "Lacks", "Stuck", "Foreign"} {
				if n := a.CountInState(elastic.ServiceState(state)); n > 0 {
					states = append(states, fmt.Sprint(n, " ", name))
				}
			}
			if gotStates := strings.Join(states, ", "); gotStates != tc.states {
				t.Errorf("they are %s, not %s", gotStates, tc.states)
			}
			why := a.ServiceAssessments[len(a.ServiceAssessments)-1].Message
			if a.Shortfall != tc.shortfall {
				t.Errorf("lacking is %v, not %v", a.Shortfall, tc.shortfall)
			}
			if !strings.Contains(why, tc.why) {
				t.Errorf("it says %q", why)
			}
		})
	}
}

// TestAssessUsed checks that addresses that Services have, or are about to get, are in use: their block is not
// withdrawn.
func TestAssessUsed(t *testing.T) {
	o := &observedCluster{services: []service{newTestService("a", "10.0.0.7"), newTestService("b", "10.0.0.2"), newTestService("c", ""), newTestService("d", "10.0.0.9", class("x"))}}
	a := o.AssessServices(balancer.DesiredState{Pools: []elastic.DesiredPool{desired(DefaultPool, "10.0.0.1-10.0.0.3")}})
	for addr, used := range map[string]bool{"10.0.0.7": true, "10.0.0.2": true, "10.0.0.1": true, "10.0.0.3": true, "10.0.0.9": true, "10.0.0.4": false} {
		if _, ok := a.UsedAddresses[netip.MustParseAddr(addr)]; ok != used {
			t.Errorf("%s is in use: %t", addr, ok)
		}
	}
}

// TestAssessEnds checks that an assessment ends, whatever number of Services a workload cluster reports.
func TestAssessEnds(t *testing.T) {
	o := &observedCluster{}
	for range 20_000 {
		o.services = append(o.services, newTestService("a", "10.0.0.1", shares("k", 80)))
	}
	if a := o.AssessServices(balancer.DesiredState{Pools: []elastic.DesiredPool{desired(DefaultPool, "10.0.0.1-10.0.9.0")}}); a.CountInState(elastic.ServiceStuck) == 0 {
		t.Error("all were assessed")
	}
}
