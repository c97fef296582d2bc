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

// explainedRange is an explanation of a ClusterCIDR in the making.
type explainedRange struct {
	*PodCIDRs
	view   *nodeipam.View
	object *v1alpha1.ClusterCIDR
	local  bool
	users  []string
	e      Explanation
}

// ExplainClusterCIDR says whether a ClusterCIDR gives CIDRs, who uses it and who waits for it; false: there is none of
// that name.
func ExplainClusterCIDR(of PodCIDRs, name string, now time.Time) (Explanation, bool) {
	x := explainedRange{PodCIDRs: &of, view: of.view(now), e: Explanation{Subject: v1alpha1.ClusterCIDRKind + " " + name}}
	i := slices.IndexFunc(of.ClusterCIDRs, func(c v1alpha1.ClusterCIDR) bool { return c.Name == name })
	if i < 0 {
		return x.e, false
	}
	x.object = &of.ClusterCIDRs[i]
	x.local = nodeipam.IsLocal(x.object)
	if x.local {
		x.users = x.view.Users(nodeipam.RefOf(x.object))
	}
	ready := x.ready()
	switch {
	case x.object.DeletionTimestamp != nil:
		x.leaves()
	case ready == nil:
		x.e.Verdict = "gives nothing yet"
		x.add("no manager has looked at it", x.whoLooks())
	case ready.Status != metav1.ConditionTrue:
		x.e.Verdict = "gives nothing"
		x.add(ready.Reason+": "+ready.Message, adviceOnRange[ready.Reason])
	default:
		x.gives(ready)
	}
	if overlap := x.said(v1alpha1.OverlapCondition); overlap != nil && overlap.Status == metav1.ConditionTrue {
		x.add(overlap.Message, adviceOnRange[overlap.Reason])
	}
	x.list()
	return x.e, true
}

func (x *explainedRange) add(what, do string) {
	x.e.Findings = append(x.e.Findings, Finding{what, do})
}

func (x *explainedRange) said(kind string) *metav1.Condition {
	return meta.FindStatusCondition(x.object.Status.Conditions, kind)
}

// ready is the condition Ready: as the manager would say it now where that is known to be no, else as it has said it.
func (x *explainedRange) ready() *metav1.Condition {
	said := x.said(v1alpha1.ReadyCondition)
	if said == nil || !x.local {
		return said
	}
	now := meta.FindStatusCondition(x.view.Report.Ranges[nodeipam.RefOf(x.object)].Conditions, v1alpha1.ReadyCondition)
	if now != nil && (now.Status != metav1.ConditionTrue || (said.Status == metav1.ConditionTrue && !x.NodesHidden)) {
		return now
	}
	return said
}

// whoLooks is which manager looks at a ClusterCIDR.
func (x *explainedRange) whoLooks() string {
	if x.local {
		return "is a manager running, with the component own-node-cidrs or node-cidrs (--node-cidrs=own, on or only)?"
	}
	return "is a manager running, with the component fleet-node-cidrs or node-cidrs (--node-cidrs=fleet or on)?"
}

// gives explains a ClusterCIDR that Nodes can get CIDRs of, if any is free.
func (x *explainedRange) gives(ready *metav1.Condition) {
	x.e.Served, x.e.Verdict = true, "gives CIDRs: "+ready.Message
	if x.local && !x.NodesHidden {
		if u := x.view.Report.Ranges[nodeipam.RefOf(x.object)]; u.Free == 0 {
			full := meta.FindStatusCondition(u.Conditions, v1alpha1.ExhaustedCondition)
			x.e.Served, x.e.Verdict = false, "is full"
			x.add(full.Message, adviceOnRange[full.Reason])
		}
		return
	}
	if full := x.said(v1alpha1.ExhaustedCondition); full != nil && full.Status == metav1.ConditionTrue {
		x.e.Served, x.e.Verdict = false, "is full"
		x.add(full.Message, adviceOnRange[full.Reason])
	}
}

