package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

const oneAllocator = "run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only"

// explainedNode is an explanation of a Node in the making.
type explainedNode struct {
	*PodCIDRs
	view *nodeipam.View
	node *podcidr.Node
	e    Explanation
}

// ExplainNode says why a Node has its pod CIDRs, or none; false: there is no such Node.
func ExplainNode(of PodCIDRs, name string, now time.Time) (Explanation, bool) {
	x := explainedNode{PodCIDRs: &of, view: of.view(now), e: Explanation{Subject: "Node " + name}}
	nodes := x.view.Nodes()
	i := slices.IndexFunc(nodes, func(n *podcidr.Node) bool { return n.Name == name })
	if i < 0 {
		return x.e, false
	}
	x.node = nodes[i]
	flight := slices.IndexFunc(of.inFlight(), func(g grant) bool { return g.UID == x.node.UID })
	switch {
	case len(x.node.CIDRs) > 0:
		x.has()
	case flight >= 0:
		x.granted(of.inFlight()[flight])
	case x.node.Deleting:
		x.e.Verdict = "has no pod CIDR"
		x.add("it is being deleted: a Node that is being deleted gets none", "")
	default:
		x.waits()
	}
	return x.e, true
}

func (x *explainedNode) add(what, do string) {
	x.e.Findings = append(x.e.Findings, Finding{what, do})
}

// has explains a Node that has CIDRs.
func (x *explainedNode) has() {
	n := x.node
	x.e.Served, x.e.Verdict = true, "has "+joined(n.CIDRs)
	pool, _ := x.source(x.view, n)
	if pool != "" {
		x.e.Verdict += " of " + pool
	}
	for _, note := range x.view.Says(n.UID) {
		if note.Reason == nodeipam.PodCIDRForeign && (x.Elsewhere || x.RangesHidden) {
			continue // the ranges are not known
		}
		x.e.Served = x.e.Served && note.Reason == nodeipam.PodCIDRForeign
		x.add(note.Message, "")
	}
	if x.State != nil {
		for _, g := range x.State.InFlight {
			if g.UID == n.UID && !slices.Equal(g.CIDRs, n.CIDRs) {
				x.add(fmt.Sprintf("%s was granted to it, and somebody else has set what it has", joined(g.CIDRs)), oneAllocator)
			}
		}
	}
	x.e.Details = append(x.e.Details, Detail{"from", []string{x.attribution()}})
	if n.Deleting {
		x.e.Details = append(x.e.Details, Detail{"until", []string{"it is being deleted, and keeps them until it is gone"}})
	}
}

// attribution is how it is known which ClusterCIDR the CIDRs of a Node are of.
func (x *explainedNode) attribution() string {
	n := x.node
	named := fmt.Sprintf("its annotation %s names ClusterCIDR %s", v1alpha1.ClusterCIDRAnnotation, n.From)
	none := "it has no annotation " + v1alpha1.ClusterCIDRAnnotation
	switch r := x.view.RangeOf(n); {
	case n.From == "" && r == nil:
		return none + ": another allocator has given them"
	case n.From == "":
		return fmt.Sprintf("%s has these addresses: %s; %s, as where another allocator has given them", r, joined(r.CIDRs()), none)
	case x.Elsewhere || x.RangesHidden:
		return named
	case r == nil:
		return named + ", which does not have these addresses, or is gone"
	case r.Name != n.From:
		return fmt.Sprintf("%s, which does not have these addresses, or is gone; %s has them: %s", named, r, joined(r.CIDRs()))
	default:
		return fmt.Sprintf("%s: %s", named, joined(r.CIDRs()))
	}
}

// granted explains a Node whose grant is in flight.
func (x *explainedNode) granted(g grant) {
	x.e.Verdict = "is being given " + joined(g.CIDRs)
	if pool := poolOfGrant(g.From); pool != "" {
		x.e.Verdict += " of " + pool
	}
	x.add("the grant is in "+fenceName+", and the Node does not have it yet", "it is a matter of a moment; "+x.ifItStays())
	x.refused()
}

