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

// Same reports whether two usages say the same.
func (u Usage) Same(other Usage) bool {
	return u.Capacity == other.Capacity && u.Allocated == other.Allocated && u.Free == other.Free && u.Blind == other.Blind && slices.Equal(u.Conditions, other.Conditions)
}

// DescribeFleet puts what is known of a ClusterCIDR of a fleet into its status: in the entries, how the Clusters that are
// known use it; those of others stay as they are, and the sums are of all. The conditions go on saying of Clusters that are not
// known what they do, as another manager may have said it, or this one before it was restarted. Where this manager is not alone, as
// others serve Clusters too, the conditions say what the entries do, which all of them see: else they would take turns. It reports
// whether that has changed, and whether it should be shown without delay.
func DescribeFleet(c *v1alpha1.ClusterCIDR, by map[Key]Usage, alone bool, now time.Time) (changed, urgent bool) {
	object := ObjectOf(c)
	var u Usage
	fresh := false // an entry that has no numbers yet
	elastic := object.Sources != [2]*Source{}
	if object.Range != nil && !elastic {
		u.Capacity = object.Range.Capacity()
		u.Free = u.Capacity
	}
	for i := range c.Status.Clusters {
		e := &c.Status.Clusters[i]
		if is, known := by[Key{Namespace: e.Namespace, Name: e.Name}]; known && !is.Blind && (e.Nodes != is.Allocated || e.Free != is.Free) {
			fresh = fresh || (e.Nodes == 0 && e.Free == 0)
			e.Nodes, e.Free, changed = is.Allocated, is.Free, true
		}
		u.Allocated += e.Nodes
		if elastic { // each has blocks of its own
			u.Capacity, u.Free = u.Capacity+e.Nodes+e.Free, u.Free+e.Free
			continue
		}
		u.Free = min(u.Free, e.Free)
	}
	said := saidByEntries(c, elastic, u.Capacity)
	if alone {
		for _, key := range SaidAbout(c) {
			said[key] = Usage{Conditions: append(SaidOf(c, key), said[key].Conditions...)}
		}
		maps.Copy(said, by)
	}
	u.Conditions = []metav1.Condition{
		fleetReady(c, object, u, said),
		inClusters(said, v1alpha1.ExhaustedCondition, v1alpha1.RoomLeftReason),
		inClusters(said, v1alpha1.OverlapCondition, v1alpha1.NoOverlapReason),
	}
	described, urgent := u.Describe(c, now)
	return changed || described, urgent || fresh
}

// SaidAbout are the Clusters that a ClusterCIDR says something about: those with an entry, and those that its conditions name.
func SaidAbout(c *v1alpha1.ClusterCIDR) (out []Key) {
	for _, e := range c.Status.Clusters {
		out = append(out, Key{Namespace: e.Namespace, Name: e.Name})
	}
	entries := len(out)
	for i := range c.Status.Conditions {
		names, _ := cutClusters(c.Status.Conditions[i].Message)
		for _, text := range names {
			namespace, name, is := strings.Cut(text, "/")
			if key := (Key{Namespace: namespace, Name: name}); is && EntryOf(c, key) == nil && !slices.Contains(out[entries:], key) {
				out = append(out, key)
			}
		}
	}
	return out
}

// SaidOf is what the conditions of a ClusterCIDR say of a Cluster.
func SaidOf(c *v1alpha1.ClusterCIDR, key Key) (out []metav1.Condition) {
	entry := EntryOf(c, key)
	for _, is := range c.Status.Conditions {
		names, message := cutClusters(is.Message)
		if !isNamed(names, key, entry != nil) || (is.Type == v1alpha1.ExhaustedCondition && entry != nil && entry.Free > 0) {
			continue
		}
		out = append(out, condition(is.Type, is.Status, is.Reason, "%s", message))
	}
	return out
}

// isNamed reports whether a Cluster is one of those that a condition names. Of a list that is too long, those with an entry that
// come after the last name are in it.
func isNamed(names []string, key Key, hasEntry bool) bool {
	if slices.Contains(names, key.String()) {
		return true
	}
	last := len(names) - 1
	return hasEntry && last > 0 && names[last] == more && key.String() > names[last-1]
}

