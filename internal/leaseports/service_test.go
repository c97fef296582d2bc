package leaseports

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func newTestService(annotation string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{}
	s.Namespace, s.Name, s.Annotations = "ns", "web", map[string]string{v1alpha1.LeaseAnnotation: annotation}
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}
	for _, f := range change {
		f(s)
	}
	return s
}

func TestParseServiceRequest(t *testing.T) {
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
		// want is what the Service requests, without the text of a problem; wrong reports whether there is one.
		want  ServiceRequest
		asks  bool
		wrong bool
	}{
		"one":                    {of: newTestService("shop"), want: ServiceRequest{Namespace: "ns", LeaseNames: []string{"shop"}}, asks: true},
		"two":                    {of: newTestService(" shop, shop-6"), want: ServiceRequest{Namespace: "ns", LeaseNames: []string{"shop", "shop-6"}}, asks: true},
		"of another namespace":   {of: newTestService("team/shop, team/shop-6"), want: ServiceRequest{Namespace: "team", LeaseNames: []string{"shop", "shop-6"}}, asks: true},
		"of its own, in full":    {of: newTestService("ns/shop,shop-6"), want: ServiceRequest{Namespace: "ns", LeaseNames: []string{"shop", "shop-6"}}, asks: true},
		"of two namespaces":      {of: newTestService("team/shop,shop-6"), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"three":                  {of: newTestService("a,b,c"), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"the same twice":         {of: newTestService("a,a"), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"nothing":                {of: newTestService(""), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"half of two":            {of: newTestService("a,"), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"half of a name":         {of: newTestService("team/"), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"with a former wish":     {of: newTestService("a", address("10.0.0.1")), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"of another type":        {of: newTestService("shop", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })},
		"of another class":       {of: newTestService("shop", class("other")), want: ServiceRequest{Namespace: "ns"}, asks: true, wrong: true},
		"without":                {of: newTestService("x", unnamed)},
		"without, another class": {of: newTestService("x", unnamed, class("other"))},
		"of a class":             {of: newTestService("x", unnamed, class(ours)), want: ServiceRequest{Namespace: "ns", LoadBalancerClass: ours}, asks: true},
		"of a class, and named":  {of: newTestService("shop", class(ours)), want: ServiceRequest{Namespace: "ns", LeaseNames: []string{"shop"}}, asks: true},
		"of hosts":               {of: newTestService("shop", class("butler.butlerlabs.dev/host")), want: ServiceRequest{Namespace: "ns", LeaseNames: []string{"shop"}, ShownBy: "Host"}, asks: true},
		"an address": {
			of: newTestService("x", unnamed, class(ours), address("203.0.113.7")), asks: true,
			want: ServiceRequest{Namespace: "ns", LoadBalancerClass: ours, LeaseNames: []string{"ip-203-0-113-7"}, Address: netip.MustParseAddr("203.0.113.7")},
		},
		"an address of IPv6": {
			of: newTestService("x", unnamed, class(ours), address("fd00::7")), asks: true,
			want: ServiceRequest{Namespace: "ns", LoadBalancerClass: ours, LeaseNames: []string{"ip-fd00-0000-0000-0000-0000-0000-0000-0007"}, Address: netip.MustParseAddr("fd00::7")},
		},
		"no address": {of: newTestService("x", unnamed, class(ours), address("here")), want: ServiceRequest{Namespace: "ns", LoadBalancerClass: ours}, asks: true, wrong: true},
	} {
		got, asks := ParseServiceRequest(c.of)
		if c.asks && c.want.ShownBy == "" {
			c.want.ShownBy = v1alpha1.ShownByMetalLB
		}
		wrong := got.Problem != ""
		got.Problem = ""
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || asks != c.asks || wrong != c.wrong {
			t.Errorf("%s: asks %v, wrong %v: %s", name, asks, wrong, diff)
		}
	}
	// It requests nothing of a namespace other than that of its leases.
	if got := NewService(newTestService("team/shop"), "ns"); len(got.LeaseNames) > 0 || got.RequestProblem != "" || got.ServiceRef != (ServiceRef{Name: "web"}) {
		t.Errorf("%+v", got)
	}
	if got := NewService(newTestService("team/shop"), "team"); len(got.LeaseNames) != 1 || got.ServiceRef != (ServiceRef{"ns", "web"}) {
		t.Errorf("%+v", got)
	}
}

func TestApplyPublicationToService(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	published := Publication{Addresses: []netip.Addr{a}, SharingKey: "k", IsShared: true}
	alone := Publication{Addresses: []netip.Addr{a}, SharingKey: "k"}
	withAnnotations := func(ips, key, ours string) func(*corev1.Service) {
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
		p Publication
		s *corev1.Service
		// want is how it is published; nil if nothing is written.
		want *corev1.Service
	}{
		"new":                     {published, newTestService("shop"), newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1"))},
		"as it is":                {published, newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1")), nil},
		"a person's address":      {published, newTestService("shop", withAnnotations("10.0.0.9", "k", "10.0.0.1")), newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1"))},
		"a person's key":          {published, newTestService("shop", withAnnotations("10.0.0.1", "mine", "10.0.0.1")), newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1"))},
		"without the label":       {published, newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1"), unlabelled), newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1"))},
		"alone":                   {alone, newTestService("shop"), newTestService("shop", withAnnotations("10.0.0.1", "", "10.0.0.1"))},
		"alone, not before":       {alone, newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1")), nil},
		"alone, a person's key":   {alone, newTestService("shop", withAnnotations("10.0.0.1", "mine", "10.0.0.1")), newTestService("shop", withAnnotations("10.0.0.1", "", "10.0.0.1"))},
		"shared by now":           {published, newTestService("shop", withAnnotations("10.0.0.1", "", "10.0.0.1")), newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1"))},
		"no more":                 {Publication{}, newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1")), newTestService("shop")},
		"never, and a person's":   {Publication{}, newTestService("shop", withAnnotations("10.0.0.1", "k", "")), nil},
		"never":                   {Publication{}, newTestService("shop"), nil},
		"never, and labelled":     {Publication{}, newTestService("shop", withAnnotations("10.0.0.1", "k", ""), labelled), newTestService("shop", withAnnotations("10.0.0.1", "k", ""))},
		"a person's, and granted": {published, newTestService("shop", withAnnotations("10.0.0.1", "k", "")), newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1"))},
		"which asks for it":       {published, newTestService("shop", asks), newTestService("shop", asks, withAnnotations("", "k", "10.0.0.1"))}, // MetalLB refuses both
	} {
		got := c.p.ApplyToService(c.s)
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
		"nothing":           {s: newTestService("shop")},
		"its annotation":    {s: newTestService("shop", withAnnotations("10.0.0.1", "k", "10.0.0.1")), shows: true},
		"its status":        {s: newTestService("shop", left), shows: true, left: true},
		"a person's":        {s: newTestService("shop", left, withAnnotations("10.0.0.1", "", "")), shows: true},
		"both":              {s: newTestService("shop", left, withAnnotations("10.0.0.1", "k", "10.0.0.1")), shows: true},
		"another address":   {s: newTestService("shop", withAnnotations("10.0.0.10", "k", "10.0.0.10"))},
		"one of two":        {s: newTestService("shop", withAnnotations("10.0.0.1,fd00::1", "k", "10.0.0.1,fd00::1")), shows: true},
		"in a former field": {s: newTestService("shop", left, func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.0.0.1" }), shows: true},
	} {
		if ShowsAddress(c.s, a) != c.shows || HasOnlyStatusAddress(c.s, a) != c.left {
			t.Errorf("%s: shows %v, left %v", name, ShowsAddress(c.s, a), HasOnlyStatusAddress(c.s, a))
		}
	}
}

// TestHasRecordedPorts checks P3: a Service is published when all of its ports are on record with all of its leases,
// under its UID.
func TestHasRecordedPorts(t *testing.T) {
	shop, six := leaseOf("shop", "10.0.0.1", heldPort(tcp(80), "web"), heldPort(tcp(443), "web")), leaseOf("shop-6", "fd00::1", heldPort(tcp(80), "web"))
	for name, c := range map[string]struct {
		s    Service
		want bool
	}{
		"all":              {serviceOf("web", 0, []string{"shop"}, tcp(80), tcp(443)), true},
		"some":             {serviceOf("web", 0, []string{"shop"}, tcp(80), tcp(81)), false},
		"another's":        {serviceOf("other", 0, []string{"shop"}, tcp(80)), false},
		"one before it":    {Service{ServiceRef: ServiceRef{Name: "web"}, UID: "again", LeaseNames: []string{"shop"}, Ports: []Port{tcp(80)}}, false},
		"of both":          {serviceOf("web", 0, []string{"shop", "shop-6"}, tcp(80)), true},
		"of one of two":    {serviceOf("web", 0, []string{"shop", "shop-6"}, tcp(443)), false},
		"of no such":       {serviceOf("web", 0, []string{"mail"}, tcp(80)), false},
		"asks for nothing": {serviceOf("web", 0, nil, tcp(80)), false},
	} {
		if got := HasRecordedPorts(&c.s, []Lease{shop, six}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
