package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// The states of addresses in ranges of Nodes.
const (
	// StatePerCluster: each workload cluster has the whole range for itself.
	StatePerCluster = "per cluster"
	// StateUnknown: the user may not read which Node has it.
	StateUnknown = "unknown"
)

// ClusterUsage is the usage of a range by a Cluster.
type ClusterUsage struct {
	Cluster string `json:"cluster"`
	// Nodes counts its Nodes that have a pod CIDR of the range; Free counts the Nodes that can still get one.
	Nodes int64 `json:"nodes"`
	Free  int64 `json:"free"`
}

// DescribePodCIDR returns the Nodes that have an address, or some of a prefix, in their pod CIDRs or in a grant, and
// the state of that prefix in the ClusterCIDRs that contain it.
func DescribePodCIDR(of PodCIDRs, a netip.Prefix, now time.Time) []AddressStatus {
	v := of.newSnapshotView(now)
	out := of.describeHolders(v, a)
	if len(out) == 0 {
		out = of.describeUnusedPrefix(v, a)
	}
	for _, c := range of.fleetClusterCIDRs() {
		if r := nodeipam.RangeObjectFromClusterCIDR(c).Range; r != nil && r.OverlapsAny([]netip.Prefix{a}) {
			out = append(out, describePerCluster(c, a))
		}
	}
	return out
}

// describeHolders returns the Nodes that have some of a prefix, grouped by ClusterCIDR, and those with a grant of it in
// flight.
func (p *PodCIDRs) describeHolders(v *nodeipam.SnapshotView, a netip.Prefix) (out []AddressStatus) {
	for _, n := range v.Nodes() {
		if !overlapsAny(n.CIDRs, a) {
			continue
		}
		pool, detail := p.sourceForNode(v, n)
		i := slices.IndexFunc(out, func(s AddressStatus) bool { return s.Pool == pool })
		if i < 0 {
			i = len(out)
			out = append(out, AddressStatus{Pool: pool, State: StateUsed, Detail: detail})
		}
		out[i].Holders = append(out[i].Holders, p.newNodeHolder(n.Name, joinCIDRs(n.CIDRs)))
		if len(out[i].Holders) > 1 && a.IsSingleIP() {
			out[i].Detail = "more than one Node has it: drain and delete all but one of them, so that they register again"
		}
	}
	for _, g := range p.inFlightGrants() {
		if !overlapsAny(g.CIDRs, a) {
			continue
		}
		s := AddressStatus{Pool: formatClusterCIDR(g.ClusterCIDRName), State: StateGranted, Detail: "its Node is about to be written; the grant is in " + fenceConfigMapName}
		if !p.NodesHidden && p.nodeByUID(g.NodeUID) == nil {
			s.Detail = "its Node is gone; the manager takes the grant out of " + fenceConfigMapName + " with its next write"
		}
		s.Holders = []Holder{p.newNodeHolder(g.NodeName, joinCIDRs(g.CIDRs))}
		out = append(out, s)
	}
	return out
}

// sourceForNode returns where the CIDRs of a Node are from: the ClusterCIDR, or "" and a text about its absence.
func (p *PodCIDRs) sourceForNode(v *nodeipam.SnapshotView, n *podcidr.Node) (pool, detail string) {
	switch r := v.RangeForNode(n); {
	case r != nil:
		return r.String(), ""
	case (p.ManagedElsewhere || p.RangesHidden) && n.ClusterCIDRName != "":
		return formatClusterCIDR(n.ClusterCIDRName), ""
	case p.ManagedElsewhere || p.RangesHidden:
		return "", "the Node does not say which ClusterCIDR it is of, so another allocator may have given it"
	}
	return "", "no ClusterCIDR has it, so another allocator gave it"
}

func formatClusterCIDR(from string) string {
	if from == "" {
		return ""
	}
	return v1alpha1.ClusterCIDRKind + " " + from
}

