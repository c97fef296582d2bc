package inspect

import (
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// fenceName is the ConfigMap that says what is granted, as a person names it.
const fenceName = "ConfigMap " + fence.Namespace + "/" + fence.Name

// grant is what is on record for a Node.
type grant = fence.Grant

// PodCIDRs is what is known of the pod CIDRs of the Nodes of one cluster, and of the fleet that it manages.
type PodCIDRs struct {
	Nodes []corev1.Node
	// ClusterCIDRs are those of the cluster, for its own Nodes and for those of workload clusters.
	ClusterCIDRs []v1alpha1.ClusterCIDR
	// Elsewhere: the cluster has no such kind, so the ClusterCIDRs of its Nodes are in a management cluster, if anywhere.
	Elsewhere bool
	// Services are the CIDRs of Services.
	Services []netip.Prefix
	// State is what the ConfigMap says; nil: there is none, or it cannot be read. Damage: it cannot be understood.
	State  *fence.State
	Damage error
	// NodesHidden, RangesHidden and StateHidden: who asks may not read the Nodes, the ClusterCIDRs, the ConfigMap.
	NodesHidden, RangesHidden, StateHidden bool
	// Clusters are those of Cluster API, as far as they are known.
	Clusters []clusterv1.Cluster
	// Said is the last event of the manager about the Node in question, empty: it is not known.
	Said string
}

// view is what a manager would know of it.
func (p *PodCIDRs) view(now time.Time) *nodeipam.View {
	in := nodeipam.Moment{Nodes: p.Nodes, Services: p.Services, State: p.State, Damage: p.Damage}
	for i := range p.ClusterCIDRs {
		if c := &p.ClusterCIDRs[i]; nodeipam.IsLocal(c) {
			in.Objects = append(in.Objects, nodeipam.ObjectOf(c))
		}
	}
	return nodeipam.NewView(in, now)
}

// fleet are the ClusterCIDRs for workload clusters.
func (p *PodCIDRs) fleet() (out []*v1alpha1.ClusterCIDR) {
	for i := range p.ClusterCIDRs {
		if c := &p.ClusterCIDRs[i]; !nodeipam.IsLocal(c) {
			out = append(out, c)
		}
	}
	return out
}

// node is a Node by its UID; nil: there is none.
func (p *PodCIDRs) node(uid types.UID) *corev1.Node {
	for i := range p.Nodes {
		if p.Nodes[i].UID == uid {
			return &p.Nodes[i]
		}
	}
	return nil
}

// inFlight are the grants of which the Nodes do not show the CIDRs yet.
func (p *PodCIDRs) inFlight() (out []grant) {
	if p.State == nil {
		return nil
	}
	for _, g := range p.State.InFlight {
		if n := p.node(g.UID); n == nil || (n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) == 0) {
			out = append(out, g)
		}
	}
	return out
}

// cluster is the Cluster of the management cluster that has the Nodes, as the ConfigMap or a Node says; empty: neither
// does.
func (p *PodCIDRs) cluster(of *corev1.Node) string {
	if p.State != nil {
		if _, name, is := strings.Cut(p.State.Holder, "/"); is && strings.Trim(name, "/") != "" {
			return name
		}
	}
	if of == nil {
		return ""
	}
	return clusterOfNode(of)
}

func clusterOfNode(n *corev1.Node) string {
	namespace, name := n.Annotations[clusterv1.ClusterNamespaceAnnotation], n.Annotations[clusterv1.ClusterNameAnnotation]
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// joined writes CIDRs as a list.
func joined(cidrs []netip.Prefix) string {
	var out []string
	for _, p := range cidrs {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}

func overlaps(cidrs []netip.Prefix, p netip.Prefix) bool {
	for _, c := range cidrs {
		if c.Overlaps(p) {
			return true
		}
	}
	return false
}
