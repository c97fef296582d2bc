package metallb

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", CreationTimestamp: metav1.Unix(7, 0)},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

func withAnnotation(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value) }
}

func TestNewService(t *testing.T) {
	addr := netip.MustParseAddr
	tests := map[string]struct {
		reason string
		change func(*corev1.Service)
		want   func(*elastic.Service)
	}{
		"Plain": {reason: "one address of the family of its cluster IP", want: func(*elastic.Service) {}},
		"Old":   {reason: "an API server without clusterIPs", change: func(s *corev1.Service) { s.Spec.ClusterIPs = nil }, want: func(*elastic.Service) {}},
		"None":  {reason: "no cluster IP, no family", change: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, want: func(e *elastic.Service) { e.Families = nil }},
		"Class": {reason: "its load-balancer class", change: func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("x") }, want: func(e *elastic.Service) { e.LoadBalancerClass = "x" }},
		"Prefer": {reason: "two families, in their order", change: func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{"fd00::1", "10.96.0.1"}
			s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
		}, want: func(e *elastic.Service) {
			e.Families, e.FamilyPolicy = []elastic.Family{elastic.IPv6, elastic.IPv4}, elastic.PreferDualStack
		}},
		"Require": {reason: "or none", change: func(s *corev1.Service) { s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack) }, want: func(e *elastic.Service) { e.FamilyPolicy = elastic.RequireDualStack }},
		"Shares":  {reason: "a sharing key", change: withAnnotation("metallb.io/allow-shared-ip", "k"), want: func(e *elastic.Service) { e.SharingKey = "k" }},
		"Local": {reason: "with the backends that the traffic stays on", change: func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.Selector = map[string]string{"b": "2", "a": "1"}
		}, want: func(e *elastic.Service) { e.BackendKey = "a=1,b=2" }},
		"Former": {reason: "the name that an annotation had", change: withAnnotation("metallb.universe.tf/address-pool", "p"), want: func(e *elastic.Service) { e.RequestedPool = "p" }},
		"Newer": {reason: "goes after the one it has", change: func(s *corev1.Service) {
			withAnnotation("metallb.universe.tf/address-pool", "old")(s)
			withAnnotation("metallb.io/address-pool", "p")(s)
		}, want: func(e *elastic.Service) { e.RequestedPool = "p" }},
		"Field": {reason: "an address by the field", change: func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.0.0.9" }, want: func(e *elastic.Service) { e.RequestedIPs = []netip.Addr{addr("10.0.0.9")} }},
		"FieldOfTwo": {reason: "the field has one", change: func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.0.0.9,fd00::9" }, want: func(e *elastic.Service) {
			e.RequestProblem = `it asks for "10.0.0.9,fd00::9" in spec.loadBalancerIP, which is not an IP address`
		}},
		"FieldSpace": {reason: "as MetalLB reads it", change: func(s *corev1.Service) { s.Spec.LoadBalancerIP = " 10.0.0.9" }, want: func(e *elastic.Service) {
			e.RequestProblem = `it asks for " 10.0.0.9" in spec.loadBalancerIP, which is not an IP address`
		}},
		"Two": {reason: "or one of each family", change: withAnnotation("metallb.io/loadBalancerIPs", "10.0.0.9, fd00::9"), want: func(e *elastic.Service) { e.RequestedIPs = []netip.Addr{addr("10.0.0.9"), addr("fd00::9")} }},
		"Both": {reason: "not both ways", change: func(s *corev1.Service) {
			s.Spec.LoadBalancerIP = "10.0.0.9"
			withAnnotation("metallb.io/loadBalancerIPs", "10.0.0.9")(s)
		}, want: func(e *elastic.Service) {
			e.RequestProblem = "it has both spec.loadBalancerIP and the annotation metallb.io/loadBalancerIPs; remove one"
		}},
		"Text": {reason: "not what is no address", change: withAnnotation("metallb.io/loadBalancerIPs", "10.0.0.9,x"), want: func(e *elastic.Service) { e.RequestProblem = `it asks for "x", which is not an IP address` }},
		"Twice": {reason: "not two of a family", change: withAnnotation("metallb.io/loadBalancerIPs", "10.0.0.9,10.0.0.8"), want: func(e *elastic.Service) {
			e.RequestProblem = "it asks for 10.0.0.9,10.0.0.8; at most one address of each IP family is possible"
		}},
		"Has": {reason: "what it has; a name is no address", change: func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}, {Hostname: "h"}}
		}, want: func(e *elastic.Service) { e.Addresses = []netip.Addr{addr("10.0.0.1")} }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := elastic.Service{
				Namespace: "ns", Name: "web", Created: time.Unix(7, 0), Families: []elastic.Family{elastic.IPv4}, Ports: []elastic.Port{{Protocol: "TCP", Number: 80}},
			}
			tc.want(&want)
			if diff := cmp.Diff(want, NewService(service(tc.change)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestDoubleRequestAdviceHelps checks that a Service that requests an address in two ways requests it in one
// after the other is removed (W29).
func TestDoubleRequestAdviceHelps(t *testing.T) {
	both := service(func(s *corev1.Service) {
		s.Spec.LoadBalancerIP = "10.0.0.9"
		withAnnotation("metallb.io/loadBalancerIPs", "10.0.0.9")(s)
	})
	if problem := NewService(both).RequestProblem; !strings.HasSuffix(problem, "; remove one") {
		t.Fatal(problem)
	}
	for name, remove := range map[string]func(*corev1.Service){
		"the field":      func(s *corev1.Service) { s.Spec.LoadBalancerIP = "" },
		"the annotation": func(s *corev1.Service) { s.Annotations = nil },
	} {
		s := both.DeepCopy()
		remove(s)
		if got := NewService(s); got.RequestProblem != "" || len(got.RequestedIPs) != 1 {
			t.Errorf("without %s: %v, %q", name, got.RequestedIPs, got.RequestProblem)
		}
	}
}
