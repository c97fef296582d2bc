package nodeipam

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

var (
	prod  = ClusterKey{Namespace: "team", Name: "prod"}
	stage = ClusterKey{Namespace: "team", Name: "stage"}
)

func use(of ClusterKey, mark string, nodes, free int64) v1alpha1.ClusterUse {
	return v1alpha1.ClusterUse{Namespace: of.Namespace, Name: of.Name, Mark: mark, Nodes: nodes, Free: free}
}

// fleetRange returns a ClusterCIDR for Clusters with the label net=edge, with room for two Nodes, our finalizer and the
// given entries.
func fleetRange(uses ...v1alpha1.ClusterUse) *v1alpha1.ClusterCIDR {
	out := newRange(v1alpha1.ClusterCIDRFinalizer)
	out.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"net": "edge"}}
	out.Status.Clusters = uses
	return out
}

func deleted(c *v1alpha1.ClusterCIDR) *v1alpha1.ClusterCIDR {
	c.DeletionTimestamp = &metav1.Time{Time: noon}
	return c
}

// TestEntryProtector checks R15: the entry of a Cluster is there before anything is granted, with a new mark; it is
// removed only with the mark that it had when the object was closed, and no other entry is removed with it.
func TestEntryProtector(t *testing.T) {
	free := newRange()
	free.Spec.ClusterSelector = &metav1.LabelSelector{}
	for name, tc := range map[string]struct {
		cc      *v1alpha1.ClusterCIDR
		release string
		closing bool
		// want are the Clusters with an entry; wantNewMark reports whether that of prod has a new mark.
		want        string
		wantNewMark bool
	}{
		"protect, with neither":      {cc: free, want: "prod", wantNewMark: true},
		"protect, others use it":     {cc: fleetRange(use(stage, "s", 1, 1)), want: "stage prod", wantNewMark: true},
		"protect, it is there":       {cc: fleetRange(use(prod, "m", 1, 1)), want: "prod", wantNewMark: true},
		"protect, being deleted":     {cc: deleted(fleetRange(use(prod, "m", 1, 1))), closing: true, want: "prod"},
		"release":                    {cc: fleetRange(use(prod, "m", 0, 2), use(stage, "s", 1, 1)), release: "m", want: "stage"},
		"release, opened since":      {cc: fleetRange(use(prod, "n", 0, 2)), release: "m", want: "prod"},
		"release, it is gone":        {cc: fleetRange(use(stage, "m", 0, 2)), release: "m", want: "stage"},
		"release, it is the last":    {cc: deleted(fleetRange(use(prod, "m", 0, 2))), release: "m"},
		"release, the first of many": {cc: deleted(fleetRange(use(prod, "m", 0, 2), use(stage, "s", 0, 2))), release: "m", want: "stage"},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := newTestSite(t, tc.cc)
			e := EntryProtector{ClusterCIDRProtector: ClusterCIDRProtector{Client: c, Live: c}, ClusterKey: prod}
			do := e.ProtectObject
			if tc.release != "" {
				do = func(ctx context.Context, ref podcidr.Ref) error { return e.UnprotectObject(ctx, ref, tc.release) }
			}
			err := do(t.Context(), RefForClusterCIDR(tc.cc))
			if errors.Is(err, errClosing) != tc.closing || (!tc.closing && err != nil) {
				t.Errorf("%v", err)
			}
			live := &v1alpha1.ClusterCIDR{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(tc.cc), live); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, u := range live.Status.Clusters {
				names = append(names, u.Name)
			}
			if got := strings.Join(names, " "); got != tc.want {
				t.Errorf("entries of %q, want %q: one that was opened since stays, and so does that of another Cluster", got, tc.want)
			}
			if entry, was := EntryForCluster(live, prod), EntryForCluster(tc.cc, prod); entry != nil && (was == nil || entry.Mark != was.Mark) != tc.wantNewMark {
				t.Errorf("the mark is %q", entry.Mark)
			}
			if len(live.Finalizers) != 1 {
				t.Errorf("finalizers %v", live.Finalizers)
			}
		})
	}
}

