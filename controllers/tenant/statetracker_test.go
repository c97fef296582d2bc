package tenant

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// TestTrackPlacementWaits checks B36: the half minute of a Service begins when there is room for it, and begins again
// when there was none.
func TestTrackPlacementWaits(t *testing.T) {
	g := NewWithT(t)
	n, cluster := &stateTracker{}, client.ObjectKey{Namespace: "ns", Name: "c"}
	assessments := func(a, b elastic.ServiceState) []elastic.ServiceAssessment {
		return []elastic.ServiceAssessment{{Service: &elastic.Service{Name: "a"}, State: a}, {Service: &elastic.Service{Name: "b"}, State: b}}
	}
	at := time.Now()
	track := func(after time.Duration, a, b elastic.ServiceState) (names []string, next time.Duration) {
		at = at.Add(after)
		late, next := n.trackPlacementWaits(cluster, assessments(a, b), placementTimeout, at)
		for _, s := range late {
			names = append(names, s.Name)
		}
		return names, next
	}
	for _, step := range []struct {
		after time.Duration
		a, b  elastic.ServiceState
		late  []string
		next  time.Duration
	}{
		{a: elastic.ServicePlaceable, b: elastic.ServiceNeedsGrowth, next: placementTimeout},
		{after: 10 * time.Second, a: elastic.ServicePlaceable, b: elastic.ServicePlaceable, next: placementTimeout - 10*time.Second},
		{after: 20 * time.Second, a: elastic.ServicePlaceable, b: elastic.ServicePlaceable, late: []string{"a"}, next: 10 * time.Second},
		{after: 10 * time.Second, a: elastic.ServicePlaceable, b: elastic.ServicePlaceable, late: []string{"a", "b"}},
		{after: time.Hour, a: elastic.ServicePlaced, b: elastic.ServicePlaceable, late: []string{"b"}},
		{after: time.Second, a: elastic.ServicePlaced, b: elastic.ServiceNeedsGrowth},
		{after: time.Second, a: elastic.ServiceStuck, b: elastic.ServicePlaceable, next: placementTimeout},
	} {
		late, next := track(step.after, step.a, step.b)
		g.Expect(late).To(Equal(step.late), "%+v", step)
		g.Expect(next).To(Equal(step.next), "%+v", step)
	}
}

// TestDeletedServicesAreForgotten checks that a workload cluster that creates and deletes Services for ever is not
// remembered for ever.
func TestDeletedServicesAreForgotten(t *testing.T) {
	g := NewWithT(t)
	n, cluster := &stateTracker{}, client.ObjectKey{Namespace: "ns", Name: "c"}
	a, b := &elastic.Service{Name: "a"}, &elastic.Service{Name: "b"}
	g.Expect(n.addReported(cluster, a.Key(), "why")).To(BeTrue())
	g.Expect(n.addReported(cluster, b.Key(), "why")).To(BeTrue())
	n.pruneReported(cluster, []elastic.ServiceAssessment{{Service: a, State: elastic.ServiceStuck}, {Service: b, State: elastic.ServicePlaced}})
	g.Expect(n.addReported(cluster, a.Key(), "why")).To(BeFalse())
	g.Expect(n.addReported(cluster, b.Key(), "why")).To(BeTrue())
	n.pruneReported(cluster, nil)
	g.Expect(n.trackerForCluster(cluster).reportedMessages).To(BeEmpty())
}
