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
	// PerCluster: each workload cluster has the range for itself.
	PerCluster = "per cluster"
	// Unknown: who asks may not see who has it.
	Unknown = "unknown"
)

// ClusterUse is how a Cluster uses a range.
type ClusterUse struct {
	Cluster string `json:"cluster"`
	// Nodes is how many of its Nodes have a pod CIDR of the range, Free how many more can get one.
	Nodes int64 `json:"nodes"`
	Free  int64 `json:"free"`
}

// WhoOfNodes tells which Nodes have an address, or some of a prefix, as their pod CIDR or are about to, and what it is in
// the ClusterCIDRs that have it.
func WhoOfNodes(of PodCIDRs, a netip.Prefix, now time.Time) []Standing {
	v := of.view(now)
	out := of.holders(v, a)
	if len(out) == 0 {
		out = of.atRest(v, a)
	}
	for _, c := range of.fleet() {
		if r := nodeipam.ObjectOf(c).Range; r != nil && r.Covers([]netip.Prefix{a}) {
			out = append(out, perCluster(c, a))
		}
	}
	return out
}

// holders are the Nodes that have some of a prefix, by their ClusterCIDR, and those that were granted some of it.
func (p *PodCIDRs) holders(v *nodeipam.View, a netip.Prefix) (out []Standing) {
	for _, n := range v.Nodes() {
		if !overlaps(n.CIDRs, a) {
			continue
		}
		pool, detail := p.source(v, n)
		i := slices.IndexFunc(out, func(s Standing) bool { return s.Pool == pool })
		if i < 0 {
			i = len(out)
			out = append(out, Standing{Pool: pool, State: Used, Detail: detail})
		}
		out[i].Holders = append(out[i].Holders, p.holder(n.Name, joined(n.CIDRs)))
		if len(out[i].Holders) > 1 && a.IsSingleIP() {
			out[i].Detail = "more than one Node has it: drain and delete all but one of them, so that they register anew"
		}
	}
	for _, g := range p.inFlight() {
		if !overlaps(g.CIDRs, a) {
			continue
		}
		s := Standing{Pool: poolOfGrant(g.From), State: Granted, Detail: "its Node is about to be written; the grant is in " + fenceName}
		if !p.NodesHidden && p.node(g.UID) == nil {
			s.Detail = "its Node is gone; the manager takes the grant out of " + fenceName + " with its next write"
		}
		s.Holders = []Holder{p.holder(g.Node, joined(g.CIDRs))}
		out = append(out, s)
	}
	return out
}

// source is where the CIDRs of a Node are from.
func (p *PodCIDRs) source(v *nodeipam.View, n *podcidr.Node) (pool, detail string) {
	switch r := v.RangeOf(n); {
	case r != nil:
		return r.String(), ""
	case (p.Elsewhere || p.RangesHidden) && n.From != "":
		return poolOfGrant(n.From), ""
	case p.Elsewhere || p.RangesHidden:
		return "", "the Node does not say which ClusterCIDR it is of, so another allocator may have given it"
	}
	return "", "no ClusterCIDR has it, so another allocator gave it"
}

func poolOfGrant(from string) string {
	if from == "" {
		return ""
	}
	return v1alpha1.ClusterCIDRKind + " " + from
}

// holder is a Node, with the Machine and the Cluster that it names.
func (p *PodCIDRs) holder(name, has string) Holder {
	h := Holder{Kind: "Node", Name: name, Range: has}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Name != name {
			continue
		}
		h.Cluster = clusterOfNode(n)
		if machine := n.Annotations[clusterv1.MachineAnnotation]; machine != "" {
			h.Owners = []Owner{{Kind: "Machine", Name: n.Annotations[clusterv1.ClusterNamespaceAnnotation] + "/" + machine}}
		}
	}
	return h
}

// atRest says what a prefix is in the ranges for Nodes of which no Node has any.
func (p *PodCIDRs) atRest(v *nodeipam.View, a netip.Prefix) (out []Standing) {
	s := Standing{State: Free}
	if p.NodesHidden {
		s.State, s.Detail = Unknown, "you may not list Nodes, so who has it cannot be seen"
	}
	if service, is := v.ForServices(a); is {
		s.State, s.Detail = Reserved, fmt.Sprintf("%s is for Services", service)
	}
	for _, o := range v.Objects() {
		if o.Range == nil || !o.Range.Covers([]netip.Prefix{a}) {
			continue
		}
		in := s
		in.Pool = o.Range.String()
		if o.Closing && in.State == Free {
			in.Detail = "but the ClusterCIDR is being deleted, and gives nothing more"
		}
		out = append(out, in)
	}
	if p.State != nil && (p.Elsewhere || p.RangesHidden) {
		for _, o := range p.State.Open {
			if in := s; overlaps(o.CIDRs, a) {
				in.Pool = poolOfGrant(cmp.Or(o.For, o.Name)) // a block is for a ClusterCIDR
				if o.Draining && in.State == Free {
					in.Detail = "but its block is being given back, and gives nothing more"
				}
				out = append(out, in)
			}
		}
	}
	if len(out) == 0 && s.State == Reserved {
		out = append(out, s)
	}
	return out
}

// perCluster is what a prefix is in a range that each Cluster has for itself.
func perCluster(c *v1alpha1.ClusterCIDR, a netip.Prefix) Standing {
	s := Standing{
		Pool: nodeipam.RefOf(c).String(), State: PerCluster,
		Detail: "each Cluster has the whole range for itself, and only there it can be seen which Node has it",
	}
	for _, u := range c.Status.Clusters {
		s.Clusters = append(s.Clusters, ClusterUse{Cluster: u.Namespace + "/" + u.Name, Nodes: u.Nodes, Free: u.Free})
	}
	if len(s.Clusters) == 0 {
		s.Detail = "each Cluster has the whole range for itself; none uses it yet"
		return s
	}
	s.Do = askThere(c.Status.Clusters[0].Namespace, c.Status.Clusters[0].Name, a)
	return s
}

// askThere is how to ask a workload cluster who has a prefix.
func askThere(namespace, name string, a netip.Prefix) string {
	return fmt.Sprintf("clusterctl get kubeconfig %s -n %s > %s.kubeconfig && kubectl butler-ipam who %s --kubeconfig=%s.kubeconfig",
		name, namespace, name, strings.TrimSuffix(a.String(), fmt.Sprintf("/%d", a.Addr().BitLen())), name)
}

// ofNodes says of a block of pod CIDRs that the Nodes of its Cluster have what is in it; false: it is another block.
func ofNodes(h Holder, a netip.Prefix) (detail, do string, is bool) {
	block, is := h.Object.(*v1alpha1.IPAllocation)
	if !is || block.Spec.Type != v1alpha1.PodsAllocation {
		return "", "", false
	}
	detail = "the Nodes of its Cluster have pod CIDRs of the block"
	if of := block.Annotations[v1alpha1.ClusterCIDRAnnotation]; of != "" {
		detail += ", by ClusterCIDR " + of
	}
	return detail, askThere(block.Namespace, block.Spec.TenantClusterRef.Name, a), true
}
