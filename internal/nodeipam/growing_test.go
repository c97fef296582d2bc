package nodeipam

import (
	"encoding/json"
	"fmt"
	"net/netip"
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

// These tests are about what grows with the size of a cluster: the work of a reconcile, and the ConfigMap.

// manyRanges returns ClusterCIDRs of a /20 each, each for the Nodes of one group.
func manyRanges(n int, name string) []RangeObject {
	var out []RangeObject
	for i := range n {
		c := newRange(v1alpha1.ClusterCIDRFinalizer)
		c.Name, c.UID = fmt.Sprintf(name, i), types.UID(fmt.Sprintf("cc-%05d", i))
		c.Spec.IPv4 = fmt.Sprintf("10.%d.%d.0/20", i/16, i%16*16)
		c.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "group", Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprint(i)}}},
		}}}
		out = append(out, RangeObjectFromClusterCIDR(c))
	}
	return out
}

// newFilledState returns the state of a holder of the given number of ranges, with Nodes that have CIDRs of them. Half
// of the Nodes name no ClusterCIDR.
func newFilledState(ranges, nodes int) *nodeState {
	m := newNodeState(ClusterKey{}, 0)
	m.setRangeObjects(manyRanges(ranges, "cc-%05d"))
	listed := map[types.UID]*nodeEntry{}
	for i := range nodes {
		r := i % ranges
		n := &podcidr.Node{Name: fmt.Sprintf("worker-%05d", i), UID: types.UID(fmt.Sprintf("w%05d", i)), CreatedAt: noon}
		if i/ranges%2 == 0 {
			n.ClusterCIDRName = fmt.Sprintf("cc-%05d", r)
		}
		n.CIDRs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", r/16, r%16*16+i/ranges%16))}
		listed[n.UID] = newNodeEntry(n, "1", noon)
	}
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1, Seq: 1}, listed, noon)
	return m
}

func closeAll(m *nodeState) {
	for ref, o := range m.ranges.objects {
		o.Closing, o.HasFinalizer, o.Range.Closing = true, true, true
		m.ranges.objects[ref] = o
	}
}

// TestReconcileScansNodesOnce checks that, however many ranges close, a reconcile scans all Nodes once, and a
// reconcile without changes does not.
func TestReconcileScansNodesOnce(t *testing.T) {
	m := newFilledState(300, 3000)
	closeAll(m)
	turn := func() {
		m.protection.checkFinalizers(nil, noon)
		m.commits.prepareCommit(noon)
		m.protection.objectsToUnprotect()
		m.protection.hasObjectToClose()
		m.reports.buildReport()
	}
	before := m.usage.scans
	if turn(); m.usage.scans-before != 1 {
		t.Errorf("a turn looks at the Nodes %d times", m.usage.scans-before)
	}
	for i := range 100 {
		n := *m.nodes.byUID["w00007"].Node
		m.observeNode(&n, fmt.Sprint(i+10), noon) // a heartbeat
		turn()
	}
	if m.usage.scans-before != 1 {
		t.Errorf("with nothing but heartbeats it looks at them %d times", m.usage.scans-before)
	}
	if users := m.usage.nodesUsing(m.ranges.objects[podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "cc-00007", UID: "cc-00007"}]); len(users) != 10 {
		t.Fatalf("cc-00007 is used by %v", users)
	}
	m.forgetNode("w00007", noon)
	if users := m.usage.nodesUsing(m.ranges.objects[podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "cc-00007", UID: "cc-00007"}]); len(users) != 9 {
		t.Errorf("then cc-00007 is used by %v", users)
	}
}

func BenchmarkReport(b *testing.B) {
	for _, c := range []struct{ ranges, nodes int }{{10, 5000}, {1000, 5000}, {1000, 16000}, {4000, 16000}} {
		b.Run(fmt.Sprintf("%dx%d", c.ranges, c.nodes), func(b *testing.B) {
			m := newFilledState(c.ranges, c.nodes)
			b.ResetTimer()
			for range b.N {
				m.usage.invalidateUsage()
				m.reports.buildReport()
			}
		})
	}
}

func BenchmarkClosing(b *testing.B) {
	for _, c := range []struct{ ranges, nodes int }{{10, 5000}, {1000, 5000}, {1000, 16000}} {
		b.Run(fmt.Sprintf("%dx%d", c.ranges, c.nodes), func(b *testing.B) {
			m := newFilledState(c.ranges, c.nodes)
			closeAll(m)
			b.ResetTimer()
			for range b.N {
				m.usage.invalidateUsage()
				m.commits.prepareCommit(noon)
				m.protection.objectsToUnprotect()
				m.reports.buildReport()
			}
		})
	}
}

func BenchmarkHeartbeat(b *testing.B) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "worker-00000", UID: "w00000", Annotations: map[string]string{v1alpha1.ClusterCIDRAnnotation: "cc-00000"}, Labels: map[string]string{"a": "b", "c": "d"},
	}}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.0.0.0/24", []string{"10.0.0.0/24"}
	s := newAllocatorForState(Options{Now: time.Now}, newFilledState(300, 4800))
	b.ReportAllocs()
	for i := range b.N {
		n.ResourceVersion = fmt.Sprint(i + 10)
		if _, wake := s.ObserveObject(n); wake && i > 0 {
			b.Fatal("a heartbeat wakes the site")
		}
	}
}

// TestConfigMapIsBounded checks that the ConfigMap stays below 1 MiB, whatever the names, and however many writes
// hang, and that the report shows when it is full.
func TestConfigMapIsBounded(t *testing.T) {
	long := strings.Repeat("x", 240) + "-%05d"
	m := newNodeState(ClusterKey{}, 0)
	m.setRangeObjects(manyRanges(200, long))
	listed := map[types.UID]*nodeEntry{}
	for i := range 2200 {
		n := newTestNode(fmt.Sprintf(long, i))
		n.UID = types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))
		n.Labels = map[string]string{"group": fmt.Sprint(i % 200)}
		listed[n.UID] = newNodeEntry(n, "1", noon)
	}
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1, Seq: 1}, listed, noon)
	most, now := 0, noon
	for range 40 {
		now = now.Add(time.Minute)
		m.planner.planGrants(now)
		state, p, _ := m.commits.prepareCommit(now)
		raw, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		if most = max(most, len(raw)); p != nil {
			m.commits.recordCommitted(p, false, now)
		}
		due, _ := m.writes.collectDueGrants(now)
		for _, g := range due {
			m.writes.beginWrite(g)
		}
		for _, g := range due {
			m.writes.recordWrite(g, timeout, now)
		}
	}
	if most > 1<<20 || most < maxStateBytes/2 {
		t.Errorf("it has up to %d bytes", most)
	}
	if stopped := m.reports.buildReport().StoppedCondition; stopped == nil || stopped.Reason != v1alpha1.FenceRefusedReason {
		t.Errorf("it says %v", stopped)
	}
}
