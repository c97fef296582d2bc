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

// untoldSite is a site without leader election of a range for two Nodes, and of two Nodes.
func untoldSite(t *testing.T, of *v1alpha1.ClusterCIDR, b *corev1.Node) (*Site, *events.FakeRecorder) {
	t.Helper()
	of.Finalizers = []string{v1alpha1.ClusterCIDRFinalizer}
	other := newNode("10.0.1.0/24")
	other.Name, other.UID = "other", "uid-other"
	b.Name, b.UID = "b", "uid-b"
	s, _ := siteOf(t, of, newNode("10.0.0.0/24"), other, b)
	told := events.NewFakeRecorder(10)
	s.Elected, s.Recorder = false, told
	return s, told
}

// lookFor has a manager look each second for a time.
func lookFor(t *testing.T, s *Site, long time.Duration, each func()) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); <-time.After(time.Second) {
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Report()
		each()
		s.Say()
	}
}

// K32: what there is to tell a Node is told where no manager holds the site, and there is nothing to give: by a leader at once, by
// another manager when no holder has told it. It is told once.
func TestWhatIsUntoldIsTold(t *testing.T) {
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
					s, told := untoldSite(t, tc.of.DeepCopy(), tc.node.DeepCopy())
					s.Elected = elected
					lookFor(t, s, tellPatience+2*adoption, func() {})
					all := 0
					for len(told.Events) > 0 {
						if e := <-told.Events; strings.Contains(e, tc.event) {
							all++
						}
					}
					if all != tc.times {
						t.Errorf("elected %v: it is told %d times", elected, all)
					}
				})
			})
		}
	}
}

// A status that counts a Node which waits shows that its holder lives, and has told it: no other manager takes the site over for
// that. What no status shows, another manager sends too, once.
func TestAHolderTells(t *testing.T) {
	unmatched := newRange()
	unmatched.Spec.NodeSelector = sizeSelector()
	for name, tc := range map[string]struct {
		of   *v1alpha1.ClusterCIDR
		told bool
	}{
		"a status counts it": {of: newRange()}, "none does": {of: unmatched, told: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, told := untoldSite(t, tc.of, newNode())
				lookFor(t, s, 10*time.Minute, func() { s.ClaimOutdated(nil, time.Minute) })
				if s.Holds() != tc.told || (len(told.Events) > 0) != tc.told {
					t.Fatalf("it holds: %v, and has told %d times", s.Holds(), len(told.Events))
				}
				s.memory.lose(time.Now(), func(time.Duration) time.Duration { return 0 })
				s.memory.NotBefore = time.Time{}
				if lookFor(t, s, 10*time.Minute, func() { s.ClaimOutdated(nil, time.Minute) }); s.Holds() {
					t.Error("it takes the site over for what it has told")
				}
			})
		})
	}
}

// A Node that is gone, or has what it waited for, is told nothing, and the site is not taken over for it.
func TestWhatIsUntoldEnds(t *testing.T) {
	for name, end := range map[string]func(s *Site, b *corev1.Node){
		"it is gone": func(s *Site, b *corev1.Node) { s.Forget(b) },
		"it has CIDRs": func(s *Site, b *corev1.Node) { // which another manager has given
			s.Forget(newNode())
			b.Spec.PodCIDRs, b.ResourceVersion = []string{"10.0.0.0/23"}, "9999"
			s.Observe(b)
		},
		"it goes": func(s *Site, b *corev1.Node) {
			b.DeletionTimestamp, b.ResourceVersion = &metav1.Time{Time: noon}, "9999"
			s.Observe(b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				other := newNode()
				other.Name, other.UID = "b", "uid-b"
				full := newRange(v1alpha1.ClusterCIDRFinalizer)
				full.Spec.PerNodeHostBits = 9
				s, _ := siteOf(t, full, newNode("10.0.0.0/23"), other)
				s.Elected, s.Recorder = false, events.NewFakeRecorder(10)
				if lookFor(t, s, time.Minute, func() {}); len(s.memory.untold.refusals) != 1 {
					t.Fatalf("untold: %v", s.memory.untold)
				}
				end(s, other)
				if lookFor(t, s, 10*time.Minute, func() {}); s.Holds() {
					t.Errorf("it was taken over; untold: %v", s.memory.untold)
				}
			})
		})
	}
}
