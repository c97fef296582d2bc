package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// clusterCIDRExplainer builds the explanation of a ClusterCIDR.
type clusterCIDRExplainer struct {
	*PodCIDRs
	view        *nodeipam.SnapshotView
	clusterCIDR *v1alpha1.ClusterCIDR
	isLocal     bool
	users       []string
	explanation Explanation
}

// ExplainClusterCIDR explains whether a ClusterCIDR assigns CIDRs, which Nodes or Clusters use it, and which Nodes wait
// for it. It returns false where there is no ClusterCIDR of that name.
func ExplainClusterCIDR(of PodCIDRs, name string, now time.Time) (Explanation, bool) {
	x := clusterCIDRExplainer{PodCIDRs: &of, view: of.newSnapshotView(now), explanation: Explanation{Subject: v1alpha1.ClusterCIDRKind + " " + name}}
	i := slices.IndexFunc(of.ClusterCIDRs, func(c v1alpha1.ClusterCIDR) bool { return c.Name == name })
	if i < 0 {
		return x.explanation, false
	}
	x.clusterCIDR = &of.ClusterCIDRs[i]
	x.isLocal = nodeipam.IsLocal(x.clusterCIDR)
	if x.isLocal {
		x.users = x.view.NodesUsing(nodeipam.RefForClusterCIDR(x.clusterCIDR))
	}
	ready := x.readyCondition()
	switch {
	case x.clusterCIDR.DeletionTimestamp != nil:
		x.explainDeletion()
	case ready == nil:
		x.explanation.Summary = "gives nothing yet"
		x.addFinding("no manager has reconciled it", x.adviseRunManager())
	case ready.Status != metav1.ConditionTrue:
		x.explanation.Summary = "gives nothing"
		x.addFinding(ready.Reason+": "+ready.Message, clusterCIDRAdvice[ready.Reason])
	default:
		x.explainCapacity(ready)
	}
	if overlap := x.findCondition(v1alpha1.OverlapCondition); overlap != nil && overlap.Status == metav1.ConditionTrue {
		x.addFinding(overlap.Message, clusterCIDRAdvice[overlap.Reason])
	}
	x.addDetails()
	return x.explanation, true
}

func (ce *clusterCIDRExplainer) addFinding(finding, do string) {
	ce.explanation.Findings = append(ce.explanation.Findings, Finding{finding, do})
}

func (ce *clusterCIDRExplainer) findCondition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(ce.clusterCIDR.Status.Conditions, kind)
}

// readyCondition returns the condition Ready. That is the one that a manager would set now, where it is not True, or
// where it and the recorded one are True and the Nodes can be read; else it is the recorded one.
func (ce *clusterCIDRExplainer) readyCondition() *metav1.Condition {
	published := ce.findCondition(v1alpha1.ReadyCondition)
	if published == nil || !ce.isLocal {
		return published
	}
	now := meta.FindStatusCondition(ce.view.Report.UsageByRange[nodeipam.RefForClusterCIDR(ce.clusterCIDR)].Conditions, v1alpha1.ReadyCondition)
	if now != nil && (now.Status != metav1.ConditionTrue || (published.Status == metav1.ConditionTrue && !ce.NodesHidden)) {
		return now
	}
	return published
}

// adviseRunManager names the manager that reconciles the ClusterCIDR.
func (ce *clusterCIDRExplainer) adviseRunManager() string {
	if ce.isLocal {
		return "is a manager running, with the component own-node-cidrs or node-cidrs (--node-cidrs=own, on or only)?"
	}
	return "is a manager running, with the component fleet-node-cidrs or node-cidrs (--node-cidrs=fleet or on)?"
}

// explainCapacity explains a ClusterCIDR that assigns CIDRs as long as any is free.
func (ce *clusterCIDRExplainer) explainCapacity(ready *metav1.Condition) {
	ce.explanation.Served, ce.explanation.Summary = true, "gives CIDRs: "+ready.Message
	if ce.isLocal && !ce.NodesHidden {
		if u := ce.view.Report.UsageByRange[nodeipam.RefForClusterCIDR(ce.clusterCIDR)]; u.Free == 0 {
			full := meta.FindStatusCondition(u.Conditions, v1alpha1.ExhaustedCondition)
			ce.explanation.Served, ce.explanation.Summary = false, "is full"
			ce.addFinding(full.Message, clusterCIDRAdvice[full.Reason])
		}
		return
	}
	if full := ce.findCondition(v1alpha1.ExhaustedCondition); full != nil && full.Status == metav1.ConditionTrue {
		ce.explanation.Served, ce.explanation.Summary = false, "is full"
		ce.addFinding(full.Message, clusterCIDRAdvice[full.Reason])
	}
}

