package nodeipam

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Equal reports whether two usages are the same.
func (u Usage) Equal(other Usage) bool {
	return u.Capacity == other.Capacity && u.Allocated == other.Allocated && u.Free == other.Free && u.NodesUnread == other.NodesUnread && slices.Equal(u.Conditions, other.Conditions)
}

// ApplyFleetStatus sets the status of a ClusterCIDR of a fleet. In the entries it sets how the known Clusters use the
// ClusterCIDR; those of other Clusters stay as they are, and the sums are over all entries. The conditions keep what
// they report about Clusters that are not known, as another manager may have set it, or this one before it was
// restarted. Where this manager is not alone, as other managers serve Clusters too, the conditions are computed from
// the entries, which all of them see: otherwise they would overwrite each other in turns. ApplyFleetStatus reports
// whether the status has changed, and whether the change should be written without delay.
func ApplyFleetStatus(c *v1alpha1.ClusterCIDR, by map[ClusterKey]Usage, alone bool, now time.Time) (changed, urgent bool) {
	object := RangeObjectFromClusterCIDR(c)
	var u Usage
	firstReport := false // an entry that has no numbers yet
	elastic := object.BlockSources != [2]*BlockSource{}
	if object.Range != nil && !elastic {
		u.Capacity = object.Range.Capacity()
		u.Free = u.Capacity
	}
	for i := range c.Status.Clusters {
		e := &c.Status.Clusters[i]
		if usage, known := by[ClusterKey{Namespace: e.Namespace, Name: e.Name}]; known && !usage.NodesUnread && (e.Nodes != usage.Allocated || e.Free != usage.Free) {
			firstReport = firstReport || (e.Nodes == 0 && e.Free == 0)
			e.Nodes, e.Free, changed = usage.Allocated, usage.Free, true
		}
		u.Allocated += e.Nodes
		if elastic { // each Cluster has blocks of its own
			u.Capacity, u.Free = u.Capacity+e.Nodes+e.Free, u.Free+e.Free
			continue
		}
		u.Free = min(u.Free, e.Free)
	}
	usageByCluster := usageFromEntries(c, elastic, u.Capacity)
	if alone {
		for _, key := range ClustersInStatus(c) {
			usageByCluster[key] = Usage{Conditions: append(ConditionsForCluster(c, key), usageByCluster[key].Conditions...)}
		}
		maps.Copy(usageByCluster, by)
	}
	u.Conditions = []metav1.Condition{
		fleetReadyCondition(c, object, u, usageByCluster),
		mergeClusterConditions(usageByCluster, v1alpha1.ExhaustedCondition, v1alpha1.RoomLeftReason),
		mergeClusterConditions(usageByCluster, v1alpha1.OverlapCondition, v1alpha1.NoOverlapReason),
	}
	described, urgent := u.ApplyStatus(c, now)
	return changed || described, urgent || firstReport
}

// ClustersInStatus returns the Clusters that the status of a ClusterCIDR reports about: those with an entry, and those
// that its conditions name.
func ClustersInStatus(c *v1alpha1.ClusterCIDR) (out []ClusterKey) {
	for _, e := range c.Status.Clusters {
		out = append(out, ClusterKey{Namespace: e.Namespace, Name: e.Name})
	}
	entries := len(out)
	for i := range c.Status.Conditions {
		names, _ := parseClusterMessage(c.Status.Conditions[i].Message)
		for _, text := range names {
			namespace, name, ok := strings.Cut(text, "/")
			if key := (ClusterKey{Namespace: namespace, Name: name}); ok && EntryForCluster(c, key) == nil && !slices.Contains(out[entries:], key) {
				out = append(out, key)
			}
		}
	}
	return out
}

// ConditionsForCluster returns what the conditions of a ClusterCIDR report about a Cluster.
func ConditionsForCluster(c *v1alpha1.ClusterCIDR, key ClusterKey) (out []metav1.Condition) {
	entry := EntryForCluster(c, key)
	for _, condition := range c.Status.Conditions {
		names, message := parseClusterMessage(condition.Message)
		if !isClusterNamed(names, key, entry != nil) || (condition.Type == v1alpha1.ExhaustedCondition && entry != nil && entry.Free > 0) {
			continue
		}
		out = append(out, newCondition(condition.Type, condition.Status, condition.Reason, "%s", message))
	}
	return out
}

// isClusterNamed reports whether a Cluster is one of those that a condition names. If the list of names was cut,
// Clusters with an entry that sort after the last name count as named.
func isClusterNamed(names []string, key ClusterKey, hasEntry bool) bool {
	if slices.Contains(names, key.String()) {
		return true
	}
	last := len(names) - 1
	return hasEntry && last > 0 && names[last] == ellipsis && key.String() > names[last-1]
}