// TestLastEntryHoldsFinalizer checks K16: the finalizer stays as long as a Cluster has an entry.
func TestLastEntryHoldsFinalizer(t *testing.T) {
	for name, uses := range map[string][]v1alpha1.ClusterUse{"in use": {use(prod, "m", 0, 2)}, "unused": nil} {
		t.Run(name, func(t *testing.T) {
			cc := deleted(fleetRange(uses...))
			_, c := newTestSite(t, cc)
			if err := (ClusterCIDRProtector{Client: c, Live: c}).UnprotectObject(t.Context(), RefForClusterCIDR(cc), ""); err != nil {
				t.Fatal(err)
			}
			if gone := c.indexOf("patch") >= 0; gone != (len(uses) == 0) {
				t.Errorf("the finalizer is gone: %v", gone)
			}
		})
	}
}

// TestReopenedObjectIsClosedAgain checks R15: an object with another mark than when it was closed was opened by a
// manager since, and is not released before another commit.
func TestReopenedObjectIsClosedAgain(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/23")
	show := func(mark string) {
		for _, o := range m.ranges.objects {
			o.Closing, o.HasFinalizer, o.EntryMark = true, true, mark
			m.setRangeObjects([]RangeObject{o})
		}
	}
	for _, mark := range []string{"first", "second"} {
		show(mark)
		if ending := m.protection.objectsToUnprotect(); len(ending) > 0 {
			t.Fatalf("it ends without a commit since its mark is %q", mark)
		}
		_, p, _ := m.commits.prepareCommit(noon)
		if p == nil {
			t.Fatalf("nothing is committed when its mark is %q", mark)
		}
		m.commits.recordCommitted(p, false, noon)
		if ending := m.protection.objectsToUnprotect(); len(ending) != 1 || ending[0].EntryMark != mark {
			t.Fatalf("%v ends", ending)
		}
	}
}

// TestRangeObjectForCluster checks K8 and K41: how a ClusterCIDR applies to a Cluster.
func TestRangeObjectForCluster(t *testing.T) {
	edge := labels.Set{"net": "edge"}
	wrong := fleetRange(use(prod, "m", 1, 1))
	wrong.Spec.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "net", Operator: "Near"}}
	for name, tc := range map[string]struct {
		cc                     *v1alpha1.ClusterCIDR
		clusterLabels          labels.Set
		concerns, closes, held bool
		valid                  bool
	}{
		"of its own cluster":      {cc: newRange(), clusterLabels: edge},
		"selected":                {cc: fleetRange(), clusterLabels: edge, concerns: true, valid: true},
		"selected, in use":        {cc: fleetRange(use(prod, "m", 1, 1)), clusterLabels: edge, concerns: true, held: true, valid: true},
		"not selected":            {cc: fleetRange(use(stage, "m", 1, 1)), clusterLabels: labels.Set{"net": "core"}},
		"not selected any more":   {cc: fleetRange(use(prod, "m", 1, 1)), clusterLabels: labels.Set{"net": "core"}, concerns: true, closes: true, held: true, valid: true},
		"the label is off":        {cc: fleetRange(use(prod, "m", 1, 1)), concerns: true, closes: true, held: true, valid: true},
		"the label was never on":  {cc: fleetRange()},
		"being deleted":           {cc: deleted(fleetRange(use(prod, "m", 1, 1))), clusterLabels: edge, concerns: true, closes: true, held: true, valid: true},
		"wrong, and used by hand": {cc: wrong, clusterLabels: edge, concerns: true, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, concerns := RangeObjectForCluster(tc.cc, prod, tc.clusterLabels)
			if concerns != tc.concerns {
				t.Fatalf("it is of concern: %v", concerns)
			}
			if !concerns {
				return
			}
			if o.Closing != tc.closes || o.HasFinalizer != tc.held || (o.Range != nil) != tc.valid || (len(o.ValidationErrors) == 0) != tc.valid {
				t.Errorf("%+v", o)
			}
			if o.Range != nil && o.Range.Closing != tc.closes {
				t.Error("the range and its object say different things")
			}
		})
	}
}