// explainDeletion adds the Nodes, Clusters and finalizers that delay the deletion of a ClusterCIDR.
func (ce *clusterCIDRExplainer) explainDeletion() {
	ce.explanation.Summary = "is being deleted"
	const drain = "drain and delete these Nodes, so that they register again, and get CIDRs of another ClusterCIDR"
	if n := len(ce.users); n > 0 {
		ce.addFinding(fmt.Sprintf("it stays until no Node uses it: %d of them, listed below", n), drain)
	}
	for _, u := range ce.clusterCIDR.Status.Clusters {
		if u.Nodes == 0 {
			ce.addFinding(fmt.Sprintf("Cluster %s/%s has not released it yet", u.Namespace, u.Name), "see that the manager reaches it: kubectl describe cluster -n "+u.Namespace+" "+u.Name)
			continue
		}
		ce.addFinding(fmt.Sprintf("it stays until no Node of Cluster %s/%s uses it: %d of them", u.Namespace, u.Name, u.Nodes),
			"with the kubeconfig of that: kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs; "+drain)
	}
	for _, f := range ce.clusterCIDR.Finalizers {
		if f != v1alpha1.ClusterCIDRFinalizer {
			ce.addFinding("the finalizer "+f+" holds it", "the controller that set it has to remove it")
		}
	}
	if ce.isLocal && ce.NodesHidden {
		if ready := ce.findCondition(v1alpha1.ReadyCondition); ready != nil {
			ce.addFinding(ready.Message, drain)
		}
	} else if len(ce.explanation.Findings) == 0 {
		finding := "no Node uses it"
		if slices.Contains(ce.clusterCIDR.Finalizers, v1alpha1.ClusterCIDRFinalizer) {
			finding += "; the finalizer " + v1alpha1.ClusterCIDRFinalizer + " holds it"
		}
		ce.addFinding(finding, "it should be gone in a moment; if not, "+ce.adviseRunManager())
	}
}

// addDetails adds the range, the users, and the Nodes that wait.
func (ce *clusterCIDRExplainer) addDetails() {
	detail := func(label string, lines ...string) {
		if len(lines) > 0 {
			ce.explanation.Details = append(ce.explanation.Details, Detail{label, lines})
		}
	}
	if o := nodeipam.RangeObjectFromClusterCIDR(ce.clusterCIDR); o.Range != nil {
		detail("range", fmt.Sprintf("%s, for %s", describeCIDRSource(o), formatNodeSelector(o.Range)))
	}
	if !ce.isLocal {
		detail("fleet", ce.describeClusters()...)
		return
	}
	cidrsByNode := map[string]string{}
	for _, n := range ce.view.Nodes() {
		if len(n.CIDRs) > 0 {
			cidrsByNode[n.Name] = joinCIDRs(n.CIDRs)
		}
	}
	var users []string
	for _, name := range ce.users {
		users = append(users, name+" "+cmp.Or(cidrsByNode[name], "(its grant is in flight)"))
	}
	detail("users", users...)
	detail("waits", ce.view.NodesWaitingFor(nodeipam.RefForClusterCIDR(ce.clusterCIDR))...)
}

// describeClusters returns a line for each Cluster that uses the ClusterCIDR, and for each one that it selects.
func (ce *clusterCIDRExplainer) describeClusters() (out []string) {
	for _, u := range ce.clusterCIDR.Status.Clusters {
		uses := fmt.Sprintf("%s/%s: %s a CIDR of it, %s", u.Namespace, u.Name, text.FormatCount(u.Nodes, "Node has", "Nodes have"), text.FormatCount(u.Free, "is free", "are free"))
		for i := range ce.Clusters {
			if c := &ce.Clusters[i]; c.Namespace == u.Namespace && c.Name == u.Name {
				uses += describeUnready(c)
			}
		}
		out = append(out, uses)
	}
	selector, err := metav1.LabelSelectorAsSelector(ce.clusterCIDR.Spec.ClusterSelector)
	if err != nil {
		return out
	}
	for i := range ce.Clusters {
		c := &ce.Clusters[i]
		if !selector.Matches(labels.Set(c.Labels)) || nodeipam.EntryForCluster(ce.clusterCIDR, nodeipam.ClusterKey{Namespace: c.Namespace, Name: c.Name}) != nil {
			continue
		}
		state := "selected, and has not used it yet" + describeUnready(c)
		if _, wants := c.Labels[v1alpha1.NodeCIDRsLabel]; !wants {
			state = "selected, and not served: it lacks the label " + v1alpha1.NodeCIDRsLabel
		}
		out = append(out, fmt.Sprintf("%s/%s: %s", c.Namespace, c.Name, state))
	}
	return out
}

// describeUnready returns the reason that a Cluster reports where some of its Nodes have no pod CIDRs; else "".
func describeUnready(c *clusterv1.Cluster) string {
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.PodCIDRsReadyCondition)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return ""
	}
	return fmt.Sprintf("; %s: %s", ready.Reason, ready.Message)
}
