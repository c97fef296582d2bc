package nodeipam

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// newSiteWithoutElection returns an allocator without leader election, with a range for two Nodes, two Nodes that have
// its CIDRs, and Node b.
func newSiteWithoutElection(t *testing.T, of *v1alpha1.ClusterCIDR, b *corev1.Node) (*ClusterAllocator, *events.FakeRecorder) {
	t.Helper()
	of.Finalizers = []string{v1alpha1.ClusterCIDRFinalizer}
	other := newNode("10.0.1.0/24")
	other.Name, other.UID = "other", "uid-other"
	b.Name, b.UID = "b", "uid-b"
	s, _ := newTestSite(t, of, newNode("10.0.0.0/24"), other, b)
	recorder := events.NewFakeRecorder(10)
	s.Elected, s.Recorder = false, recorder
	return s, recorder
}

// reconcileEachSecond reconciles a manager each second for a time.
func reconcileEachSecond(t *testing.T, s *ClusterAllocator, long time.Duration, each func()) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); <-time.After(time.Second) {
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.BuildReport()
		each()
		s.EmitEvents()
	}
}

// TestPendingEventsAreRecorded checks K32: the events of Nodes are recorded where no manager holds the cluster and
// there is nothing to grant: by a leader at once, by another manager when no holder has recorded them. They are
// recorded once.
func TestPendingEventsAreRecorded(t *testing.T) {
	unmatched := newRange()
	unmatched.Spec.NodeSelector = sizeSelector()
	for name, tc := range map[string]struct {
		of    *v1alpha1.ClusterCIDR
		node  *corev1.Node
		event string
		times int
	}{
		"all are full":        {newRange(), newNode(), "are full", 1},
		"none selects it":     {unmatched, newNode(), "no ClusterCIDR selects it", 1},
		"its CIDR is foreign": {newRange(), newNode("192.168.0.0/24"), PodCIDRForeign, 1},
		"its CIDR is taken":   {newRange(), newNode("10.0.1.0/24"), PodCIDRConflict, 2},
	} {
		for _, elected := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, recorder := newSiteWithoutElection(t, tc.of.DeepCopy(), tc.node.DeepCopy())
					s.Elected = elected
					reconcileEachSecond(t, s, deferredEventDelay+2*adoptionPeriod, func() {})
					all := 0
					for len(recorder.Events) > 0 {
						if e := <-recorder.Events; strings.Contains(e, tc.event) {
							all++
						}
					}
					if all != tc.times {
						t.Errorf("elected %v: it gets %d events", elected, all)
					}
				})
			})
		}
	}
}

// TestWaitingNodeInStatusShowsLiveHolder checks that a status that counts a waiting Node shows that its holder is alive
// and has recorded the event: no other manager takes the cluster over for that. Another manager records events too,
// once, that no status shows.
func TestWaitingNodeInStatusShowsLiveHolder(t *testing.T) {
	unmatched := newRange()
	unmatched.Spec.NodeSelector = sizeSelector()
	for name, tc := range map[string]struct {
		of        *v1alpha1.ClusterCIDR
		wantEvent bool
	}{
		"a status counts it": {of: newRange()}, "none does": {of: unmatched, wantEvent: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, recorder := newSiteWithoutElection(t, tc.of, newNode())
				reconcileEachSecond(t, s, 10*time.Minute, func() { s.TakeOverIfOutdated(nil, time.Minute) })
				if s.IsHolder() != tc.wantEvent || (len(recorder.Events) > 0) != tc.wantEvent {
					t.Fatalf("it holds: %v, and has recorded %d events", s.IsHolder(), len(recorder.Events))
				}
				s.state.recordTermLost(time.Now(), func(time.Duration) time.Duration { return 0 })
				s.state.term.NotBefore = time.Time{}
				if reconcileEachSecond(t, s, 10*time.Minute, func() { s.TakeOverIfOutdated(nil, time.Minute) }); s.IsHolder() {
					t.Error("it takes the cluster over for the event that it has recorded")
				}
			})
		})
	}
}

// TestPendingEventEnds checks that a Node that is gone, or has what it waited for, gets no event, and the cluster is
// not taken over for it.
func TestPendingEventEnds(t *testing.T) {
	for name, end := range map[string]func(s *ClusterAllocator, b *corev1.Node){
		"it is gone": func(s *ClusterAllocator, b *corev1.Node) { s.ForgetObject(b) },
		"it has CIDRs": func(s *ClusterAllocator, b *corev1.Node) { // another manager has granted them
			s.ForgetObject(newNode())
			b.Spec.PodCIDRs, b.ResourceVersion = []string{"10.0.0.0/23"}, "9999"
			s.ObserveObject(b)
		},
		"it goes": func(s *ClusterAllocator, b *corev1.Node) {
			b.DeletionTimestamp, b.ResourceVersion = &metav1.Time{Time: noon}, "9999"
			s.ObserveObject(b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				other := newNode()
				other.Name, other.UID = "b", "uid-b"
				full := newRange(v1alpha1.ClusterCIDRFinalizer)
				full.Spec.PerNodeHostBits = 9
				s, _ := newTestSite(t, full, newNode("10.0.0.0/23"), other)
				s.Elected, s.Recorder = false, events.NewFakeRecorder(10)
				if reconcileEachSecond(t, s, time.Minute, func() {}); len(s.state.events.deferred.refusalEvents) != 1 {
					t.Fatalf("pending: %v", s.state.events.deferred)
				}
				end(s, other)
				if reconcileEachSecond(t, s, 10*time.Minute, func() {}); s.IsHolder() {
					t.Errorf("it was taken over; pending: %v", s.state.events.deferred)
				}
			})
		})
	}
}
