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

const singleAllocatorAdvice = "run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only"

// nodeExplainer builds the explanation of a Node.
type nodeExplainer struct {
	*PodCIDRs
	view        *nodeipam.SnapshotView
	node        *podcidr.Node
	now         time.Time
	explanation Explanation
}

// ExplainNode explains why a Node has its pod CIDRs, or has none. It returns false where there is no Node of that name.
func ExplainNode(of PodCIDRs, name string, now time.Time) (Explanation, bool) {
	x := nodeExplainer{PodCIDRs: &of, view: of.newSnapshotView(now), now: now, explanation: Explanation{Subject: "Node " + name}}
	nodes := x.view.Nodes()
	i := slices.IndexFunc(nodes, func(n *podcidr.Node) bool { return n.Name == name })
	if i < 0 {
		return x.explanation, false
	}
	x.node = nodes[i]
	flight := slices.IndexFunc(of.inFlightGrants(), func(g grant) bool { return g.NodeUID == x.node.UID })
	switch {
	case len(x.node.CIDRs) > 0:
		x.explainAssigned()
	case flight >= 0:
		x.explainInFlightGrant(of.inFlightGrants()[flight])
	case x.node.Deleting:
		x.explanation.Summary = "has no pod CIDR"
		x.addFinding("it is being deleted: a Node that is being deleted gets none", "")
	default:
		x.explainWaiting()
	}
	return x.explanation, true
}

func (ne *nodeExplainer) addFinding(finding, do string) {
	ne.explanation.Findings = append(ne.explanation.Findings, Finding{finding, do})
}

// explainAssigned explains a Node that has CIDRs.
func (ne *nodeExplainer) explainAssigned() {
	n := ne.node
	ne.explanation.Served, ne.explanation.Summary = true, "has "+joinCIDRs(n.CIDRs)
	pool, _ := ne.sourceForNode(ne.view, n)
	if pool != "" {
		ne.explanation.Summary += " of " + pool
	}
	for _, note := range ne.view.EventsForNode(n.UID) {
		if note.Reason == nodeipam.PodCIDRForeign && (ne.ManagedElsewhere || ne.RangesHidden) {
			continue // the ranges are not readable here
		}
		ne.explanation.Served = ne.explanation.Served && note.Reason == nodeipam.PodCIDRForeign
		ne.addFinding(note.Message, "")
	}
	if ne.FenceState != nil {
		for _, g := range ne.FenceState.InFlight {
			if g.NodeUID == n.UID && !slices.Equal(g.CIDRs, n.CIDRs) {
				ne.addFinding(fmt.Sprintf("%s was granted to it, and another allocator has set its pod CIDRs", joinCIDRs(g.CIDRs)), singleAllocatorAdvice)
			}
		}
	}
	ne.explanation.Details = append(ne.explanation.Details, Detail{"from", []string{ne.describeAttribution()}})
	if n.Deleting {
		ne.explanation.Details = append(ne.explanation.Details, Detail{"until", []string{"it is being deleted, and keeps them until it is gone"}})
	}
}

// describeAttribution returns the evidence for the ClusterCIDR that the CIDRs of a Node are from.
func (ne *nodeExplainer) describeAttribution() string {
	n := ne.node
	named := fmt.Sprintf("its annotation %s names ClusterCIDR %s", v1alpha1.ClusterCIDRAnnotation, n.ClusterCIDRName)
	none := "it has no annotation " + v1alpha1.ClusterCIDRAnnotation
	switch r := ne.view.RangeForNode(n); {
	case n.ClusterCIDRName == "" && r == nil:
		return none + ": another allocator has given them"
	case n.ClusterCIDRName == "":
		return fmt.Sprintf("%s has these addresses: %s; %s, as where another allocator has given them", r, joinCIDRs(r.CIDRs()), none)
	case ne.ManagedElsewhere || ne.RangesHidden:
		return named
	case r == nil:
		return named + ", which does not have these addresses, or is gone"
	case r.Name != n.ClusterCIDRName:
		return fmt.Sprintf("%s, which does not have these addresses, or is gone; %s has them: %s", named, r, joinCIDRs(r.CIDRs()))
	default:
		return fmt.Sprintf("%s: %s", named, joinCIDRs(r.CIDRs()))
	}
}

// explainInFlightGrant explains a Node whose grant is in flight.
func (ne *nodeExplainer) explainInFlightGrant(g grant) {
	ne.explanation.Summary = "is being given " + joinCIDRs(g.CIDRs)
	if pool := formatClusterCIDR(g.ClusterCIDRName); pool != "" {
		ne.explanation.Summary += " of " + pool
	}
	ne.addFinding("the grant is in "+fenceConfigMapName+", and the Node does not have it yet", "it is a matter of a moment; "+ne.adviseIfStuck())
	ne.addWriteRefusal()
}

