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

// fenceConfigMapName names the ConfigMap that records the grants, as messages show it.
const fenceConfigMapName = "ConfigMap " + fence.ConfigMapNamespace + "/" + fence.ConfigMapName

// grant is an entry of that ConfigMap: the CIDRs that were granted to a Node.
type grant = fence.Grant

// PodCIDRs holds the objects that determine the pod CIDRs of the Nodes of one cluster, and of the fleet that it
// manages.
type PodCIDRs struct {
	Nodes []corev1.Node
	// ClusterCIDRs are those of the cluster, for its own Nodes and for the Nodes of workload clusters.
	ClusterCIDRs []v1alpha1.ClusterCIDR
	// ManagedElsewhere reports that the cluster does not have the kind ClusterCIDR, so the ClusterCIDRs of its Nodes
	// are in a management cluster, if anywhere.
	ManagedElsewhere bool
	// ServiceCIDRs are the CIDRs of Services.
	ServiceCIDRs []netip.Prefix
	// FenceState is the content of the ConfigMap; nil where there is none, or it cannot be read. FenceDamage is the
	// error where the content cannot be decoded.
	FenceState  *fence.State
	FenceDamage error
	// NodesHidden, RangesHidden and FenceHidden report that the user may not read the Nodes, the ClusterCIDRs, the
	// ConfigMap.
	NodesHidden, RangesHidden, FenceHidden bool
	// SelfCluster is the Cluster object of this cluster, where it manages itself: ClusterCIDRs for it are for these
	// Nodes.
	SelfCluster *clusterv1.Cluster
	// SelfBlocks are the blocks that SelfCluster has of pools.
	SelfBlocks []nodeipam.Block
	// Clusters are the Clusters of Cluster API that could be read.
	Clusters []clusterv1.Cluster
	// LastEvent is the message of the manager's last event about the explained Node; empty where it could not be read.
	LastEvent string
}

// newSnapshotView returns the state that a manager would have of these objects.
func (p *PodCIDRs) newSnapshotView(now time.Time) *nodeipam.SnapshotView {
	in := nodeipam.Snapshot{Nodes: p.Nodes, ServiceCIDRs: p.ServiceCIDRs, Blocks: p.SelfBlocks, FenceState: p.FenceState, FenceErr: p.FenceDamage}
	for i := range p.ClusterCIDRs {
		c := &p.ClusterCIDRs[i]
		if nodeipam.IsLocal(c) {
			in.RangeObjects = append(in.RangeObjects, nodeipam.RangeObjectFromClusterCIDR(c))
		} else if o, ok := p.objectForSelf(c); ok {
			in.RangeObjects = append(in.RangeObjects, o)
		}
	}
	return nodeipam.NewSnapshotView(in, now)
}

// objectForSelf returns a fleet's ClusterCIDR as a range of the Nodes of SelfCluster; false where it is not for
// SelfCluster.
func (p *PodCIDRs) objectForSelf(c *v1alpha1.ClusterCIDR) (nodeipam.RangeObject, bool) {
	if p.SelfCluster == nil {
		return nodeipam.RangeObject{}, false
	}
	var clusterLabels labels.Set // nil: no ClusterCIDR selects it
	if _, wants := p.SelfCluster.Labels[v1alpha1.NodeCIDRsLabel]; wants {
		clusterLabels = p.SelfCluster.Labels
	}
	return nodeipam.RangeObjectForCluster(c, nodeipam.ClusterKey{Namespace: p.SelfCluster.Namespace, Name: p.SelfCluster.Name}, clusterLabels)
}

// fleetClusterCIDRs returns the ClusterCIDRs for workload clusters.
func (p *PodCIDRs) fleetClusterCIDRs() (out []*v1alpha1.ClusterCIDR) {
	for i := range p.ClusterCIDRs {
		if c := &p.ClusterCIDRs[i]; !nodeipam.IsLocal(c) {
			out = append(out, c)
		}
	}
	return out
}

// nodeByUID returns the Node with a UID; nil where there is none.
func (p *PodCIDRs) nodeByUID(uid types.UID) *corev1.Node {
	for i := range p.Nodes {
		if p.Nodes[i].UID == uid {
			return &p.Nodes[i]
		}
	}
	return nil
}

// inFlightGrants returns the grants whose Nodes do not show the CIDRs yet.
func (p *PodCIDRs) inFlightGrants() (out []grant) {
	if p.FenceState == nil {
		return nil
	}
	for _, g := range p.FenceState.InFlight {
		if n := p.nodeByUID(g.NodeUID); n == nil || (n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) == 0) {
			out = append(out, g)
		}
	}
	return out
}

// ClusterName returns the Cluster object that a management cluster has of this cluster, as namespace/name, from the
// ConfigMap or the annotations of a Node; "" where neither names one.
func (p *PodCIDRs) ClusterName() string {
	if p.FenceState != nil {
		if _, name, ok := strings.Cut(p.FenceState.Holder, "/"); ok && strings.Trim(name, "/") != "" {
			return name
		}
	}
	for i := range p.Nodes {
		if name := clusterNameFromNode(&p.Nodes[i]); name != "" {
			return name
		}
	}
	return ""
}

func clusterNameFromNode(n *corev1.Node) string {
	namespace, name := n.Annotations[clusterv1.ClusterNamespaceAnnotation], n.Annotations[clusterv1.ClusterNameAnnotation]
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// describeCIDRSource describes where a ClusterCIDR takes its CIDRs from.
func describeCIDRSource(o nodeipam.RangeObject) string {
	out := []string{}
	for f, s := range o.BlockSources {
		if s == nil {
			continue
		}
		text := fmt.Sprintf("blocks of %s %s, for %d Nodes each", s.PoolRef.Kind, s.PoolRef.Name, s.NodesPerBlock)
		if cidrs := o.Range.CIDRsForFamily(podcidr.Family(f)); len(cidrs) > 0 {
			text += " (" + joinCIDRs(cidrs) + ")"
		}
		out = append(out, text)
	}
	if named := joinCIDRs(o.Range.StaticCIDRs()); named != "" {
		out = append([]string{named}, out...)
	}
	return strings.Join(out, ", ")
}

// joinCIDRs joins CIDRs with commas.
func joinCIDRs(cidrs []netip.Prefix) string {
	var out []string
	for _, p := range cidrs {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}

func overlapsAny(cidrs []netip.Prefix, p netip.Prefix) bool {
	for _, c := range cidrs {
		if c.Overlaps(p) {
			return true
		}
	}
	return false
}
