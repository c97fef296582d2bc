package nodeipam

import (
	"maps"
	"net/netip"
	"unique"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// nodeOf is what decides of a Node. Its labels are kept only while it has no CIDRs: they are most of it.
func nodeOf(o *corev1.Node) *podcidr.Node {
	out := &podcidr.Node{
		Name: o.Name, UID: o.UID, Created: o.CreationTimestamp.Time, From: unique.Make(o.Annotations[v1alpha1.ClusterCIDRAnnotation]).Value(),
		CIDRs: cidrsOf(o), Deleting: o.DeletionTimestamp != nil,
	}
	if len(out.CIDRs) == 0 {
		out.Labels = maps.Clone(o.Labels)
	}
	return out
}

// cidrsOf are the CIDRs that a Node has. The API server takes some texts that netip does not.
func cidrsOf(o *corev1.Node) []netip.Prefix {
	texts := o.Spec.PodCIDRs
	if len(texts) == 0 && o.Spec.PodCIDR != "" {
		texts = []string{o.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range texts {
		if _, parsed, err := netutils.ParseCIDRSloppy(text); err == nil {
			if p, is := netipx.FromStdIPNet(parsed); is {
				out = append(out, p)
			}
		}
	}
	return out
}

// inOrder puts the family that the cluster prefers first: that of its first range for Services.
func inOrder(cidrs []netip.Prefix, first podcidr.Family) []netip.Prefix {
	if len(cidrs) == 2 && cidrs[0].Addr().Is4() != (first == podcidr.IPv4) {
		return []netip.Prefix{cidrs[1], cidrs[0]}
	}
	return cidrs
}