// newNodeHolder returns a Node as a holder, with the Machine and the Cluster that its annotations name.
func (p *PodCIDRs) newNodeHolder(name, cidrs string) Holder {
	h := Holder{Kind: "Node", Name: name, Range: cidrs}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Name != name {
			continue
		}
		h.Cluster = clusterNameFromNode(n)
		if machine := n.Annotations[clusterv1.MachineAnnotation]; machine != "" {
			h.Owners = []Owner{{Kind: "Machine", Name: n.Annotations[clusterv1.ClusterNamespaceAnnotation] + "/" + machine}}
		}
	}
	return h
}

// describeUnusedPrefix returns the state of a prefix that no Node has some of, in each range for Nodes that contains
// some of it.
func (p *PodCIDRs) describeUnusedPrefix(v *nodeipam.SnapshotView, a netip.Prefix) (out []AddressStatus) {
	s := AddressStatus{State: StateFree}
	if p.NodesHidden {
		s.State, s.Detail = StateUnknown, "you may not list Nodes, so its holder is unknown"
	}
	if service, ok := v.OverlappingServiceCIDR(a); ok {
		s.State, s.Detail = StateReserved, fmt.Sprintf("%s is for Services", service)
	}
	for _, o := range v.RangeObjects() {
		if o.Range == nil || !o.Range.OverlapsAny([]netip.Prefix{a}) {
			continue
		}
		in := s
		in.Pool = o.Range.String()
		if o.Closing && in.State == StateFree {
			in.Detail = "but the ClusterCIDR is being deleted, and gives nothing more"
		}
		out = append(out, in)
	}
	if p.FenceState != nil && (p.ManagedElsewhere || p.RangesHidden) {
		for _, o := range p.FenceState.OpenRanges {
			if in := s; overlapsAny(o.CIDRs, a) {
				in.Pool = formatClusterCIDR(cmp.Or(o.ClusterCIDRName, o.Name)) // blocks name the ClusterCIDR that they are for
				if o.Draining && in.State == StateFree {
					in.Detail = "but its block is being released, and nothing more is granted from it"
				}
				out = append(out, in)
			}
		}
	}
	if len(out) == 0 && s.State == StateReserved {
		out = append(out, s)
	}
	return out
}

// describePerCluster returns the state of a prefix in a range that each Cluster has for itself.
func describePerCluster(c *v1alpha1.ClusterCIDR, a netip.Prefix) AddressStatus {
	s := AddressStatus{
		Pool: nodeipam.RefForClusterCIDR(c).String(), State: StatePerCluster,
		Detail: "each Cluster has the whole range for itself, and only there it can be seen which Node has it",
	}
	for _, u := range c.Status.Clusters {
		s.Clusters = append(s.Clusters, ClusterUsage{Cluster: u.Namespace + "/" + u.Name, Nodes: u.Nodes, Free: u.Free})
	}
	if len(s.Clusters) == 0 {
		s.Detail = "each Cluster has the whole range for itself; none uses it yet"
		return s
	}
	s.Advice = formatWorkloadQuery(c.Status.Clusters[0].Namespace, c.Status.Clusters[0].Name, a)
	return s
}

// formatWorkloadQuery returns the command that asks a workload cluster which Node has a prefix.
func formatWorkloadQuery(namespace, name string, a netip.Prefix) string {
	return fmt.Sprintf("clusterctl get kubeconfig %s -n %s > %s.kubeconfig && kubectl butler-ipam who %s --kubeconfig=%s.kubeconfig",
		name, namespace, name, strings.TrimSuffix(a.String(), fmt.Sprintf("/%d", a.Addr().BitLen())), name)
}

// describePodBlock describes a block of pod CIDRs, whose addresses the Nodes of its Cluster have; false for other
// blocks.
func describePodBlock(h Holder, a netip.Prefix) (detail, do string, ok bool) {
	block, ok := h.Object.(*v1alpha1.IPAllocation)
	if !ok || block.Spec.Type != v1alpha1.PodsAllocation {
		return "", "", false
	}
	detail = "the Nodes of its Cluster have pod CIDRs of the block"
	if of := block.Annotations[v1alpha1.ClusterCIDRAnnotation]; of != "" {
		detail += ", by ClusterCIDR " + of
	}
	return detail, formatWorkloadQuery(block.Namespace, block.Spec.TenantClusterRef.Name, a), true
}