// TestApplyFleetStatus checks that the status of a ClusterCIDR of a fleet is computed from all its entries, also those
// of Clusters that another manager serves.
func TestApplyFleetStatus(t *testing.T) {
	ready := func(free int64, conditions ...metav1.Condition) Usage {
		return Usage{Capacity: 2, Allocated: 2 - free, Free: free, Conditions: conditions}
	}
	full := newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason, "all 2 node CIDRs are taken")
	adopting := newCondition(v1alpha1.ReadyCondition, metav1.ConditionUnknown, v1alpha1.AdoptingReason, "no grants before 12:00:00")
	for name, tc := range map[string]struct {
		cc              *v1alpha1.ClusterCIDR
		by              map[ClusterKey]Usage
		allocated, free int64
		ready, full     string
		urgent          bool
	}{
		"no Cluster uses it": {cc: fleetRange(), free: 2, ready: "no Cluster uses it yet; it has 2 node CIDRs for each", urgent: true},
		"one has numbers of its own, the other's stay": {
			cc: fleetRange(use(prod, "m", 0, 0), use(stage, "s", 1, 1)), by: map[ClusterKey]Usage{prod: ready(0, full)}, allocated: 3, free: 0, urgent: true,
			ready: "0 of 2 node CIDRs are free in Cluster team/prod, and no fewer in others", full: "in Cluster team/prod: all 2 node CIDRs are taken",
		},
		"one is being adopted": {
			cc: fleetRange(use(prod, "m", 1, 1)), by: map[ClusterKey]Usage{prod: ready(1, adopting)}, allocated: 1, free: 1, urgent: true,
			ready: "in Cluster team/prod: no grants before 12:00:00",
		},
		"being deleted": {
			cc: deleted(fleetRange(use(prod, "m", 1, 1), use(stage, "s", 0, 2))), allocated: 1, free: 1, urgent: true,
			ready: "is being deleted; 1 Node uses it: team/prod (1 Node), team/stage (0 Nodes)",
		},
		"being deleted, nearly gone": {
			cc: deleted(fleetRange(use(prod, "m", 0, 2))), free: 2, ready: "is being deleted; these Clusters have not released it yet: team/prod (0 Nodes)", urgent: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := tc.cc
			changed, urgent := ApplyFleetStatus(c, tc.by, true, noon)
			if !changed || urgent != tc.urgent || c.Status.Allocated != tc.allocated || c.Status.Free != tc.free || c.Status.Capacity != 2 {
				t.Errorf("changed %v, urgent %v, status %+v", changed, urgent, c.Status)
			}
			if got := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ReadyCondition); got.Message != tc.ready {
				t.Errorf("Ready says %q", got.Message)
			}
			if got := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ExhaustedCondition); got.Message != tc.full {
				t.Errorf("Exhausted says %q", got.Message)
			}
			if changed, urgent := ApplyFleetStatus(c, tc.by, true, noon.Add(time.Hour)); changed || urgent {
				t.Error("it is written again, and says nothing new")
			}
		})
	}
}

// TestShardsDoNotAlternate checks that two managers that each serve one Cluster of a ClusterCIDR write the same status
// while one Cluster is full.
func TestShardsDoNotAlternate(t *testing.T) {
	full := newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason, "all 2 node CIDRs are taken and 3 Nodes wait")
	room := newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionFalse, v1alpha1.RoomLeftReason, "")
	stopped := newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceRefusedReason, "the API server refuses the ConfigMap")
	c := fleetRange(use(prod, "m", 0, 0), use(stage, "s", 0, 0))
	for i := range 6 {
		by := map[ClusterKey]Usage{prod: {Capacity: 2, Allocated: 2, Conditions: []metav1.Condition{full}}}
		if i%2 == 1 {
			by = map[ClusterKey]Usage{stage: {Capacity: 2, Allocated: 1, Free: 1, Conditions: []metav1.Condition{room, stopped}}}
		}
		if changed, _ := ApplyFleetStatus(c, by, false, noon.Add(time.Duration(i)*time.Second)); changed && i > 1 {
			t.Errorf("at turn %d it is written again", i)
		}
		condition := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ExhaustedCondition)
		if want := "in Cluster team/prod: all 2 node CIDRs are taken; the condition PodCIDRsReady of the Cluster lists the waiting Nodes"; condition.Message != want {
			t.Errorf("at turn %d Exhausted says %q", i, condition.Message)
		}
	}
}

