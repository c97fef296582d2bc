package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

func newNamedNode(name string, cidrs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

// reconcileForMinutes reconciles an allocator for some minutes; every reconcile fails while the API server is away.
func reconcileForMinutes(t *testing.T, s *ClusterAllocator, away bool) {
	t.Helper()
	for range 30 {
		if _, err := s.Reconcile(t.Context()); err != nil && !away {
			t.Fatal(err)
		}
		synctest.Wait()
		<-time.After(10 * time.Second)
	}
}

// writesOf returns the writes of Nodes among the calls from the given index on.
func (c *requestLog) writesOf(from int) (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.all[from:] {
		if strings.Contains(text, "*v1.Node ") {
			out = append(out, text)
		}
	}
	return out
}

// TestPodCIDRsAreWrittenOnce checks K18 and K19: the pod CIDRs of a Node are never written again, whether a manager or
// a user set them, and whatever happens to the ranges.
func TestPodCIDRsAreWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newTestSite(t, newRange(), newNamedNode("ours", "10.0.0.0/24"), newNamedNode("foreign", "192.168.7.0/24"), newNamedNode("both", "10.0.1.0/25", "fd00::/120"))
		reconcileForMinutes(t, s, false) // what was there before is adopted
		other := newRange()
		other.Name, other.UID, other.Spec.IPv4 = "d", "uid-d", "10.9.0.0/16"
		if err := c.Create(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name   string
			change func()
		}{
			{"nothing", func() {}},
			{"a range that fits better", func() {
				s.SetRangeObjects([]RangeObject{RangeObjectFromClusterCIDR(newRange()), RangeObjectFromClusterCIDR(other)})
			}},
			{"Services have its CIDR", func() { s.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}) }},
			{"its labels are other ones", func() {
				n := newNamedNode("ours", "10.0.0.0/24")
				n.ResourceVersion, n.Labels = "77", map[string]string{"size": "big"}
				s.ObserveObject(n)
			}},
			{"no range has it any more", func() { s.SetRangeObjects([]RangeObject{RangeObjectFromClusterCIDR(other)}) }},
			{"no range at all", func() { s.SetRangeObjects(nil) }},
		} {
			tc.change()
			reconcileForMinutes(t, s, false)
			if got := c.writesOf(0); len(got) > 0 {
				t.Fatalf("%s: %v", tc.name, got)
			}
		}
		s.SetServiceCIDRs(nil)
		s.SetRangeObjects([]RangeObject{RangeObjectFromClusterCIDR(other)})
		s.ObserveObject(newNamedNode("waits"))
		if err := c.Create(t.Context(), newNamedNode("waits")); err != nil {
			t.Fatal(err)
		}
		reconcileForMinutes(t, s, false)
		if got := c.writesOf(0); len(got) != 1 || !strings.Contains(got[0], `"uid":"uid-waits"`) {
			t.Errorf("one Node waits, and these are written: %v", got)
		}
	})
}

// TestWaitReasonIsRecordedOnce checks K32: the event with the reason why a Node gets nothing is recorded
// once for each reason, however long it lasts, and however often it comes back.
func TestWaitReasonIsRecordedOnce(t *testing.T) {
	big := newTestNode("big")
	big.Labels = map[string]string{"size": "big"}
	m := newHolderState(t, "10.0.0.0/24", newTestNode("a", "10.0.0.0/24"), newTestNode("b"), big)
	full, none := m.ranges.objects, RangeObjectFromClusterCIDR(&v1alpha1.ClusterCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "none", UID: "none"},
		Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.9.0.0/24", NodeSelector: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpIn, Values: []string{"huge"}}}}},
		}},
	})
	var objects []RangeObject
	for _, o := range full {
		objects = append(objects, o)
	}
	now := noon
	for i, tc := range []struct {
		objects   []RangeObject
		wantEvent string
	}{
		{objects, "all ClusterCIDRs that match are full: c (1 Node)"},
		{[]RangeObject{none}, "no ClusterCIDR selects it; there are none"},
		{nil, "there is no ClusterCIDR"},
		{objects, ""},             // it was recorded before
		{[]RangeObject{none}, ""}, // so was this
		{nil, ""},
	} {
		m.setRangeObjects(tc.objects)
		for range 100 {
			now = now.Add(time.Minute)
			m.planner.planGrants(now)
		}
		of := map[string][]string{}
		for _, n := range m.events.pending {
			if n.reason == CIDRNotAvailable {
				of[n.nodeName] = append(of[n.nodeName], n.message)
			}
		}
		for _, name := range []string{"b", "big"} {
			switch got := of[name]; {
			case tc.wantEvent == "" && len(got) > 0:
				t.Errorf("%d: %s gets the event again: %q", i, name, got)
			case tc.wantEvent != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.wantEvent)):
				t.Errorf("%d: %s gets the events %q, and is to get one event %q", i, name, got, tc.wantEvent)
			}
		}
		if len(of["a"]) > 0 {
			t.Errorf("%d: a Node that has its CIDR gets the event %q", i, of["a"])
		}
		m.events.pending = nil // they were recorded
	}
}