// formatClusterMessage returns the message of a condition of some Clusters; parseClusterMessage parses that message.
func formatClusterMessage(names []string, message string) string {
	return fmt.Sprintf("in Cluster %s: %s", joinNames(names), message)
}

func parseClusterMessage(text string) (names []string, message string) {
	text, ok := strings.CutPrefix(text, "in Cluster ")
	all, message, cut := strings.Cut(text, ": ")
	if !ok || !cut {
		return nil, ""
	}
	return strings.Split(all, ", "), message
}

// usageFromEntries returns what the entries of a ClusterCIDR show about their Clusters. They do not show whether a pool
// has more blocks for a Cluster.
func usageFromEntries(c *v1alpha1.ClusterCIDR, elastic bool, capacity int64) map[ClusterKey]Usage {
	out := map[ClusterKey]Usage{}
	for _, e := range c.Status.Clusters {
		if e.Nodes > 0 && e.Free == 0 && !elastic {
			full := newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason,
				"all %d node CIDRs are taken; the condition %s of the Cluster lists the waiting Nodes", capacity, v1alpha1.PodCIDRsReadyCondition)
			out[ClusterKey{Namespace: e.Namespace, Name: e.Name}] = Usage{Conditions: []metav1.Condition{full}}
		}
	}
	return out
}

func fleetReadyCondition(c *v1alpha1.ClusterCIDR, o RangeObject, u Usage, by map[ClusterKey]Usage) metav1.Condition {
	switch {
	case len(o.ValidationErrors) > 0:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason, "%v", o.ValidationErrors.ToAggregate())
	case c.DeletionTimestamp != nil:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason, "is being deleted; %s", describeUsers(c, u))
	}
	for _, key := range sortClusterKeys(by) {
		condition := meta.FindStatusCondition(by[key].Conditions, v1alpha1.ReadyCondition)
		if condition != nil && condition.Status != metav1.ConditionTrue && condition.Reason != v1alpha1.DeletingReason {
			return newCondition(v1alpha1.ReadyCondition, condition.Status, condition.Reason, "%s", formatClusterMessage([]string{key.String()}, condition.Message))
		}
	}
	switch {
	case o.BlockSources != [2]*BlockSource{}:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "%d of %d node CIDRs of its blocks are free in %d Clusters", u.Free, u.Capacity, len(c.Status.Clusters))
	case len(c.Status.Clusters) == 0:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "no Cluster uses it yet; it has %d node CIDRs for each", u.Capacity)
	}
	least := slices.MinFunc(c.Status.Clusters, func(a, b v1alpha1.ClusterUse) int { return cmp.Compare(a.Free, b.Free) })
	return newCondition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "%d of %d node CIDRs are free in Cluster %s/%s, and no fewer in others",
		least.Free, u.Capacity, least.Namespace, least.Name)
}

// describeUsers returns a message with the Clusters that delay the end of a ClusterCIDR.
func describeUsers(c *v1alpha1.ClusterCIDR, u Usage) string {
	var of []string
	for _, e := range c.Status.Clusters {
		of = append(of, fmt.Sprintf("%s/%s (%s)", e.Namespace, e.Name, formatNodeCount(e.Nodes, "", "")))
	}
	switch {
	case len(of) == 0:
		return "no Cluster uses it"
	case u.Allocated == 0:
		return "these Clusters have not released it yet: " + joinNames(of)
	}
	return fmt.Sprintf("%s: %s", formatNodeCount(u.Allocated, "uses it", "use it"), joinNames(of))
}

// mergeClusterConditions returns a condition that is True where it is True in any Cluster, with the names of these
// Clusters and the reason and message of the first one.
func mergeClusterConditions(by map[ClusterKey]Usage, kind, without string) metav1.Condition {
	var in []string
	var first *metav1.Condition
	for _, key := range sortClusterKeys(by) {
		if condition := meta.FindStatusCondition(by[key].Conditions, kind); condition != nil && condition.Status == metav1.ConditionTrue {
			in = append(in, key.String())
			first = cmp.Or(first, condition)
		}
	}
	if first == nil {
		return newCondition(kind, metav1.ConditionFalse, without, "")
	}
	return newCondition(kind, metav1.ConditionTrue, first.Reason, "%s", formatClusterMessage(in, first.Message))
}

func sortClusterKeys(by map[ClusterKey]Usage) []ClusterKey {
	return slices.SortedFunc(maps.Keys(by), func(a, b ClusterKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
