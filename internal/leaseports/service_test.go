package leaseports

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func aService(annotation string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{}
	s.Name, s.Annotations = "web", map[string]string{v1alpha1.LeaseAnnotation: annotation}
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}
	for _, f := range change {
		f(s)
	}
	return s
}

func TestServiceOf(t *testing.T) {
	for name, c := range map[string]struct {
		of      *corev1.Service
		leases  []string
		problem bool
	}{
		"one":                {of: aService("shop"), leases: []string{"shop"}},
		"two":                {of: aService(" shop, shop-6"), leases: []string{"shop", "shop-6"}},
		"three":              {of: aService("a,b,c"), problem: true},
		"the same twice":     {of: aService("a,a"), problem: true},
		"nothing":            {of: aService(""), problem: true},
		"half of two":        {of: aService("a,"), problem: true},
		"with a former wish": {of: aService("a", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.0.0.1" }), problem: true},
		"of another type":    {of: aService("shop", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })},
		"of another class":   {of: aService("shop", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("other") }), problem: true},
		"without":            {of: aService("x", func(s *corev1.Service) { s.Annotations = nil })},
	} {
		got := ServiceOf(c.of)
		if diff := cmp.Diff(c.leases, got.Leases); diff != "" || c.problem != (got.Problem != "") {
			t.Errorf("%s: %v %q", name, got.Leases, got.Problem)
		}
	}
}

func TestAnnotations(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	published := Published{Addresses: []netip.Addr{a}, Key: "k"}
	is := func(ips, key, ours string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for name, value := range map[string]string{ipsAnnotation: ips, sharedAnnotation: key, v1alpha1.LeasedAddressesAnnotation: ours} {
				if value != "" {
					s.Annotations[name] = value
				}
			}
		}
	}
	for name, c := range map[string]struct {
		p     Published
		s     *corev1.Service
		write bool
	}{
		"new":                     {published, aService("shop"), true},
		"as it is":                {published, aService("shop", is("10.0.0.1", "k", "10.0.0.1")), false},
		"a person's address":      {published, aService("shop", is("10.0.0.9", "k", "10.0.0.1")), true},
		"a person's key":          {published, aService("shop", is("10.0.0.1", "mine", "10.0.0.1")), true},
		"no more":                 {Published{}, aService("shop", is("10.0.0.1", "k", "10.0.0.1")), true},
		"never, and a person's":   {Published{}, aService("shop", is("10.0.0.1", "k", "")), false},
		"never":                   {Published{}, aService("shop"), false},
		"a person's, and granted": {published, aService("shop", is("10.0.0.1", "k", "")), true},
	} {
		write := c.p.Annotations(c.s)
		if (write != nil) != c.write {
			t.Errorf("%s: %v", name, write)
		}
		for key, value := range write {
			if (value == nil) != (len(c.p.Addresses) == 0) {
				t.Errorf("%s: %s is %v", name, key, value)
			}
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
		"one before it":    {Service{Name: "web", UID: "again", Leases: []string{"shop"}, Ports: []Port{tcp(80)}}, false},
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
