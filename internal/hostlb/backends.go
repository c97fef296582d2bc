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

// BackendType is how a host that forwards traffic itself reaches the Pods of a Service.
type BackendType int

const (
	// NodePortBackends are reached on every Node, over the network of the hosts.
	NodePortBackends BackendType = iota
	// EndpointBackends are reached where the network of the Pods is routed.
	EndpointBackends
	// ClusterIPBackends are reached where the network of the Services is routed.
	ClusterIPBackends
)

// Port is a port of a Service.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

// BackendsByPort returns the addresses and ports to which a host forwards each port of a Service, in one family,
// sorted. A Service with externalTrafficPolicy Local is forwarded to Nodes that have a ready endpoint of it, and to no
// others. With NodePortBackends a port without a NodePort has no backend.
func BackendsByPort(s *corev1.Service, slicesOf []discoveryv1.EndpointSlice, nodes []corev1.Node, via BackendType, isIPv6 bool) map[Port][]netip.AddrPort {
	out := map[Port][]netip.AddrPort{}
	local := LocalNodes(s, slicesOf)
	for _, p := range s.Spec.Ports {
		var to []netip.AddrPort
		switch via {
		case NodePortBackends:
			if p.NodePort > 0 {
				to = nodePortAddresses(nodes, local, p.NodePort, isIPv6)
			}
		case EndpointBackends:
			to = readyEndpointAddresses(slicesOf, &p, isIPv6)
		case ClusterIPBackends:
			for _, text := range s.Spec.ClusterIPs {
				to = appendAddress(to, text, p.Port, isIPv6)
			}
		}
		slices.SortFunc(to, netip.AddrPort.Compare)
		out[Port{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port}] = slices.Compact(to)
	}
	return out
}

// ClientSourceRanges returns the networks of the clients that may use a Service, of both families; nil allows all
// clients. It follows kube-proxy with one exception: where all networks are of one family, no client of the other
// family is served, since the Service lists its clients. Entries that cannot be parsed are skipped; where none can be
// parsed, no client may use the Service.
func ClientSourceRanges(s *corev1.Service) []netip.Prefix {
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

// LocalNodes returns the Nodes that may serve a Service; nil allows all.
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

// UnreachableReason returns why a port of a Service has no backend and will not get one without a change; it is empty
// if the port has a backend, or may get one.
func UnreachableReason(s *corev1.Service, port Port, nodes []corev1.Node, via BackendType, isIPv6 bool) string {
	at := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return port == Port{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port}
	})
	if via != NodePortBackends || at < 0 {
		return ""
	}
	if s.Spec.Ports[at].NodePort == 0 {
		return "it forwards to NodePorts, and the Service has none; set its spec.allocateLoadBalancerNodePorts to true, or run the hosts with --backends=clusterip or endpoints"
	}
	living := slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return !isNodeReady(&n) })
	if len(living) > 0 && len(nodePortAddresses(living, nil, s.Spec.Ports[at].NodePort, isIPv6)) == 0 {
		return fmt.Sprintf("it forwards to NodePorts, and no Node has an internal address of IPv%d; use a lease of the other family, or run the hosts with --backends=clusterip or endpoints", familyNumber(isIPv6))
	}
	return ""
}

func familyNumber(isIPv6 bool) int {
	if isIPv6 {
		return 6
	}
	return 4
}

// nodePortAddresses returns the internal addresses of the Nodes that are ready, with a port; a local that is not nil
// limits the Nodes.
func nodePortAddresses(nodes []corev1.Node, local map[string]bool, port int32, isIPv6 bool) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range nodes {
		n := &nodes[i]
		if !isNodeReady(n) || (local != nil && !local[n.Name]) {
			continue
		}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				out = appendAddress(out, a.Address, port, isIPv6)
			}
		}
	}
	return out
}

func isNodeReady(n *corev1.Node) bool {
	return n.DeletionTimestamp == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// readyEndpointAddresses returns the addresses of the ready endpoints of a port.
func readyEndpointAddresses(slicesOf []discoveryv1.EndpointSlice, p *corev1.ServicePort, isIPv6 bool) []netip.AddrPort {
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
					out = appendAddress(out, text, *of.Port, isIPv6)
				}
			}
		}
	}
	return out
}

// appendAddress appends an address and port, if they are valid and of the family.
func appendAddress(to []netip.AddrPort, text string, port int32, isIPv6 bool) []netip.AddrPort {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Unmap().Is6() != isIPv6 || port < 1 || port > 65535 {
		return to
	}
	return append(to, netip.AddrPortFrom(a.Unmap(), uint16(port)))
}