// refused says that the API server refuses what the manager writes, as the manager has said.
func (x *explainedNode) refused() {
	for i := range x.ClusterCIDRs {
		c := meta.FindStatusCondition(x.ClusterCIDRs[i].Status.Conditions, v1alpha1.ReadyCondition)
		if c != nil && c.Status == metav1.ConditionFalse && (c.Reason == v1alpha1.NodesRefusedReason || c.Reason == v1alpha1.FenceRefusedReason) {
			x.add(c.Message, adviceOnRange[c.Reason])
			return
		}
	}
}

func (x *explainedNode) ifItStays() string {
	if x.Elsewhere {
		return "if it stays so, see that a manager runs in the management cluster with --node-cidrs=on or fleet, and that it reaches this cluster"
	}
	return "if it stays so, see that a manager runs here, with --node-cidrs=on, own or only"
}

// waits explains a Node that has nothing.
func (x *explainedNode) waits() {
	x.e.Verdict = "waits for its pod CIDR"
	if s := x.view.Report.Stopped; s != nil {
		x.add(s.Message, adviceOnRange[s.Reason])
	}
	if x.State == nil && x.Damage == nil && !x.StateHidden {
		text := "no manager has given CIDRs to Nodes of this cluster yet: there is no " + fenceName
		do := "docs/node-cidrs.md#the-first-node: does a manager run, with --node-cidrs=on, own or only, and are its roles bound?"
		if x.Elsewhere {
			do = "docs/node-cidrs.md#nodes-of-workload-clusters: is this the cluster of a Cluster with the label " + v1alpha1.NodeCIDRsLabel + "?"
		}
		x.add(text, do)
	}
	if x.Elsewhere || x.RangesHidden {
		x.waitsForRangesElsewhere()
		return
	}
	if !x.NodesHidden {
		x.waitsForRanges()
	}
	x.e.Details = append(x.e.Details, Detail{"tried", x.tried()})
}

// waitsForRangesElsewhere explains a Node whose ClusterCIDRs cannot be seen.
func (x *explainedNode) waitsForRangesElsewhere() {
	if x.Said != "" {
		x.add("the manager said: "+x.Said, "")
	}
	if !x.Elsewhere {
		return
	}
	text, do := "the ClusterCIDRs for it are in the management cluster", "there: kubectl get clustercidrs -o wide"
	if cluster := x.Cluster(); cluster != "" {
		namespace, name, _ := strings.Cut(cluster, "/")
		text += ", where this cluster is Cluster " + cluster
		do += fmt.Sprintf("; kubectl get cluster -n %s %s -o jsonpath='{.status.conditions[?(@.type==%q)].message}'", namespace, name, v1alpha1.PodCIDRsReadyCondition)
	}
	x.add(text, do)
}

// waitsForRanges says what the manager would do with the Node now.
func (x *explainedNode) waitsForRanges() {
	for _, note := range x.view.Says(x.node.UID) {
		if note.Reason == nodeipam.CIDRNotAvailable {
			x.add(note.Message, "docs/node-cidrs.md#a-cluster-that-is-full; `kubectl get clustercidrs -o wide` shows how full they are")
		}
	}
	if why, _ := x.view.Refused(x.node.UID); why.Growing {
		x.add("a ClusterCIDR that is for it is to get another block of its pool", "kubectl get ipallocations -A shows whether the pool gives one; "+x.ifItStays())
	}
	before := len(x.e.Findings)
	x.refused()
	g, is := x.view.Planned(x.node.UID)
	if !is || x.Damage != nil || len(x.e.Findings) > before {
		return
	}
	text := fmt.Sprintf("it is to be given %s of %s", joined(g.CIDRs), g.From)
	if before == 0 {
		text = "nothing is in its way: it is about to be given " + joined(g.CIDRs) + " of " + g.From.String()
	}
	if n := x.view.Waiting(); n > 1 {
		text += fmt.Sprintf("; %d Nodes wait, the oldest is served first", n)
	}
	x.add(text, x.ifItStays())
}

