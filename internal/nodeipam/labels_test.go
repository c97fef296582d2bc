package nodeipam

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestNodeWaitsForItsLabels checks that a Node with a taint for labels that come later, for example those of its
// Machine, waits for them where labels decide, and not forever.
func TestNodeWaitsForItsLabels(t *testing.T) { // K50
	for name, tc := range map[string]struct {
		taint   string
		chooses bool
		labels  time.Duration
		after   time.Duration
		from    string
	}{
		"they come":                        {clusterv1.NodeUninitializedTaint.Key, true, 5 * time.Second, 5 * time.Second, "big"},
		"they never come":                  {clusterv1.NodeUninitializedTaint.Key, true, 0, machineLabelsTimeout, "c"},
		"of a cloud, never":                {cloudProviderTaint, true, 0, cloudLabelsTimeout, "c"},
		"another taint":                    {"node.kubernetes.io/not-ready", true, 0, 0, "c"},
		"no ClusterCIDR is for some Nodes": {clusterv1.NodeUninitializedTaint.Key, false, 0, 0, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHolderState(t, "10.0.0.0/16")
			if tc.chooses {
				all := []RangeObject{forSizeObject("big", "10.1.0.0/16")}
				for _, o := range m.ranges.objects {
					all = append(all, o)
				}
				m.setRangeObjects(all)
			}
			o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}}
			o.Spec.Taints = []corev1.Taint{{Key: tc.taint, Effect: corev1.TaintEffectNoSchedule}}
			m.observeNode(nodeFromObject(o), "1", noon)
			now := noon
			for ; m.grants.byNode["a"] == nil && now.Before(noon.Add(time.Hour)); now = now.Add(time.Second) {
				if tc.labels > 0 && now.Sub(noon) >= tc.labels {
					o.Spec.Taints, o.Labels = nil, map[string]string{"size": "big"}
					m.observeNode(nodeFromObject(o), "2", now)
				}
				if _, wait := m.planner.planGrants(now); m.grants.byNode["a"] == nil && (wait <= 0 || wait > machineLabelsTimeout) {
					t.Fatalf("it waits, and is reconciled again after %v", wait)
				}
			}
			if after := now.Add(-time.Second).Sub(noon); after != tc.after || m.grants.byNode["a"].RangeRef.Name != tc.from {
				t.Errorf("after %v it is granted something of %s", after, m.grants.byNode["a"].RangeRef.Name)
			}
		})
	}
}

// TestLateLabelsAreReported checks that labels that select another ClusterCIDR than the one that a Node has CIDRs of,
// for its life, cause one event, and that a heartbeat causes none.
func TestLateLabelsAreReported(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/16")
	s := newAllocatorForState(Options{Now: func() time.Time { return noon }}, m)
	all := []RangeObject{forSizeObject("big", "10.1.0.0/16")}
	for _, o := range m.ranges.objects {
		all = append(all, o)
	}
	m.setRangeObjects(all)
	version := 1
	see := func(change func(*corev1.Node)) []pendingEvent {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", Annotations: map[string]string{v1alpha1.ClusterCIDRAnnotation: "c"}}}
		o.Spec.PodCIDRs = []string{"10.0.0.0/24"}
		change(o)
		version++
		o.ResourceVersion = fmt.Sprint(version)
		s.ObserveObject(o)
		return m.events.pending
	}
	for i := range 3 {
		if notes := see(func(o *corev1.Node) { o.Annotations["beat"] = fmt.Sprint(i) }); len(notes) > 0 {
			t.Fatalf("of a heartbeat it says %v", notes)
		}
	}
	if notes := see(func(o *corev1.Node) { o.Labels = map[string]string{"zone": "a"} }); len(notes) > 0 {
		t.Fatalf("of a label that decides nothing it says %v", notes)
	}
	for range 3 {
		notes := see(func(o *corev1.Node) { o.Labels = map[string]string{"size": "big"} })
		if len(notes) != 1 || notes[0].reason != PodCIDRLabelsLate || !strings.Contains(notes[0].message, "now select ClusterCIDR big") {
			t.Fatalf("it says %v", notes)
		}
	}
}

// TestLabelsThatComeWithTheCIDRs checks that the labels count that a Node had before it got its CIDRs: changed labels
// and the CIDRs may come in one event.
func TestLabelsThatComeWithTheCIDRs(t *testing.T) {
	s := newAllocatorForState(Options{Now: func() time.Time { return noon }}, newHolderState(t, "10.0.0.0/16"))
	all := []RangeObject{forSizeObject("big", "10.1.0.0/16")}
	for _, o := range s.state.ranges.objects {
		all = append(all, o)
	}
	s.state.setRangeObjects(all)
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "1"}}
	s.ObserveObject(o)
	o = o.DeepCopy()
	o.ResourceVersion, o.Labels, o.Spec.PodCIDRs = "2", map[string]string{"size": "big"}, []string{"10.0.0.0/24"}
	s.ObserveObject(o)
	if notes := s.state.events.pending; len(notes) != 1 || notes[0].reason != PodCIDRLabelsLate {
		t.Errorf("it says %v", notes)
	}
}
