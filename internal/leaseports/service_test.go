package leaseports

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func aService(annotation string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{}
	s.Namespace, s.Name, s.Annotations = "ns", "web", map[string]string{v1alpha1.LeaseAnnotation: annotation}
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}
	for _, f := range change {
		f(s)
	}
	return s
}

func TestAskedOf(t *testing.T) {
	class := func(name string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
	}
	unnamed := func(s *corev1.Service) { s.Annotations = nil }
	address := func(text string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerIP = text }
	}
	const ours = "butler.butlerlabs.dev/metallb"
	for name, c := range map[string]struct {
		of *corev1.Service
		// want is what it asks for, without a text of what is wrong; wrong, that there is one.
		want  Asked
		asks  bool
		wrong bool
	}{
		"one":                    {of: aService("shop"), want: Asked{Namespace: "ns", Leases: []string{"shop"}}, asks: true},
		"two":                    {of: aService(" shop, shop-6"), want: Asked{Namespace: "ns", Leases: []string{"shop", "shop-6"}}, asks: true},
		"of another namespace":   {of: aService("team/shop, team/shop-6"), want: Asked{Namespace: "team", Leases: []string{"shop", "shop-6"}}, asks: true},
		"of its own, in full":    {of: aService("ns/shop,shop-6"), want: Asked{Namespace: "ns", Leases: []string{"shop", "shop-6"}}, asks: true},
		"of two namespaces":      {of: aService("team/shop,shop-6"), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"three":                  {of: aService("a,b,c"), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"the same twice":         {of: aService("a,a"), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"nothing":                {of: aService(""), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"half of two":            {of: aService("a,"), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"half of a name":         {of: aService("team/"), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"with a former wish":     {of: aService("a", address("10.0.0.1")), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"of another type":        {of: aService("shop", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })},
		"of another class":       {of: aService("shop", class("other")), want: Asked{Namespace: "ns"}, asks: true, wrong: true},
		"without":                {of: aService("x", unnamed)},
		"without, another class": {of: aService("x", unnamed, class("other"))},
		"of a class":             {of: aService("x", unnamed, class(ours)), want: Asked{Namespace: "ns", Class: ours}, asks: true},
		"of a class, and named":  {of: aService("shop", class(ours)), want: Asked{Namespace: "ns", Leases: []string{"shop"}}, asks: true},
		"of hosts":               {of: aService("shop", class("butler.butlerlabs.dev/host")), want: Asked{Namespace: "ns", Leases: []string{"shop"}, By: "Host"}, asks: true},
		"an address": {
			of: aService("x", unnamed, class(ours), address("203.0.113.7")), asks: true,
			want: Asked{Namespace: "ns", Class: ours, Leases: []string{"ip-203-0-113-7"}, Address: netip.MustParseAddr("203.0.113.7")},
		},
		"an address of IPv6": {
			of: aService("x", unnamed, class(ours), address("fd00::7")), asks: true,
			want: Asked{Namespace: "ns", Class: ours, Leases: []string{"ip-fd00-0000-0000-0000-0000-0000-0000-0007"}, Address: netip.MustParseAddr("fd00::7")},
		},
		"no address": {of: aService("x", unnamed, class(ours), address("here")), want: Asked{Namespace: "ns", Class: ours}, asks: true, wrong: true},
	} {
		got, asks := AskedOf(c.of)
		if c.asks && c.want.By == "" {
			c.want.By = v1alpha1.ShownByMetalLB
		}
		wrong := got.Problem != ""
		got.Problem = ""
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || asks != c.asks || wrong != c.wrong {
			t.Errorf("%s: asks %v, wrong %v: %s", name, asks, wrong, diff)
		}
	}
	// To another namespace than that of its leases it asks for nothing.
	if got := ServiceOf(aService("team/shop"), "ns"); len(got.Leases) > 0 || got.Problem != "" || got.Ref != (Ref{Name: "web"}) {
		t.Errorf("%+v", got)
	}
	if got := ServiceOf(aService("team/shop"), "team"); len(got.Leases) != 1 || got.Ref != (Ref{"ns", "web"}) {
		t.Errorf("%+v", got)
	}
}

func TestPublished(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	published := Published{Addresses: []netip.Addr{a}, Key: "k", Shared: true}
	alone := Published{Addresses: []netip.Addr{a}, Key: "k"}
	is := func(ips, key, ours string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for name, value := range map[string]string{ipsAnnotation: ips, sharedAnnotation: key, v1alpha1.LeasedAddressesAnnotation: ours} {
				if value != "" {
					s.Annotations[name] = value
				}
			}
			if ours != "" {
				s.Labels = map[string]string{v1alpha1.LeasedLabel: "true"}
			}
		}
	}
	unlabelled := func(s *corev1.Service) { s.Labels = nil }
	labelled := func(s *corev1.Service) { s.Labels = map[string]string{v1alpha1.LeasedLabel: "true"} }
	asks := func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.0.0.1" }
	for name, c := range map[string]struct {
		p Published
		s *corev1.Service
		// want is how it is published; nil: nothing is written.
		want *corev1.Service
	}{
		"new":                     {published, aService("shop"), aService("shop", is("10.0.0.1", "k", "10.0.0.1"))},
		"as it is":                {published, aService("shop", is("10.0.0.1", "k", "10.0.0.1")), nil},
		"a person's address":      {published, aService("shop", is("10.0.0.9", "k", "10.0.0.1")), aService("shop", is("10.0.0.1", "k", "10.0.0.1"))},
		"a person's key":          {published, aService("shop", is("10.0.0.1", "mine", "10.0.0.1")), aService("shop", is("10.0.0.1", "k", "10.0.0.1"))},
		"without the label":       {published, aService("shop", is("10.0.0.1", "k", "10.0.0.1"), unlabelled), aService("shop", is("10.0.0.1", "k", "10.0.0.1"))},
		"alone":                   {alone, aService("shop"), aService("shop", is("10.0.0.1", "", "10.0.0.1"))},
		"alone, not before":       {alone, aService("shop", is("10.0.0.1", "k", "10.0.0.1")), nil},
		"alone, a person's key":   {alone, aService("shop", is("10.0.0.1", "mine", "10.0.0.1")), aService("shop", is("10.0.0.1", "", "10.0.0.1"))},
		"shared by now":           {published, aService("shop", is("10.0.0.1", "", "10.0.0.1")), aService("shop", is("10.0.0.1", "k", "10.0.0.1"))},
		"no more":                 {Published{}, aService("shop", is("10.0.0.1", "k", "10.0.0.1")), aService("shop")},
		"never, and a person's":   {Published{}, aService("shop", is("10.0.0.1", "k", "")), nil},
		"never":                   {Published{}, aService("shop"), nil},
		"never, and labelled":     {Published{}, aService("shop", is("10.0.0.1", "k", ""), labelled), aService("shop", is("10.0.0.1", "k", ""))},
		"a person's, and granted": {published, aService("shop", is("10.0.0.1", "k", "")), aService("shop", is("10.0.0.1", "k", "10.0.0.1"))},
		"which asks for it":       {published, aService("shop", asks), aService("shop", asks, is("", "k", "10.0.0.1"))}, // MetalLB refuses what is said twice
	} {
		got := c.p.Of(c.s)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	left := func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
	}
	for name, c := range map[string]struct {
		s           *corev1.Service
		shows, left bool
	}{
		"nothing":           {s: aService("shop")},
		"its annotation":    {s: aService("shop", is("10.0.0.1", "k", "10.0.0.1")), shows: true},
		"its status":        {s: aService("shop", left), shows: true, left: true},
		"a person's":        {s: aService("shop", left, is("10.0.0.1", "", "")), shows: true},
		"both":              {s: aService("shop", left, is("10.0.0.1", "k", "10.0.0.1")), shows: true},
		"another address":   {s: aService("shop", is("10.0.0.10", "k", "10.0.0.10"))},
		"one of two":        {s: aService("shop", is("10.0.0.1,fd00::1", "k", "10.0.0.1,fd00::1")), shows: true},
		"in a former field": {s: aService("shop", left, func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.0.0.1" }), shows: true},
	} {
		if Shows(c.s, a) != c.shows || OnlyLeft(c.s, a) != c.left {
			t.Errorf("%s: shows %v, left %v", name, Shows(c.s, a), OnlyLeft(c.s, a))
		}
	}
}

// P3: a Service is published when all of its ports are on record with all of its leases, under its UID.
func TestRecorded(t *testing.T) {
	shop, six := leaseOf("shop", "10.0.0.1", held(tcp(80), "web"), held(tcp(443), "web")), leaseOf("shop-6", "fd00::1", held(tcp(80), "web"))
	for name, c := range map[string]struct {
		s    Service
		want bool
	}{
		"all":              {serviceOf("web", 0, []string{"shop"}, tcp(80), tcp(443)), true},
		"some":             {serviceOf("web", 0, []string{"shop"}, tcp(80), tcp(81)), false},
		"another's":        {serviceOf("other", 0, []string{"shop"}, tcp(80)), false},
		"one before it":    {Service{Ref: Ref{Name: "web"}, UID: "again", Leases: []string{"shop"}, Ports: []Port{tcp(80)}}, false},
		"of both":          {serviceOf("web", 0, []string{"shop", "shop-6"}, tcp(80)), true},
		"of one of two":    {serviceOf("web", 0, []string{"shop", "shop-6"}, tcp(443)), false},
		"of no such":       {serviceOf("web", 0, []string{"mail"}, tcp(80)), false},
		"asks for nothing": {serviceOf("web", 0, nil, tcp(80)), false},
	} {
		if got := Recorded(&c.s, []Lease{shop, six}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
