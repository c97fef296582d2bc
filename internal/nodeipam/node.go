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

// nodeFromObject returns what the decisions need of a Node. Its labels are kept only while it has no CIDRs: they are
// most of it.
func nodeFromObject(o *corev1.Node) *podcidr.Node {
	out := &podcidr.Node{
		Name: o.Name, UID: o.UID, CreatedAt: o.CreationTimestamp.Time, ClusterCIDRName: unique.Make(o.Annotations[v1alpha1.ClusterCIDRAnnotation]).Value(),
		CIDRs: podCIDRsForNode(o), Deleting: o.DeletionTimestamp != nil,
	}
	if len(out.CIDRs) == 0 {
		out.Labels, out.LabelsTimeout = maps.Clone(o.Labels), labelsTimeout(o.Spec.Taints)
	}
	return out
}

// cloudProviderTaint is the taint of a Node that its cloud provider has not initialized yet.
const cloudProviderTaint = "node.cloudprovider.kubernetes.io/uninitialized"

// Labels of a Machine are synced to its Node some seconds after Cluster API finds it; those of a cloud come when its
// controller starts. Until then the Node has a taint. A Node without CIDRs starts no Pods of users, so the wait is
// bounded.
const (
	machineLabelsTimeout = 2 * time.Minute
	cloudLabelsTimeout   = 30 * time.Second
)

// labelsTimeout returns for how long a Node with these taints may still get labels.
func labelsTimeout(taints []corev1.Taint) (due time.Duration) {
	for _, t := range taints {
		switch t.Key {
		case clusterv1.NodeUninitializedTaint.Key:
			due = max(due, machineLabelsTimeout)
		case cloudProviderTaint:
			due = max(due, cloudLabelsTimeout)
		}
	}
	return due
}

// hashLabels returns a hash of labels, which is never 0, not even of no labels.
func hashLabels(labels map[string]string) (mark uint64) {
	for key, value := range labels {
		mark ^= maphash.Comparable(labelHashSeed, [2]string{key, value})
	}
	return mark | 1
}

var labelHashSeed = maphash.MakeSeed()

// podCIDRsForNode returns the CIDRs that a Node has. The API server accepts some texts that netip does not.
func podCIDRsForNode(o *corev1.Node) []netip.Prefix {
	texts := o.Spec.PodCIDRs
	if len(texts) == 0 && o.Spec.PodCIDR != "" {
		texts = []string{o.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range texts {
		if _, parsed, err := netutils.ParseCIDRSloppy(text); err == nil {
			if p, ok := netipx.FromStdIPNet(parsed); ok {
				out = append(out, p)
			}
		}
	}
	return out
}

// orderByFamily puts the family first that the cluster prefers: that of its first Service CIDR.
func orderByFamily(cidrs []netip.Prefix, first podcidr.Family) []netip.Prefix {
	if len(cidrs) == 2 && cidrs[0].Addr().Is4() != (first == podcidr.IPv4) {
		return []netip.Prefix{cidrs[1], cidrs[0]}
	}
	return cidrs
}