// ofClusters is the message of a condition of some Clusters, cutClusters what is in one.
func ofClusters(names []string, message string) string {
	return fmt.Sprintf("in Cluster %s: %s", shown(names), message)
}

func cutClusters(text string) (names []string, message string) {
	text, is := strings.CutPrefix(text, "in Cluster ")
	all, message, cut := strings.Cut(text, ": ")
	if !is || !cut {
		return nil, ""
	}
	return strings.Split(all, ", "), message
}

// saidByEntries is what the entries of a ClusterCIDR say of their Clusters. Whether a pool has more blocks for one, they do not.
func saidByEntries(c *v1alpha1.ClusterCIDR, elastic bool, capacity int64) map[Key]Usage {
	out := map[Key]Usage{}
	for _, e := range c.Status.Clusters {
		if e.Nodes > 0 && e.Free == 0 && !elastic {
			full := condition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason,
				"all %d node CIDRs are taken; the condition %s of the Cluster says which Nodes wait", capacity, v1alpha1.PodCIDRsReadyCondition)
			out[Key{Namespace: e.Namespace, Name: e.Name}] = Usage{Conditions: []metav1.Condition{full}}
		}
	}
	return out
}

func fleetReady(c *v1alpha1.ClusterCIDR, o Object, u Usage, by map[Key]Usage) metav1.Condition {
	switch {
	case len(o.Invalid) > 0:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason, "%v", o.Invalid.ToAggregate())
	case c.DeletionTimestamp != nil:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason, "is being deleted; %s", inUse(c, u))
	}
	for _, key := range inOrderOf(by) {
		is := meta.FindStatusCondition(by[key].Conditions, v1alpha1.ReadyCondition)
		if is != nil && is.Status != metav1.ConditionTrue && is.Reason != v1alpha1.DeletingReason {
			return condition(v1alpha1.ReadyCondition, is.Status, is.Reason, "%s", ofClusters([]string{key.String()}, is.Message))
		}
	}
	switch {
	case o.Sources != [2]*Source{}:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "%d of %d node CIDRs of its blocks are free in %d Clusters", u.Free, u.Capacity, len(c.Status.Clusters))
	case len(c.Status.Clusters) == 0:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "no Cluster uses it yet; it has %d node CIDRs for each", u.Capacity)
	}
	least := slices.MinFunc(c.Status.Clusters, func(a, b v1alpha1.ClusterUse) int { return cmp.Compare(a.Free, b.Free) })
	return condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "%d of %d node CIDRs are free in Cluster %s/%s, and no fewer in others",
		least.Free, u.Capacity, least.Namespace, least.Name)
}

// inUse says whom the end of a ClusterCIDR waits for.
func inUse(c *v1alpha1.ClusterCIDR, u Usage) string {
	var of []string
	for _, e := range c.Status.Clusters {
		of = append(of, fmt.Sprintf("%s/%s (%s)", e.Namespace, e.Name, nodes(e.Nodes, "", "")))
	}
	switch {
	case len(of) == 0:
		return "no Cluster uses it"
	case u.Allocated == 0:
		return "these Clusters have yet to let go of it: " + shown(of)
	}
	return fmt.Sprintf("%s: %s", nodes(u.Allocated, "uses it", "use it"), shown(of))
}

// inClusters says in which Clusters a condition is True, and what of the first one.
func inClusters(by map[Key]Usage, kind, without string) metav1.Condition {
	var in []string
	var first *metav1.Condition
	for _, key := range inOrderOf(by) {
		if is := meta.FindStatusCondition(by[key].Conditions, kind); is != nil && is.Status == metav1.ConditionTrue {
			in = append(in, key.String())
			first = cmp.Or(first, is)
		}
	}
	if first == nil {
		return condition(kind, metav1.ConditionFalse, without, "")
	}
	return condition(kind, metav1.ConditionTrue, first.Reason, "%s", ofClusters(in, first.Message))
}

func inOrderOf(by map[Key]Usage) []Key {
	return slices.SortedFunc(maps.Keys(by), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