// TestHundredsOfClusterCIDRs checks K42: hundreds of ClusterCIDRs, each for Nodes of its own, serve thousands of Nodes,
// each Node from its own ClusterCIDR, in its size.
func TestHundredsOfClusterCIDRs(t *testing.T) {
	const nodes, ranges = 5_000, 300
	m := newNodeState(ClusterKey{}, 0)
	var objects []RangeObject
	for i := range ranges {
		c := newRange("x")
		c.Name, c.UID, c.Spec.IPv4 = fmt.Sprint("c", i), types.UID(fmt.Sprint("c", i)), "10.0.0.0/8"
		c.Spec.PerNodeHostBits = int32(6 + i%4)
		c.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprint(i)}}},
		}}}
		objects = append(objects, RangeObjectFromClusterCIDR(c))
	}
	m.setRangeObjects(objects)
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1, Seq: 1}, map[types.UID]*nodeEntry{}, noon)
	rack := map[types.UID]int{}
	for i := range nodes {
		n := newTestNode(fmt.Sprintf("worker-%05d", i))
		rack[n.UID], n.Labels = i%ranges, map[string]string{"rack": fmt.Sprint(i % ranges)}
		m.observeNode(n, "1", noon)
	}
	allocated := map[types.UID]podcidr.Grant{}
	for now := noon; len(allocated) < nodes && now.Before(noon.Add(time.Hour)); now = now.Add(time.Second) {
		m.planner.planGrants(now)
		if _, p, _ := m.commits.prepareCommit(now); p != nil {
			m.commits.recordCommitted(p, false, now)
		}
		for uid, g := range m.grants.byNode {
			allocated[uid] = g.Grant
			n := *g.Node
			n.CIDRs, n.Labels, n.ClusterCIDRName = g.CIDRs, nil, g.RangeRef.Name
			m.observeNode(&n, "2", now)
		}
	}
	var all []netip.Prefix
	for uid, g := range allocated {
		if want := rack[uid]; g.RangeRef.Name != fmt.Sprint("c", want) || g.CIDRs[0].Bits() != 32-6-want%4 || g.RangesTried != 1 {
			t.Fatalf("a Node of rack %d gets %v of %s, of which %d were tried", want, g.CIDRs, g.RangeRef.Name, g.RangesTried)
		}
		all = append(all, g.CIDRs[0])
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	for i := 1; i < len(all); i++ {
		if all[i].Overlaps(all[i-1]) {
			t.Fatalf("%s and %s are given", all[i-1], all[i])
		}
	}
	if len(all) != nodes {
		t.Errorf("%d of %d Nodes are served", len(all), nodes)
	}
}

// TestFullClusterIsExpanded checks K44 and K40: a cluster that is full is expanded by a separate ClusterCIDR, and
// again; what Nodes have stays.
func TestFullClusterIsExpanded(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/23", newTestNode("a", "10.0.0.0/24"), newTestNode("b", "10.0.1.0/24"), newTestNode("c"), newTestNode("d"), newTestNode("e"))
	if got := m.grantAll(t); len(got) > 0 {
		t.Fatalf("a full range gives %v", got)
	}
	var objects []RangeObject
	for _, o := range m.ranges.objects {
		objects = append(objects, o)
	}
	had := map[string]string{}
	for i, cidr := range []string{"172.16.9.0/24", "192.168.0.0/23"} {
		more := newRange(v1alpha1.ClusterCIDRFinalizer)
		more.Name, more.UID, more.Spec.IPv4 = fmt.Sprint("more", i), types.UID(fmt.Sprint("more", i)), cidr
		objects = append(objects, RangeObjectFromClusterCIDR(more))
		m.setRangeObjects(objects)
		m.grantAll(t) // one commit opens it, and the next grants from it
		got := m.grantAll(t)
		for name, previous := range had {
			if got[name] != previous {
				t.Errorf("%s has %s after it had %s", name, got[name], previous)
			}
		}
		had = got
	}
	want := map[string]string{"c": "172.16.9.0/24", "d": "192.168.0.0/24", "e": "192.168.1.0/24"}
	if fmt.Sprint(had) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", had, want)
	}
	for name, cidr := range map[types.UID]string{"a": "10.0.0.0/24", "b": "10.0.1.0/24"} {
		if got := m.nodes.byUID[name].CIDRs; len(got) != 1 || got[0].String() != cidr {
			t.Errorf("%s has %v", name, got)
		}
	}
}

