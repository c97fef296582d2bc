package hostlb

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func node(name, address string, ready corev1.ConditionStatus) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: "fd00::" + name[1:]}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		},
	}
}

func TestBackendsByPort(t *testing.T) {
	nodes := []corev1.Node{node("n2", "10.1.0.2", corev1.ConditionTrue), node("n1", "10.1.0.1", corev1.ConditionTrue), node("n3", "10.1.0.3", corev1.ConditionUnknown)}
	endpointsOf := []discoveryv1.EndpointSlice{{
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("web"), Port: ptr.To[int32](8080)}, {Name: ptr.To("dns"), Port: ptr.To[int32](5353)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.0.1"}, NodeName: ptr.To("n1")},
			{Addresses: []string{"10.244.0.2"}, NodeName: ptr.To("n2"), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}},
			{Addresses: []string{"10.244.0.9"}, NodeName: ptr.To("n3"), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
		},
	}}
	service := func(policy corev1.ServiceExternalTrafficPolicy) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{
			ExternalTrafficPolicy: policy, ClusterIPs: []string{"10.96.0.7", "fd00:96::7"},
			Ports: []corev1.ServicePort{{Name: "web", Port: 80, NodePort: 30080}, {Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}},
		}}
	}
	web, dns := Port{corev1.ProtocolTCP, 80}, Port{corev1.ProtocolUDP, 53}
	for name, c := range map[string]struct {
		policy corev1.ServiceExternalTrafficPolicy
		via    BackendType
		is6    bool
		want   map[Port]string
	}{
		"node ports, of nodes that are ready": {via: NodePortBackends, want: map[Port]string{web: "[10.1.0.1:30080 10.1.0.2:30080]", dns: "[]"}},
		"of IPv6":                             {via: NodePortBackends, is6: true, want: map[Port]string{web: "[[fd00::1]:30080 [fd00::2]:30080]", dns: "[]"}},
		"of nodes with an endpoint":           {policy: corev1.ServiceExternalTrafficPolicyLocal, via: NodePortBackends, want: map[Port]string{web: "[10.1.0.1:30080]", dns: "[]"}},
		"endpoints that are ready":            {via: EndpointBackends, want: map[Port]string{web: "[10.244.0.1:8080 10.244.0.9:8080]", dns: "[10.244.0.1:5353 10.244.0.9:5353]"}},
		"the cluster address":                 {via: ClusterIPBackends, want: map[Port]string{web: "[10.96.0.7:80]", dns: "[10.96.0.7:53]"}},
		"the cluster address of IPv6":         {via: ClusterIPBackends, is6: true, want: map[Port]string{web: "[[fd00:96::7]:80]", dns: "[[fd00:96::7]:53]"}},
	} {
		got := map[Port]string{}
		for p, to := range BackendsByPort(service(c.policy), endpointsOf, nodes, c.via, c.is6) {
			if to == nil {
				to = []netip.AddrPort{}
			}
			got[p] = fmt.Sprint(to)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestClientSourceRanges checks that the clients of a Service are those in its spec or, without that, in its
// annotation. Where neither can be parsed, no client may connect.
func TestClientSourceRanges(t *testing.T) {
	prefixes := func(texts ...string) []netip.Prefix {
		out := []netip.Prefix{}
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	for name, c := range map[string]struct {
		ranges     []string
		annotation string
		want       []netip.Prefix
	}{
		"all":                        {},
		"those of the spec":          {ranges: []string{"192.0.2.9/24", " 2001:db8::/32 "}, want: prefixes("192.0.2.0/24", "2001:db8::/32")},
		"those of the annotation":    {annotation: "192.0.2.0/24, 198.51.100.0/24", want: prefixes("192.0.2.0/24", "198.51.100.0/24")},
		"the spec, not the other":    {ranges: []string{"192.0.2.0/24"}, annotation: "0.0.0.0/0", want: prefixes("192.0.2.0/24")},
		"an annotation of nothing":   {annotation: " "},
		"nothing that can be read":   {ranges: []string{"anything"}, want: prefixes()},
		"one that cannot be read":    {ranges: []string{"anything", "192.0.2.0/24"}, want: prefixes("192.0.2.0/24")},
		"a range that is an address": {ranges: []string{"192.0.2.1"}, want: prefixes()},
	} {
		s := &corev1.Service{Spec: corev1.ServiceSpec{LoadBalancerSourceRanges: c.ranges}}
		if c.annotation != "" {
			s.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: c.annotation}
		}
		if diff := cmp.Diff(c.want, ClientSourceRanges(s), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestUnreachableReason checks that a port without a backend is reported where that does not end by itself, and not
// where only no endpoint or no Node is ready.
func TestUnreachableReason(t *testing.T) {
	four := func(name string, ready corev1.ConditionStatus) corev1.Node {
		n := node(name, "10.1.0.1", ready)
		n.Status.Addresses = n.Status.Addresses[:1]
		return n
	}
	s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}, {Protocol: corev1.ProtocolUDP, Port: 53}}}}
	web, dns := Port{corev1.ProtocolTCP, 80}, Port{corev1.ProtocolUDP, 53}
	for name, c := range map[string]struct {
		port  Port
		nodes []corev1.Node
		via   BackendType
		is6   bool
		want  string
	}{
		"all is well":            {port: web, nodes: []corev1.Node{four("n1", corev1.ConditionTrue)}},
		"no NodePort":            {port: dns, nodes: []corev1.Node{four("n1", corev1.ConditionTrue)}, want: "allocateLoadBalancerNodePorts"},
		"none is needed":         {port: dns, via: ClusterIPBackends},
		"no Node":                {port: web},
		"no Node is ready":       {port: web, nodes: []corev1.Node{four("n1", corev1.ConditionFalse)}, is6: true},
		"no Node of its family":  {port: web, nodes: []corev1.Node{four("n1", corev1.ConditionTrue)}, is6: true, want: "no Node has an internal address of IPv6"},
		"a port that it has not": {port: Port{corev1.ProtocolTCP, 81}},
	} {
		if got := UnreachableReason(s, c.port, c.nodes, c.via, c.is6); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
