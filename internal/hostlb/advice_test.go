package hostlb

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPortMessagesNameStepsThatHelp checks that a port that NodePortBackends cannot serve is served once its message is
// followed (W29).
func TestPortMessagesNameStepsThatHelp(t *testing.T) {
	nodes := []corev1.Node{node("n1", "10.1.0.1", corev1.ConditionTrue)}
	nodes[0].Status.Addresses = nodes[0].Status.Addresses[:1]
	web := Port{corev1.ProtocolTCP, 80}
	of := func(nodePort int32) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, NodePort: nodePort}}}}
	}
	const via = "run the hosts with --backends=clusterip or endpoints"
	if message := UnreachableReason(of(0), web, nodes, NodePortBackends, false); !strings.Contains(message, "set its spec.allocateLoadBalancerNodePorts to true, or "+via) {
		t.Error(message)
	}
	if message := UnreachableReason(of(30080), web, nodes, NodePortBackends, true); !strings.Contains(message, "use a lease of the other family, or "+via) {
		t.Error(message)
	}
	for name, message := range map[string]string{
		"a NodePort":   UnreachableReason(of(30080), web, nodes, NodePortBackends, false),
		"other family": UnreachableReason(of(30080), web, nodes, NodePortBackends, false),
		"ClusterIPs":   UnreachableReason(of(0), web, nodes, ClusterIPBackends, true),
		"endpoints":    UnreachableReason(of(0), web, nodes, EndpointBackends, true),
	} {
		if message != "" {
			t.Errorf("%s: %s", name, message)
		}
	}
}