// TestMetricsOfAGrant checks K45: metrics have the names that node-ipam-controller uses, and count grants and releases.
func TestMetricsOfAGrant(t *testing.T) {
	for want, of := range map[string]prometheus.Collector{
		"cidrs_allocations_total": metrics.NodeCIDRAllocations, "cidrs_releases_total": metrics.NodeCIDRReleases,
		"usage_cidrs": metrics.NodeCIDRUsage, "max_cidrs": metrics.NodeCIDRMax, "allocation_tries_per_request": metrics.NodeCIDRAllocationTries,
	} {
		all := make(chan *prometheus.Desc, 1)
		of.Describe(all)
		if text := (<-all).String(); !strings.Contains(text, `fqName: "node_ipam_controller_multicidrset_`+want+`"`) {
			t.Errorf("%s is not called so: %s", want, text)
		}
	}
	tries := func() *dto.Histogram {
		var metric dto.Metric
		if err := metrics.NodeCIDRAllocationTries.Write(&metric); err != nil {
			t.Fatal(err)
		}
		return metric.GetHistogram()
	}
	if b := tries().GetBucket(); len(b) < 4 || b[2].GetUpperBound() != 25 || b[3].GetUpperBound() != 125 {
		t.Errorf("more than 25 tries cannot be distinguished from more than 125: %v", b)
	}
	synctest.Test(t, func(t *testing.T) {
		s, _ := newTestSite(t, newRange(), newNamedNode("a"), newNamedNode("b"))
		s.ClusterKey = ClusterKey{Namespace: "counted", Name: "counted"}
		t.Cleanup(s.Close)
		of := []string{"10.0.0.0/23", "c", "counted", "counted"}
		before, sumBefore := tries().GetSampleCount(), tries().GetSampleSum()
		allocations, gone := metrics.NodeCIDRAllocations.WithLabelValues(of...), metrics.NodeCIDRReleases.WithLabelValues(of...)
		allocationsBefore, goneBefore := testutil.ToFloat64(allocations), testutil.ToFloat64(gone) // the metrics are shared by the whole process
		counts := func() [4]float64 {
			s.BuildReport()
			return [4]float64{
				testutil.ToFloat64(allocations) - allocationsBefore, testutil.ToFloat64(gone) - goneBefore,
				testutil.ToFloat64(metrics.NodeCIDRUsage.WithLabelValues(of...)), testutil.ToFloat64(metrics.NodeCIDRMax.WithLabelValues(of...)),
			}
		}
		reconcileForMinutes(t, s, false)
		if got := counts(); got != [4]float64{2, 0, 1, 2} {
			t.Errorf("after two Nodes: %v", got)
		}
		if n, sum := tries().GetSampleCount()-before, tries().GetSampleSum()-sumBefore; n != 2 || sum != 2 {
			t.Errorf("%d Nodes were given something, by %v looks", n, sum)
		}
		s.ForgetObject(newNamedNode("a"))
		s.ForgetObject(newNamedNode("a")) // that it is gone is seen twice
		reconcileForMinutes(t, s, false)
		if got := counts(); got != [4]float64{2, 1, 0.5, 2} {
			t.Errorf("after one is gone: %v", got)
		}
	})
}

// TestNodesWaitWhileAPIServerIsAway checks K49: while the API server is away Nodes wait, Nodes with CIDRs keep them,
// and no range is released; when it is back, the Nodes that wait are served from what is free.
func TestNodesWaitWhileAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newTestSite(t, newRange(), newNamedNode("a"))
		reconcileForMinutes(t, s, false)
		var a corev1.Node
		if err := c.Get(t.Context(), client.ObjectKey{Name: "a"}, &a); err != nil || len(a.Spec.PodCIDRs) != 1 {
			t.Fatalf("%v: the Node has %v", err, a.Spec.PodCIDRs)
		}
		if err := c.Create(t.Context(), newNamedNode("b")); err != nil {
			t.Fatal(err)
		}
		c.failAll = true
		from := len(c.all)
		s.ObserveObject(newNamedNode("b"))
		reconcileForMinutes(t, s, true)
		deleting := newRange(v1alpha1.ClusterCIDRFinalizer)
		deleting.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		s.SetRangeObjects([]RangeObject{RangeObjectFromClusterCIDR(deleting)}) // the watch showed that before
		reconcileForMinutes(t, s, true)
		for _, text := range c.writesOf(from) {
			if strings.Contains(text, "uid-a") {
				t.Errorf("a Node that has its CIDR is written: %s", text)
			}
		}
		if m := s.state.lock(); len(m.nodes.byUID["uid-a"].CIDRs) != 1 {
			t.Errorf("of the Node this is known: %v", m.nodes.byUID["uid-a"].CIDRs)
			m.Unlock()
		} else {
			m.Unlock()
		}
		c.failAll = false
		var held v1alpha1.ClusterCIDR
		if err := c.Get(t.Context(), client.ObjectKey{Name: "c"}, &held); err != nil || !slices.Contains(held.Finalizers, v1alpha1.ClusterCIDRFinalizer) {
			t.Errorf("%v: the ClusterCIDR is held by %v", err, held.Finalizers)
		}
		s.SetRangeObjects([]RangeObject{RangeObjectFromClusterCIDR(&held)})
		reconcileForMinutes(t, s, false)
		var b, again corev1.Node
		if err := c.Get(t.Context(), client.ObjectKey{Name: "b"}, &b); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKey{Name: "a"}, &again); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(a.Spec.PodCIDRs, again.Spec.PodCIDRs) || len(b.Spec.PodCIDRs) != 1 || b.Spec.PodCIDRs[0] == a.Spec.PodCIDRs[0] {
			t.Errorf("a had %v and has %v, b has %v", a.Spec.PodCIDRs, again.Spec.PodCIDRs, b.Spec.PodCIDRs)
		}
	})
}