// TestStatusOfOtherClustersStays checks that the status of a ClusterCIDR keeps what it reports about a Cluster
// until this manager knows better: a manager that was just started, and one that serves other Clusters, write nothing
// else.
func TestStatusOfOtherClustersStays(t *testing.T) {
	full := newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason, "all 2 node CIDRs are taken and 3 Nodes wait")
	shared := newCondition(v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.SharedRangeReason, "d share some of the addresses")
	stopped := newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceRefusedReason, "the API server refuses the ConfigMap")
	unnamed := ClusterKey{Namespace: "team", Name: "unnamed"} // without an entry
	knows := []map[ClusterKey]Usage{
		{prod: {Capacity: 2, Allocated: 2, Conditions: []metav1.Condition{full, shared}}, unnamed: {Conditions: []metav1.Condition{stopped}}},
		{stage: {Capacity: 2, Allocated: 2, Conditions: []metav1.Condition{full, shared}}},
		{},
	}
	c := fleetRange(use(prod, "m", 2, 0), use(stage, "s", 2, 0))
	for i := range 9 {
		changed, _ := ApplyFleetStatus(c, knows[i%3], true, noon.Add(time.Duration(i)*time.Second))
		if changed && i > 1 {
			t.Errorf("at turn %d it is written again: %+v", i, c.Status.Conditions)
		}
	}
	for of, want := range map[string]string{
		v1alpha1.ReadyCondition:     "in Cluster team/unnamed: " + stopped.Message,
		v1alpha1.ExhaustedCondition: "in Cluster team/prod, team/stage: " + full.Message,
		v1alpha1.OverlapCondition:   "in Cluster team/prod, team/stage: " + shared.Message,
	} {
		if condition := meta.FindStatusCondition(c.Status.Conditions, of); condition.Message != want {
			t.Errorf("%s says %q", of, condition.Message)
		}
	}
	ApplyFleetStatus(c, map[ClusterKey]Usage{prod: {Capacity: 2, Allocated: 1, Free: 1}, unnamed: {NodesUnread: true}}, true, noon)
	for of, want := range map[string]string{
		v1alpha1.ReadyCondition:     "0 of 2 node CIDRs are free in Cluster team/stage, and no fewer in others",
		v1alpha1.ExhaustedCondition: "in Cluster team/stage: " + full.Message,
		v1alpha1.OverlapCondition:   "in Cluster team/stage: " + shared.Message,
	} {
		if condition := meta.FindStatusCondition(c.Status.Conditions, of); condition.Message != want {
			t.Errorf("when it is over in two of them, %s says %q", of, condition.Message)
		}
	}
}

// TestTruncatedListKeepsAllClusters checks that no Cluster gets lost from a list that is too long to be shown.
func TestTruncatedListKeepsAllClusters(t *testing.T) {
	shared := newCondition(v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.SharedRangeReason, "d share some of the addresses")
	c, by := fleetRange(), map[ClusterKey]Usage{}
	for i := range 2 * maxNamesShown {
		key := ClusterKey{Namespace: "team", Name: string(rune('a' + i))}
		c.Status.Clusters = append(c.Status.Clusters, use(key, "m", 1, 1))
		by[key] = Usage{Allocated: 1, Free: 1, Conditions: []metav1.Condition{shared}}
	}
	ApplyFleetStatus(c, by, true, noon)
	if changed, _ := ApplyFleetStatus(c, nil, true, noon); changed {
		t.Errorf("it is written again: %+v", c.Status.Conditions)
	}
	for i := range maxNamesShown {
		by[ClusterKey{Namespace: "team", Name: string(rune('a' + i))}] = Usage{Allocated: 1, Free: 1}
		delete(by, ClusterKey{Namespace: "team", Name: string(rune('a' + maxNamesShown + i))})
	}
	ApplyFleetStatus(c, by, true, noon)
	if condition := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.OverlapCondition); condition.Message != "in Cluster team/f, team/g, team/h, team/i, team/j: "+shared.Message {
		t.Errorf("it says %q", condition.Message)
	}
}
