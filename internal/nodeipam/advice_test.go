package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// TestNodeEventsNameStepsThatHelp checks W29: a Node that waits, or has CIDRs that it should not have, is served after
// the advice in its event is followed.
func TestNodeEventsNameStepsThatHelp(t *testing.T) {
	node := func(name, size string, cidrs ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon)}}
		if n.Spec.PodCIDRs = cidrs; size != "" {
			n.Labels = map[string]string{"size": size}
		}
		return n
	}
	of := func(name, cidr string) RangeObject {
		return RangeObjectFromClusterCIDR(&v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: cidr}})
	}
	again := func(name string, cidrs ...string) corev1.Node {
		n := node(name, "", cidrs...)
		n.UID = types.UID(name + "-again")
		return n
	}
	services := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	type nodes = []corev1.Node
	for name, c := range map[string]struct {
		snapshot    Snapshot
		uid         types.UID
		wantMessage string
		do          []Snapshot // the state after each of the steps
		then        types.UID
	}{
		"there is no ClusterCIDR": {snapshot: Snapshot{Nodes: nodes{node("a", "")}}, uid: "a", wantMessage: "there is no ClusterCIDR; add one", do: []Snapshot{{Nodes: nodes{node("a", "")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/23")}}}},
		"none selects it": {snapshot: Snapshot{Nodes: nodes{node("a", "")}, RangeObjects: []RangeObject{forSizeObject("big", "10.1.0.0/16")}}, uid: "a", wantMessage: "add one that does, or change its labels", do: []Snapshot{
			{Nodes: nodes{node("a", "")}, RangeObjects: []RangeObject{forSizeObject("big", "10.1.0.0/16"), of("c", "10.0.0.0/23")}},
			{Nodes: nodes{node("a", "big")}, RangeObjects: []RangeObject{forSizeObject("big", "10.1.0.0/16")}},
		}},
		"all are full": {snapshot: Snapshot{Nodes: nodes{node("a", "", "10.0.0.0/24"), node("b", "")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/24")}}, uid: "b", wantMessage: "add a ClusterCIDR, or delete Nodes", do: []Snapshot{
			{Nodes: nodes{node("a", "", "10.0.0.0/24"), node("b", "")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/24"), of("d", "10.1.0.0/24")}},
			{Nodes: nodes{node("b", "")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/24")}},
		}},
		"all of it is for Services": {snapshot: Snapshot{Nodes: nodes{node("a", "")}, RangeObjects: []RangeObject{of("c", "10.96.0.0/24")}, ServiceCIDRs: services}, uid: "a", wantMessage: "add a ClusterCIDR with another range", do: []Snapshot{
			{Nodes: nodes{node("a", "")}, RangeObjects: []RangeObject{of("c", "10.96.0.0/24"), of("d", "10.0.0.0/24")}, ServiceCIDRs: services},
			{Nodes: nodes{node("a", "")}, RangeObjects: []RangeObject{of("d", "10.0.0.0/24")}, ServiceCIDRs: services},
		}},
		"two have one": {snapshot: Snapshot{Nodes: nodes{node("a", "", "10.0.0.0/24"), node("b", "", "10.0.0.0/24")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/23")}}, uid: "b", wantMessage: "drain and delete one of the two, so that it registers again",
			do: []Snapshot{{Nodes: nodes{node("a", "", "10.0.0.0/24"), again("b")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/23")}}}, then: "b-again"},
		"it has one of Services": {snapshot: Snapshot{Nodes: nodes{node("a", "", "10.96.1.0/24")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/23")}, ServiceCIDRs: services}, uid: "a", wantMessage: "drain and delete the Node, so that it registers again",
			do: []Snapshot{{Nodes: nodes{again("a")}, RangeObjects: []RangeObject{of("c", "10.0.0.0/23")}, ServiceCIDRs: services}}, then: "a-again"},
	} {
		t.Run(name, func(t *testing.T) {
			messageFor := func(v *SnapshotView, of types.UID) string {
				var out []string
				for _, n := range v.EventsForNode(of) {
					out = append(out, n.Message)
				}
				return strings.Join(out, "; ")
			}
			if text := messageFor(NewSnapshotView(c.snapshot, noon), c.uid); !strings.Contains(text, c.wantMessage) {
				t.Fatalf("its message is %q", text)
			}
			if c.then == "" {
				c.then = c.uid
			}
			for i, m := range c.do {
				v := NewSnapshotView(m, noon)
				if _, ok := v.PlannedGrant(c.then); !ok {
					t.Errorf("after step %d it gets nothing, and its message is %q", i, messageFor(v, c.then))
				}
			}
		})
	}
}

// TestClusterCIDRMessagesNameStepsThatHelp checks W29: the advice in the conditions of a ClusterCIDR helps, for blocks
// that are too large.
func TestClusterCIDRMessagesNameStepsThatHelp(t *testing.T) {
	o := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4Pool: &v1alpha1.PodPool{Kind: v1alpha1.NetworkPoolKind, Name: "p", NodesPerBlock: 1 << 30}}}
	if object := RangeObjectFromClusterCIDR(o); len(object.ValidationErrors) == 0 || !strings.Contains(object.ValidationErrors.ToAggregate().Error(), "use fewer, or fewer perNodeHostBits") {
		t.Fatalf("%+v", object.ValidationErrors)
	}
	for _, do := range []func(*v1alpha1.ClusterCIDRSpec){
		func(s *v1alpha1.ClusterCIDRSpec) { s.IPv4Pool.NodesPerBlock = 4 },
		func(s *v1alpha1.ClusterCIDRSpec) { s.PerNodeHostBits, s.IPv4Pool.NodesPerBlock = 4, 1<<26 },
	} {
		changed := o.DeepCopy()
		do(&changed.Spec)
		if object := RangeObjectFromClusterCIDR(changed); len(object.ValidationErrors) > 0 {
			t.Errorf("%+v", object.ValidationErrors)
		}
	}
}

// TestFullConfigMapAdviceHelps checks W29: a ConfigMap without room for another grant has room again when
// ClusterCIDRs are deleted that no Node uses.
func TestFullConfigMapAdviceHelps(t *testing.T) {
	const ranges = 4000
	long := strings.Repeat("x", 240) + "-%05d"
	all := manyRanges(ranges, long)
	m := newNodeState(ClusterKey{}, 0)
	m.setRangeObjects(all)
	listed := map[types.UID]*nodeEntry{}
	of := func(i int) *podcidr.Node {
		n := newTestNode(fmt.Sprintf("n-%05d", i))
		n.UID, n.Labels = types.UID(n.Name), map[string]string{"group": fmt.Sprint(i)}
		return n
	}
	for i := range ranges {
		listed[of(i).UID] = newNodeEntry(of(i), "1", noon)
	}
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1, Seq: 1}, listed, noon)
	now := noon
	turns := func(done func() bool) {
		for i := 0; i < 200 && !done(); i++ {
			now = now.Add(time.Minute)
			m.reconcileAt(now, func(*nodeGrant) error { return nil })
		}
	}
	turns(func() bool { return m.reports.buildReport().StoppedCondition != nil })
	if condition := m.reports.buildReport().StoppedCondition; condition == nil || !strings.Contains(condition.Message, "delete ClusterCIDRs that no Node uses") {
		t.Fatalf("it says %v", condition)
	}
	last := of(ranges - 1)
	if len(m.nodes.byUID[last.UID].CIDRs) > 0 {
		t.Fatal("the last one is served")
	}
	for i := range ranges - 1 {
		m.forgetNode(of(i).UID, now)
	}
	m.setRangeObjects(slices.DeleteFunc(all, func(o RangeObject) bool { return !strings.HasSuffix(o.Name, fmt.Sprintf("-%05d", ranges-1)) }))
	turns(func() bool { return len(m.nodes.byUID[last.UID].CIDRs) > 0 })
	if len(m.nodes.byUID[last.UID].CIDRs) == 0 {
		t.Errorf("the last one waits: %v", m.reports.buildReport().StoppedCondition)
	}
}
