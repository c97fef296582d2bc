package hostlb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// Via is how a host that forwards by itself reaches the Pods of a Service.
type Via int

const (
	// NodePorts are reached on every Node, over the network of the hosts.
	NodePorts Via = iota
	// Endpoints are reached where the network of the Pods is routed.
	Endpoints
	// ClusterIPs are reached where that of the Services is.
	ClusterIPs
)

// Port is a port of a Service.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

// Backends are the addresses and ports that a host forwards each port of a Service to, in one family, ordered. A Service with
// externalTrafficPolicy Local is forwarded to Nodes that have a ready endpoint of it, and to no others. A port without a
// NodePort, where these are asked for, has no backend.
func Backends(s *corev1.Service, slicesOf []discoveryv1.EndpointSlice, nodes []corev1.Node, via Via, is6 bool) map[Port][]netip.AddrPort {
	out := map[Port][]netip.AddrPort{}
	local := LocalNodes(s, slicesOf)
	for _, p := range s.Spec.Ports {
		var to []netip.AddrPort
		switch via {
		case NodePorts:
			if p.NodePort > 0 {
				to = nodePorts(nodes, local, p.NodePort, is6)
			}
		case Endpoints:
			to = endpoints(slicesOf, &p, is6)
		case ClusterIPs:
			for _, text := range s.Spec.ClusterIPs {
				to = add(to, text, p.Port, is6)
			}
		}
		slices.SortFunc(to, netip.AddrPort.Compare)
		out[Port{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port}] = slices.Compact(to)
	}
	return out
}

// Sources are the networks of the clients that a Service is for, of both families; nil: it is for all. As kube-proxy has it, but for
// one thing: where all networks are of one family, no client of the other one is served, for the Service says whom it is for.
// What cannot be read is no network.
func Sources(s *corev1.Service) []netip.Prefix {
	all := s.Spec.LoadBalancerSourceRanges
	if len(all) == 0 {
		text := strings.TrimSpace(s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey])
		if text == "" {
			return nil
		}
		all = strings.Split(text, ",")
	}
	out := make([]netip.Prefix, 0, len(all))
	for _, text := range all {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// LocalNodes are the Nodes that a Service may be served on; nil: all.
func LocalNodes(s *corev1.Service, slicesOf []discoveryv1.EndpointSlice) map[string]bool {
	if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return nil
	}
	out := map[string]bool{}
	for i := range slicesOf {
		for _, e := range slicesOf[i].Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) && e.NodeName != nil {
				out[*e.NodeName] = true
			}
		}
	}
	return out
}

// Unreachable says why a port of a Service has no backend, where that does not end by itself; empty: it has, or may have.
func Unreachable(s *corev1.Service, port Port, nodes []corev1.Node, via Via, is6 bool) string {
	at := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return port == Port{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port}
	})
	if via != NodePorts || at < 0 {
		return ""
	}
	if s.Spec.Ports[at].NodePort == 0 {
		return "it forwards to NodePorts, and the Service has none; set its spec.allocateLoadBalancerNodePorts to true, or run the hosts with --backends=clusterip or endpoints"
	}
	living := slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return !ready(&n) })
	if len(living) > 0 && len(nodePorts(living, nil, s.Spec.Ports[at].NodePort, is6)) == 0 {
		return fmt.Sprintf("it forwards to NodePorts, and no Node has an internal address of IPv%d; use a lease of the other family, or run the hosts with --backends=clusterip or endpoints", family(is6))
	}
	return ""
}

func family(is6 bool) int {
	if is6 {
		return 6
	}
	return 4
}

// nodePorts are a port on the Nodes that are ready, by their internal addresses.
func nodePorts(nodes []corev1.Node, local map[string]bool, port int32, is6 bool) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range nodes {
		n := &nodes[i]
		if !ready(n) || (local != nil && !local[n.Name]) {
			continue
		}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				out = add(out, a.Address, port, is6)
			}
		}
	}
	return out
}

func ready(n *corev1.Node) bool {
	return n.DeletionTimestamp == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// endpoints are those of a port that are ready.
func endpoints(slicesOf []discoveryv1.EndpointSlice, p *corev1.ServicePort, is6 bool) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range slicesOf {
		for _, of := range slicesOf[i].Ports {
			if of.Port == nil || ptr.Deref(of.Name, "") != p.Name {
				continue
			}
			for _, e := range slicesOf[i].Endpoints {
				if !ptr.Deref(e.Conditions.Ready, true) {
					continue
				}
				for _, text := range e.Addresses {
					out = add(out, text, *of.Port, is6)
				}
			}
		}
	}
	return out
}

// add adds an address of the family.
func add(to []netip.AddrPort, text string, port int32, is6 bool) []netip.AddrPort {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Unmap().Is6() != is6 || port < 1 || port > 65535 {
		return to
	}
	return append(to, netip.AddrPortFrom(a.Unmap(), uint16(port)))
}
