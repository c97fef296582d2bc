package inspect

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
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
	// Self is the Cluster that this cluster has of itself, where it manages itself: ClusterCIDRs for it are for these Nodes.
	Self *clusterv1.Cluster
	// Blocks are what that has of pools.
	Blocks []nodeipam.Block
	// Clusters are those of Cluster API, as far as they are known.
	Clusters []clusterv1.Cluster
	// Said is the last event of the manager about the Node in question, empty: it is not known.
	Said string
}

// view is what a manager would know of it.
func (p *PodCIDRs) view(now time.Time) *nodeipam.View {
	in := nodeipam.Moment{Nodes: p.Nodes, Services: p.Services, Blocks: p.Blocks, State: p.State, Damage: p.Damage}
	for i := range p.ClusterCIDRs {
		c := &p.ClusterCIDRs[i]
		if nodeipam.IsLocal(c) {
			in.Objects = append(in.Objects, nodeipam.ObjectOf(c))
		} else if o, is := p.own(c); is {
			in.Objects = append(in.Objects, o)
		}
	}
	return nodeipam.NewView(in, now)
}

// own is what a ClusterCIDR of a fleet is to a cluster that manages itself; false: it is for others.
func (p *PodCIDRs) own(c *v1alpha1.ClusterCIDR) (nodeipam.Object, bool) {
	if p.Self == nil {
		return nodeipam.Object{}, false
	}
	var has labels.Set // none: nothing is for it
	if _, wants := p.Self.Labels[v1alpha1.NodeCIDRsLabel]; wants {
		has = p.Self.Labels
	}
	return nodeipam.ObjectFor(c, nodeipam.Key{Namespace: p.Self.Namespace, Name: p.Self.Name}, has)
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

// Cluster is the Cluster that a management cluster has of this one, as namespace/name, as the ConfigMap or a Node says;
// empty: neither does.
func (p *PodCIDRs) Cluster() string {
	if p.State != nil {
		if _, name, is := strings.Cut(p.State.Holder, "/"); is && strings.Trim(name, "/") != "" {
			return name
		}
	}
	for i := range p.Nodes {
		if name := clusterOfNode(&p.Nodes[i]); name != "" {
			return name
		}
	}
	return ""
}

func clusterOfNode(n *corev1.Node) string {
	namespace, name := n.Annotations[clusterv1.ClusterNamespaceAnnotation], n.Annotations[clusterv1.ClusterNameAnnotation]
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// sourceOf is where a ClusterCIDR has its CIDRs from.
func sourceOf(o nodeipam.Object) string {
	out := []string{}
	for f, s := range o.Sources {
		if s == nil {
			continue
		}
		text := fmt.Sprintf("blocks of %s %s, for %d Nodes each", s.Pool.Kind, s.Pool.Name, s.PerBlock)
		if has := o.Range.All(podcidr.Family(f)); len(has) > 0 {
			text += " (" + joined(has) + ")"
		}
		out = append(out, text)
	}
	if named := joined(o.Range.Named()); named != "" {
		out = append([]string{named}, out...)
	}
	return strings.Join(out, ", ")
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
