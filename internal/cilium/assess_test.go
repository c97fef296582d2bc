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

func class(name string) func(*service) { return func(s *service) { s.Class = name } }

func shares(key string, port int32) func(*service) {
	return func(s *service) { s.SharingKey, s.Ports = key, []elastic.Port{{Protocol: "TCP", Number: port}} }
}

func in(namespace string, across ...string) func(*service) {
	return func(s *service) { s.Namespace, s.across = namespace, across }
}

func dual(stack elastic.DualStack) func(*service) {
	return func(s *service) { s.Stack, s.Families = stack, []elastic.Family{elastic.IPv4, elastic.IPv6} }
}

func asks(text string) func(*service) {
	return func(s *service) {
		for _, a := range strings.Fields(text) {
			s.WantsIPs = append(s.WantsIPs, netip.MustParseAddr(a))
		}
	}
}

func told(reason string) func(*service) {
	return func(s *service) { s.lacks = &metav1.Condition{Reason: reason, Message: "why"} }
}

func labelled(label string) func(*service) {
	return func(s *service) {
		key, value, _ := strings.Cut(label, "=")
		s.Labels = map[string]string{key: value}
	}
}

// U72, U73: what Cilium will do with the Services of a cluster.
func TestAssess(t *testing.T) {
	const l2, bgp = "io.cilium/l2-announcer", "io.cilium/bgp-control-plane"
	local := func(s *service) { s.local, s.BackendKey = true, "app=a" }
	for name, tc := range map[string]struct {
		services []service
		pools    []Pool // beside ours, or ours with more than ranges
		shown    string // to the default pool
		class    string
		apart    bool
		families string // of which there is more
		states   string
		lacking  [2]int64
		why      string // of the last one
	}{
		"has one":                     {services: []service{aService("a", "10.0.0.1")}, shown: "10.0.0.1", states: "1 Placed"},
		"will have one":               {services: []service{aService("a", "")}, shown: "10.0.0.1", states: "1 Fits"},
		"finds none":                  {services: []service{aService("a", "10.0.0.1"), aService("b", ""), aService("c", "")}, shown: "10.0.0.1", families: "4", states: "1 Placed, 2 Lacks", lacking: [2]int64{2}},
		"finds no pool":               {services: []service{aService("a", "")}, families: "4", states: "1 Lacks", lacking: [2]int64{1}},
		"no growth":                   {services: []service{aService("a", "")}, states: "1 Stuck", why: "no CiliumLoadBalancerIPPool"},
		"out of what cannot grow":     {services: []service{aService("a", "", told("out_of_ips"))}, states: "1 Stuck", why: "out_of_ips: why"},
		"lost what it has":            {services: []service{aService("a", "10.0.0.9")}, shown: "10.0.0.1", states: "1 Fits"},
		"its class":                   {services: []service{aService("a", "", class(l2)), aService("b", "", class(bgp)), aService("c", "", class("x"))}, shown: "10.0.0.1", families: "4", states: "1 Fits, 1 Lacks, 1 Foreign", lacking: [2]int64{1}},
		"one class":                   {services: []service{aService("a", "", class(l2)), aService("b", "")}, class: l2, families: "4", states: "1 Lacks, 1 Foreign", lacking: [2]int64{1}},
		"of a class with an address":  {services: []service{aService("a", "10.0.0.1", class("x")), aService("b", "")}, shown: "10.0.0.1", families: "4", states: "1 Lacks, 1 Foreign", lacking: [2]int64{1}},
		"shares":                      {services: []service{aService("a", "10.0.0.1", shares("k", 80)), aService("b", "", shares("k", 81))}, shown: "10.0.0.1-10.0.0.9", states: "1 Placed, 1 Fits"},
		"shares what is to come":      {services: []service{aService("a", "", shares("k", 80)), aService("b", "", shares("k", 81)), aService("c", "", shares("k", 80))}, families: "4", states: "3 Lacks", lacking: [2]int64{2}},
		"not across namespaces":       {services: []service{aService("a", "10.0.0.1", shares("k", 80)), aService("b", "", shares("k", 81), in("other"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Lacks", lacking: [2]int64{1}},
		"across namespaces":           {services: []service{aService("a", "10.0.0.1", shares("k", 80), in("ns", "*")), aService("b", "", shares("k", 81), in("other", "ns"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Fits"},
		"across, one way":             {services: []service{aService("a", "10.0.0.1", shares("k", 80), in("ns", "*")), aService("b", "", shares("k", 81), in("other"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Lacks", lacking: [2]int64{1}},
		"another policy":              {services: []service{aService("a", "10.0.0.1", shares("k", 80)), aService("b", "", shares("k", 81), local)}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Lacks", lacking: [2]int64{1}},
		"local, same backends":        {services: []service{aService("a", "10.0.0.1", shares("k", 80), local), aService("b", "", shares("k", 81), local)}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Fits"},
		"two families of two pools":   {services: []service{aService("a", "10.0.0.1", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", pools: []Pool{pool("v6", "fd00::1", foreign)}, states: "1 Fits"},
		"lacks the second family":     {services: []service{aService("a", "10.0.0.1", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", families: "46", states: "1 Lacks", lacking: [2]int64{0, 1}},
		"requires what cannot be had": {services: []service{aService("a", "10.0.0.1", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "free IPv6 address"},
		"prefers what cannot be had":  {services: []service{aService("a", "10.0.0.1", dual(elastic.PreferDualStack), told("no_pool"))}, shown: "10.0.0.1", families: "4", states: "1 Placed"},
		"prefers two, first is free":  {services: []service{aService("a", "", dual(elastic.PreferDualStack))}, shown: "10.0.0.1", states: "1 Fits"},
		"prefers two, second is free": {services: []service{aService("a", "", dual(elastic.PreferDualStack))}, shown: "fd00::1", states: "1 Fits"},
		"prefers two, one can grow":   {services: []service{aService("a", "", dual(elastic.PreferDualStack))}, families: "4", states: "1 Lacks", lacking: [2]int64{1}},
		"prefers two, none is free":   {services: []service{aService("a", "", dual(elastic.PreferDualStack))}, states: "1 Stuck", why: "free IPv6 address"},
		"requires two, one is free":   {services: []service{aService("a", "", dual(elastic.RequireDualStack))}, shown: "10.0.0.1", states: "1 Stuck", why: "free IPv6 address"},
		"no cluster IP":               {services: []service{aService("a", "", func(s *service) { s.Families = nil })}, shown: "10.0.0.1", states: "1 Stuck", why: "cluster IP"},
		"asks for one of ours":        {services: []service{aService("a", "", asks("10.0.0.2"))}, shown: "10.0.0.1-10.0.0.2", states: "1 Fits"},
		"asks for one of nobody":      {services: []service{aService("a", "", asks("10.9.0.2"), told("no_pool"))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "10.9.0.2, which is in no"},
		"asks for what another has":   {services: []service{aService("a", "10.0.0.1"), aService("b", "", asks("10.0.0.1"))}, shown: "10.0.0.1", families: "4", states: "1 Placed, 1 Stuck", why: "another Service has"},
		"has what it asks for":        {services: []service{aService("a", "10.0.0.1", asks("10.0.0.1"))}, shown: "10.0.0.1", states: "1 Placed"},
		"has one of two":              {services: []service{aService("a", "10.0.0.1", asks("10.0.0.1 10.0.0.2"))}, shown: "10.0.0.1-10.0.0.2", states: "1 Fits"},
		"Cilium says why":             {services: []service{aService("a", "", told("pool_selector_mismatch"))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "pool_selector_mismatch: why"},
		"ours is restricted":          {services: []service{aService("a", "")}, pools: []Pool{pool(DefaultPool, "10.0.0.1", only("color=red"))}, shown: "10.0.0.1", families: "4", states: "1 Stuck", why: "spec.serviceSelector"},
		"ours is restricted to it":    {services: []service{aService("a", "", labelled("color=red"))}, pools: []Pool{pool(DefaultPool, "10.0.0.1", only("color=red"))}, shown: "10.0.0.1", states: "1 Fits"},
		"restricted to its namespace": {services: []service{aService("a", "")}, pools: []Pool{pool(DefaultPool, "10.0.0.1", only("io.kubernetes.service.namespace=ns"))}, shown: "10.0.0.1", states: "1 Fits"},
		"restricted, and apart":       {services: []service{aService("a", "")}, pools: []Pool{pool(DefaultPool, "10.0.0.1", only("color=red"))}, shown: "10.0.0.1", apart: true, families: "4", states: "1 Lacks", lacking: [2]int64{1}},
		"somebody else's has room":    {services: []service{aService("a", "")}, pools: []Pool{pool("other", "10.5.0.1", foreign)}, families: "4", states: "1 Fits"},
		"that is disabled":            {services: []service{aService("a", "")}, pools: []Pool{pool("other", "10.5.0.1", foreign, disabled)}, families: "4", states: "1 Lacks", lacking: [2]int64{1}},
		"that conflicts":              {services: []service{aService("a", "")}, pools: []Pool{pool("other", "10.5.0.1", foreign, says(conflictCondition, metav1.ConditionTrue, 3))}, families: "4", states: "1 Lacks", lacking: [2]int64{1}},
		"ends of a CIDR": {services: []service{aService("a", ""), aService("b", ""), aService("c", "")}, families: "4", states: "2 Fits, 1 Lacks", lacking: [2]int64{1}, pools: []Pool{pool("other", "", foreign, func(p *Pool) {
			p.Spec.Blocks, p.Spec.AllowFirstLastIPs = []Block{{CIDR: "10.5.0.0/30"}}, "No"
		})}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &observed{services: tc.services, pools: tc.pools}
			out := balancer.Outlook{Grows: DefaultPool, Class: tc.class, Families: [2]bool{strings.Contains(tc.families, "4"), strings.Contains(tc.families, "6")}}
			if tc.shown != "" {
				out.Pools = []elastic.Desired{desired(DefaultPool, tc.shown)}
			}
			if tc.apart {
				out.Grows = ""
			}
			a := o.Assess(out)
			var states []string
			for state, name := range []string{"Placed", "Fits", "Lacks", "Stuck", "Foreign"} {
				if n := a.Count(elastic.State(state)); n > 0 {
					states = append(states, fmt.Sprint(n, " ", name))
				}
			}
			if is := strings.Join(states, ", "); is != tc.states {
				t.Errorf("they are %s, not %s", is, tc.states)
			}
			why := a.Verdicts[len(a.Verdicts)-1].Why
			if a.Lacking != tc.lacking {
				t.Errorf("lacking is %v, not %v", a.Lacking, tc.lacking)
			}
			if !strings.Contains(why, tc.why) {
				t.Errorf("it says %q", why)
			}
		})
	}
}

// What Services have, or are about to be given, is in use: a block of it is not given back.
func TestAssessUsed(t *testing.T) {
	o := &observed{services: []service{aService("a", "10.0.0.7"), aService("b", "10.0.0.2"), aService("c", ""), aService("d", "10.0.0.9", class("x"))}}
	a := o.Assess(balancer.Outlook{Pools: []elastic.Desired{desired(DefaultPool, "10.0.0.1-10.0.0.3")}})
	for addr, used := range map[string]bool{"10.0.0.7": true, "10.0.0.2": true, "10.0.0.1": true, "10.0.0.3": true, "10.0.0.9": true, "10.0.0.4": false} {
		if _, is := a.Used[netip.MustParseAddr(addr)]; is != used {
			t.Errorf("%s is in use: %t", addr, is)
		}
	}
}

// Whatever a workload cluster says that it has, an assessment ends.
func TestAssessEnds(t *testing.T) {
	o := &observed{}
	for range 20_000 {
		o.services = append(o.services, aService("a", "10.0.0.1", shares("k", 80)))
	}
	if a := o.Assess(balancer.Outlook{Pools: []elastic.Desired{desired(DefaultPool, "10.0.0.1-10.0.9.0")}}); a.Count(elastic.Stuck) == 0 {
		t.Error("all were looked at")
	}
}