// addWriteRefusal adds the refusal of the API server that a manager has recorded in the condition Ready of a
// ClusterCIDR.
func (ne *nodeExplainer) addWriteRefusal() {
	for i := range ne.ClusterCIDRs {
		c := meta.FindStatusCondition(ne.ClusterCIDRs[i].Status.Conditions, v1alpha1.ReadyCondition)
		if c != nil && c.Status == metav1.ConditionFalse && (c.Reason == v1alpha1.NodesRefusedReason || c.Reason == v1alpha1.FenceRefusedReason) {
			ne.addFinding(c.Message, clusterCIDRAdvice[c.Reason])
			return
		}
	}
}

func (ne *nodeExplainer) adviseIfStuck() string {
	if ne.ManagedElsewhere {
		return "if it stays so, see that a manager runs in the management cluster with --node-cidrs=on or fleet, and that it reaches this cluster"
	}
	return "if it stays so, see that a manager runs here, with --node-cidrs=on, own or only"
}

// explainWaiting explains a Node that has no CIDRs and no grant.
func (ne *nodeExplainer) explainWaiting() {
	ne.explanation.Summary = "waits for its pod CIDR"
	if s := ne.view.Report.StoppedCondition; s != nil {
		ne.addFinding(s.Message, clusterCIDRAdvice[s.Reason])
	}
	if ne.FenceState == nil && ne.FenceDamage == nil && !ne.FenceHidden {
		text := "no manager has given CIDRs to Nodes of this cluster yet: there is no " + fenceConfigMapName
		do := "docs/node-cidrs.md#the-first-node: does a manager run, with --node-cidrs=on, own or only, and are its roles bound?"
		if ne.ManagedElsewhere {
			do = "docs/node-cidrs.md#nodes-of-workload-clusters: is this the cluster of a Cluster with the label " + v1alpha1.NodeCIDRsLabel + "?"
		}
		ne.addFinding(text, do)
	}
	if ne.ManagedElsewhere || ne.RangesHidden {
		ne.explainWaitingElsewhere()
		return
	}
	if !ne.NodesHidden {
		ne.explainWaitingForRanges()
	}
	ne.explanation.Details = append(ne.explanation.Details, Detail{"tried", ne.describeTriedRanges()})
}

// explainWaitingElsewhere explains a Node whose ClusterCIDRs cannot be read.
func (ne *nodeExplainer) explainWaitingElsewhere() {
	if ne.LastEvent != "" {
		ne.addFinding("event of the manager: "+ne.LastEvent, "")
	}
	if !ne.ManagedElsewhere {
		return
	}
	text, do := "the ClusterCIDRs for it are in the management cluster", "there: kubectl get clustercidrs -o wide"
	if cluster := ne.ClusterName(); cluster != "" {
		namespace, name, _ := strings.Cut(cluster, "/")
		text += ", where this cluster is Cluster " + cluster
		do += fmt.Sprintf("; kubectl get cluster -n %s %s -o jsonpath='{.status.conditions[?(@.type==%q)].message}'", namespace, name, v1alpha1.PodCIDRsReadyCondition)
	}
	ne.addFinding(text, do)
}

// explainWaitingForRanges explains what a manager would do with the Node now.
func (ne *nodeExplainer) explainWaitingForRanges() {
	if until, waits := ne.view.WaitsForLabels(ne.node, ne.now); waits {
		ne.addFinding(fmt.Sprintf("its taint shows that it may still get labels, which decide which ClusterCIDR serves it: it waits until the taint is removed, or about %s", until.UTC().Format(time.RFC3339)),
			"docs/node-cidrs.md#which-range-a-node-gets: what sets the labels removes the taint")
		return
	}
	for _, note := range ne.view.EventsForNode(ne.node.UID) {
		if note.Reason == nodeipam.CIDRNotAvailable {
			ne.addFinding(note.Message, "docs/node-cidrs.md#a-cluster-that-is-full; `kubectl get clustercidrs -o wide` shows how full they are")
		}
	}
	if why, _ := ne.view.RefusalForNode(ne.node.UID); why.AwaitsGrowth {
		ne.addFinding("a ClusterCIDR that is for it is to get another block of its pool", "kubectl get ipallocations -A shows whether the pool gives one; "+ne.adviseIfStuck())
	}
	before := len(ne.explanation.Findings)
	ne.addWriteRefusal()
	g, ok := ne.view.PlannedGrant(ne.node.UID)
	if !ok || ne.FenceDamage != nil || len(ne.explanation.Findings) > before {
		return
	}
	text := fmt.Sprintf("it is to be given %s of %s", joinCIDRs(g.CIDRs), g.RangeRef)
	if before == 0 {
		text = "nothing is in its way: it is about to be given " + joinCIDRs(g.CIDRs) + " of " + g.RangeRef.String()
	}
	if n := ne.view.WaitingCount(); n > 1 {
		text += fmt.Sprintf("; %d Nodes wait, the oldest is served first", n)
	}
	ne.addFinding(text, ne.adviseIfStuck())
}