// leaves says who holds a ClusterCIDR that is being deleted.
func (x *explainedRange) leaves() {
	x.e.Verdict = "is being deleted"
	const drain = "drain and delete these Nodes, so that they register anew, and get CIDRs of another ClusterCIDR"
	if n := len(x.users); n > 0 {
		x.add(fmt.Sprintf("it stays until no Node uses it: %d of them, listed below", n), drain)
	}
	for _, u := range x.object.Status.Clusters {
		if u.Nodes == 0 {
			x.add(fmt.Sprintf("Cluster %s/%s has yet to let go of it", u.Namespace, u.Name), "see that the manager reaches it: kubectl describe cluster -n "+u.Namespace+" "+u.Name)
			continue
		}
		x.add(fmt.Sprintf("it stays until no Node of Cluster %s/%s uses it: %d of them", u.Namespace, u.Name, u.Nodes),
			"with the kubeconfig of that: kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs; "+drain)
	}
	for _, f := range x.object.Finalizers {
		if f != v1alpha1.ClusterCIDRFinalizer {
			x.add("the finalizer "+f+" holds it", "the controller that set it has to remove it")
		}
	}
	if x.local && x.NodesHidden {
		if said := x.said(v1alpha1.ReadyCondition); said != nil {
			x.add(said.Message, drain)
		}
	} else if len(x.e.Findings) == 0 {
		what := "no Node uses it"
		if slices.Contains(x.object.Finalizers, v1alpha1.ClusterCIDRFinalizer) {
			what += "; the finalizer " + v1alpha1.ClusterCIDRFinalizer + " holds it"
		}
		x.add(what, "it should be gone in a moment; if not, "+x.whoLooks())
	}
}

// list says what it is, who uses it, and who waits.
func (x *explainedRange) list() {
	detail := func(what string, is ...string) {
		if len(is) > 0 {
			x.e.Details = append(x.e.Details, Detail{what, is})
		}
	}
	if o := nodeipam.ObjectOf(x.object); o.Range != nil {
		detail("range", fmt.Sprintf("%s, for %s", sourceOf(o), nodesWith(o.Range)))
	}
	if !x.local {
		detail("fleet", x.clusters()...)
		return
	}
	has := map[string]string{}
	for _, n := range x.view.Nodes() {
		if len(n.CIDRs) > 0 {
			has[n.Name] = joined(n.CIDRs)
		}
	}
	var users []string
	for _, name := range x.users {
		users = append(users, name+" "+cmp.Or(has[name], "(its grant is in flight)"))
	}
	detail("users", users...)
	detail("waits", x.view.Waiters(nodeipam.RefOf(x.object))...)
}

// clusters are those that use it, and those that it selects.
func (x *explainedRange) clusters() (out []string) {
	for _, u := range x.object.Status.Clusters {
		uses := fmt.Sprintf("%s/%s: %s a CIDR of it, %s", u.Namespace, u.Name, text.Count(u.Nodes, "Node has", "Nodes have"), text.Count(u.Free, "is free", "are free"))
		for i := range x.Clusters {
			if c := &x.Clusters[i]; c.Namespace == u.Namespace && c.Name == u.Name {
				uses += unready(c)
			}
		}
		out = append(out, uses)
	}
	selector, err := metav1.LabelSelectorAsSelector(x.object.Spec.ClusterSelector)
	if err != nil {
		return out
	}
	for i := range x.Clusters {
		c := &x.Clusters[i]
		if !selector.Matches(labels.Set(c.Labels)) || nodeipam.EntryOf(x.object, nodeipam.Key{Namespace: c.Namespace, Name: c.Name}) != nil {
			continue
		}
		says := "selected, and has not used it yet" + unready(c)
		if _, wants := c.Labels[v1alpha1.NodeCIDRsLabel]; !wants {
			says = "selected, and not served: it lacks the label " + v1alpha1.NodeCIDRsLabel
		}
		out = append(out, fmt.Sprintf("%s/%s: %s", c.Namespace, c.Name, says))
	}
	return out
}

// unready is what a Cluster says where some of its Nodes have no pod CIDRs.
func unready(c *clusterv1.Cluster) string {
	said := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.PodCIDRsReadyCondition)
	if said == nil || said.Status == metav1.ConditionTrue {
		return ""
	}
	return fmt.Sprintf("; %s: %s", said.Reason, said.Message)
}
