package hostlb

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// W29: a port that is not served through NodePorts is, when what is said is done.
func TestWhatIsSaidOfAPortHelps(t *testing.T) {
	nodes := []corev1.Node{node("n1", "10.1.0.1", corev1.ConditionTrue)}
	nodes[0].Status.Addresses = nodes[0].Status.Addresses[:1]
	web := Port{corev1.ProtocolTCP, 80}
	of := func(nodePort int32) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, NodePort: nodePort}}}}
	}
	const via = "run the hosts with --backends=clusterip or endpoints"
	if says := Unreachable(of(0), web, nodes, NodePorts, false); !strings.Contains(says, "set its spec.allocateLoadBalancerNodePorts to true, or "+via) {
		t.Error(says)
	}
	if says := Unreachable(of(30080), web, nodes, NodePorts, true); !strings.Contains(says, "use a lease of the other family, or "+via) {
		t.Error(says)
	}
	for name, says := range map[string]string{
		"a NodePort":   Unreachable(of(30080), web, nodes, NodePorts, false),
		"other family": Unreachable(of(30080), web, nodes, NodePorts, false),
		"ClusterIPs":   Unreachable(of(0), web, nodes, ClusterIPs, true),
		"endpoints":    Unreachable(of(0), web, nodes, Endpoints, true),
	} {
		if says != "" {
			t.Errorf("%s: %s", name, says)
		}
	}
}