// describeTriedRanges returns a line for each ClusterCIDR, in the order in which they are tried, with the reason why it
// does not serve the Node.
func (ne *nodeExplainer) describeTriedRanges() (out []string) {
	rank := 0
	for _, c := range ne.view.ChoicesForNode(ne.node) {
		before := "- "
		if c.SelectsNode {
			rank++
			before = fmt.Sprintf("%d.", rank)
		}
		name := c.Name
		if c.Range != nil {
			name += ", " + describeCIDRSource(c.RangeObject)
		}
		out = append(out, fmt.Sprintf("%s %s: %s", before, name, ne.describeChoice(c)))
	}
	for _, c := range ne.fleetClusterCIDRs() {
		if _, own := ne.objectForSelf(c); !own {
			out = append(out, fmt.Sprintf("-  %s: is for workload clusters", c.Name))
		}
	}
	if len(out) == 0 {
		out = []string{"there is no ClusterCIDR"}
	}
	return out
}

// describeChoice describes whether and why a ClusterCIDR can serve the Node.
func (ne *nodeExplainer) describeChoice(c nodeipam.RangeChoice) string {
	if ne.NodesHidden {
		c.Usage = ne.usageFromStatus(c)
	}
	why, _ := ne.view.RefusalForNode(ne.node.UID)
	switch {
	case c.Range == nil:
		return fmt.Sprintf("is not valid: %v", c.ValidationErrors.ToAggregate())
	case !c.SelectsNode:
		return "does not select it; it is for " + formatNodeSelector(c.Range)
	case c.Closing:
		return "is being deleted, and gives nothing more"
	case why.AwaitsGrowth && slices.Contains(why.FullRanges, c.Ref) && c.Range.CanGrow:
		return "it is to get another block, which the Node waits for"
	case c.Free > 0 && slices.Contains(why.FullRanges, c.Ref):
		return fmt.Sprintf("what is free (%d of %d) goes to Nodes that are older", c.Free, c.Capacity)
	case c.Free > 0:
		return fmt.Sprintf("has room: %d of %d node CIDRs are free", c.Free, c.Capacity)
	case c.Allocated < c.Capacity:
		return fmt.Sprintf("full (%d/%d); other ClusterCIDRs, Services, grants in flight or other allocators have the rest", c.Allocated, c.Capacity)
	}
	return fmt.Sprintf("full (%d/%d)", c.Allocated, c.Capacity)
}

// usageFromStatus returns the usage of a ClusterCIDR as its status records it.
func (ne *nodeExplainer) usageFromStatus(c nodeipam.RangeChoice) nodeipam.Usage {
	for i := range ne.ClusterCIDRs {
		if s := ne.ClusterCIDRs[i].Status; nodeipam.RefForClusterCIDR(&ne.ClusterCIDRs[i]) == c.Ref {
			return nodeipam.Usage{Capacity: s.Capacity, Allocated: s.Allocated, Free: s.Free}
		}
	}
	return c.Usage
}

func formatNodeSelector(r *podcidr.Range) string {
	if s := r.DescribeSelector(); s == podcidr.AllNodesText || s == podcidr.NoNodeText {
		return s
	}
	return "Nodes with " + r.DescribeSelector()
}

// clusterCIDRAdvice maps reasons of the conditions of a ClusterCIDR to advice.
var clusterCIDRAdvice = map[string]string{
	v1alpha1.ValidationFailedReason: "create another ClusterCIDR, and delete this one: a spec cannot be changed",
	v1alpha1.DeletingReason:         "use another ClusterCIDR: this one is being deleted",
	v1alpha1.AdoptingReason:         "wait until then",
	v1alpha1.FenceDamagedReason:     "docs/node-cidrs.md#events-and-conditions",
	v1alpha1.FenceRefusedReason:     "see that the manager may write it: docs/node-cidrs.md#the-first-node has the roles",
	v1alpha1.NodesRefusedReason:     "correct the policy, the webhook or the role that the message names",
	v1alpha1.ExhaustedReason:        "add a ClusterCIDR for more: docs/node-cidrs.md#a-cluster-that-is-full",
	v1alpha1.PoolExhaustedReason:    "add addresses to the pool, or a ClusterCIDR for more",
	v1alpha1.QuotaReachedReason:     "add a ClusterCIDR for more, or create this one again with more maxBlocks",
	v1alpha1.ServiceCIDRReason:      "nothing has to be done",
	v1alpha1.SharedRangeReason:      "nothing has to be done",
}
