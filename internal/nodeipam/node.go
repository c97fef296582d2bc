package nodeipam

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"time"
	"unique"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

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
		out.Labels, out.LabelsDue = maps.Clone(o.Labels), labelsDue(o.Spec.Taints)
	}
	return out
}

// cloudTaint is that of a Node which its cloud provider has not looked at yet.
const cloudTaint = "node.cloudprovider.kubernetes.io/uninitialized"

// Labels of a Machine are synced to its Node some seconds after Cluster API finds it, those of a cloud come when its
// controller starts. Until then the Node has a taint. A Node without CIDRs starts no Pods of others, so the wait has an end.
const (
	machineLabelsDue = 2 * time.Minute
	cloudLabelsDue   = 30 * time.Second
)

// labelsDue is within what time labels come that a Node with such taints does not have yet.
func labelsDue(taints []corev1.Taint) (due time.Duration) {
	for _, t := range taints {
		switch t.Key {
		case clusterv1.NodeUninitializedTaint.Key:
			due = max(due, machineLabelsDue)
		case cloudTaint:
			due = max(due, cloudLabelsDue)
		}
	}
	return due
}

// markOf is a mark of labels, which others do not have. That of none is not 0.
func markOf(labels map[string]string) (mark uint64) {
	for key, value := range labels {
		mark ^= maphash.Comparable(markSeed, [2]string{key, value})
	}
	return mark | 1
}

var markSeed = maphash.MakeSeed()

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
