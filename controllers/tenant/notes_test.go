package tenant

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// B36: the half minute of a Service begins when there is room for it, and begins again when there was none.
func TestUnplaced(t *testing.T) {
	g := NewWithT(t)
	n, cluster := &notes{}, client.ObjectKey{Namespace: "ns", Name: "c"}
	verdicts := func(a, b elastic.State) []elastic.Verdict {
		return []elastic.Verdict{{Service: &elastic.Service{Name: "a"}, State: a}, {Service: &elastic.Service{Name: "b"}, State: b}}
	}
	at := time.Now()
	look := func(after time.Duration, a, b elastic.State) (names []string, next time.Duration) {
		at = at.Add(after)
		late, next := n.unplaced(cluster, verdicts(a, b), patience, at)
		for _, s := range late {
			names = append(names, s.Name)
		}
		return names, next
	}
	for _, step := range []struct {
		after time.Duration
		a, b  elastic.State
		late  []string
		next  time.Duration
	}{
		{a: elastic.Fits, b: elastic.Lacks, next: patience},
		{after: 10 * time.Second, a: elastic.Fits, b: elastic.Fits, next: patience - 10*time.Second},
		{after: 20 * time.Second, a: elastic.Fits, b: elastic.Fits, late: []string{"a"}, next: 10 * time.Second},
		{after: 10 * time.Second, a: elastic.Fits, b: elastic.Fits, late: []string{"a", "b"}},
		{after: time.Hour, a: elastic.Placed, b: elastic.Fits, late: []string{"b"}},
		{after: time.Second, a: elastic.Placed, b: elastic.Lacks},
		{after: time.Second, a: elastic.Stuck, b: elastic.Fits, next: patience},
	} {
		late, next := look(step.after, step.a, step.b)
		g.Expect(late).To(Equal(step.late), "%+v", step)
		g.Expect(next).To(Equal(step.next), "%+v", step)
	}
}

// A workload cluster that makes and deletes Services for ever is not remembered for ever.
func TestToldIsForgotten(t *testing.T) {
	g := NewWithT(t)
	n, cluster := &notes{}, client.ObjectKey{Namespace: "ns", Name: "c"}
	a, b := &elastic.Service{Name: "a"}, &elastic.Service{Name: "b"}
	g.Expect(n.report(cluster, a.Key(), "why")).To(BeTrue())
	g.Expect(n.report(cluster, b.Key(), "why")).To(BeTrue())
	n.keepReported(cluster, []elastic.Verdict{{Service: a, State: elastic.Stuck}, {Service: b, State: elastic.Placed}})
	g.Expect(n.report(cluster, a.Key(), "why")).To(BeFalse())
	g.Expect(n.report(cluster, b.Key(), "why")).To(BeTrue())
	n.keepReported(cluster, nil)
	g.Expect(n.of(cluster).reported).To(BeEmpty())
}