// tried are the ClusterCIDRs in the order in which they are tried, and why each does not serve the Node.
func (x *explainedNode) tried() (out []string) {
	rank := 0
	for _, c := range x.view.Choices(x.node) {
		before := "- "
		if c.Selects {
			rank++
			before = fmt.Sprintf("%d.", rank)
		}
		name := c.Name
		if c.Range != nil {
			name += ", " + sourceOf(c.Object)
		}
		out = append(out, fmt.Sprintf("%s %s: %s", before, name, x.standing(c)))
	}
	for _, c := range x.fleet() {
		if _, own := x.own(c); !own {
			out = append(out, fmt.Sprintf("-  %s: is for workload clusters", c.Name))
		}
	}
	if len(out) == 0 {
		out = []string{"there is no ClusterCIDR"}
	}
	return out
}

// standing is what a ClusterCIDR is to the Node.
func (x *explainedNode) standing(c nodeipam.Choice) string {
	if x.NodesHidden {
		c.Usage = x.saidOf(c)
	}
	why, _ := x.view.Refused(x.node.UID)
	switch {
	case c.Range == nil:
		return fmt.Sprintf("is not valid: %v", c.Invalid.ToAggregate())
	case !c.Selects:
		return "does not select it; it is for " + nodesWith(c.Range)
	case c.Closing:
		return "is being deleted, and gives nothing more"
	case why.Growing && slices.Contains(why.Full, c.Ref) && c.Range.Grows:
		return "it is to get another block, which the Node waits for"
	case c.Free > 0 && slices.Contains(why.Full, c.Ref):
		return fmt.Sprintf("what is free (%d of %d) goes to Nodes that are older", c.Free, c.Capacity)
	case c.Free > 0:
		return fmt.Sprintf("has room: %d of %d node CIDRs are free", c.Free, c.Capacity)
	case c.Allocated < c.Capacity:
		return fmt.Sprintf("full (%d/%d); other ClusterCIDRs, Services, grants in flight or other allocators have the rest", c.Allocated, c.Capacity)
	}
	return fmt.Sprintf("full (%d/%d)", c.Allocated, c.Capacity)
}

// saidOf is how a ClusterCIDR is used, as its status says.
func (x *explainedNode) saidOf(c nodeipam.Choice) nodeipam.Usage {
	for i := range x.ClusterCIDRs {
		if s := x.ClusterCIDRs[i].Status; nodeipam.RefOf(&x.ClusterCIDRs[i]) == c.Ref {
			return nodeipam.Usage{Capacity: s.Capacity, Allocated: s.Allocated, Free: s.Free}
		}
	}
	return c.Usage
}

func nodesWith(r *podcidr.Range) string {
	if s := r.Selects(); s == podcidr.All || s == podcidr.None {
		return s
	}
	return "Nodes with " + r.Selects()
}

// adviceOnRange is what to do about the reasons of a ClusterCIDR.
var adviceOnRange = map[string]string{
	v1alpha1.ValidationFailedReason: "create another ClusterCIDR, and delete this one: a spec cannot be changed",
	v1alpha1.DeletingReason:         "use another ClusterCIDR: this one is being deleted",
	v1alpha1.AdoptingReason:         "wait until then",
	v1alpha1.FenceDamagedReason:     "docs/node-cidrs.md#what-is-said",
	v1alpha1.FenceRefusedReason:     "see that the manager may write it: docs/node-cidrs.md#the-first-node has the roles",
	v1alpha1.NodesRefusedReason:     "correct the policy, the webhook or the role that the message names",
	v1alpha1.ExhaustedReason:        "add a ClusterCIDR for more: docs/node-cidrs.md#a-cluster-that-is-full",
	v1alpha1.PoolExhaustedReason:    "add addresses to the pool, or a ClusterCIDR for more",
	v1alpha1.QuotaReachedReason:     "add a ClusterCIDR for more, or create this one again with more maxBlocks",
	v1alpha1.ServiceCIDRReason:      "nothing has to be done",
	v1alpha1.SharedRangeReason:      "nothing has to be done",
}
