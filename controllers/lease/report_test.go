package lease

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestUnusedLeaseHasNoAnnouncedCondition checks that the condition Announced of a lease is removed when no Service has
// the lease: that MetalLB refused its address may be over, and no other write would show that. A manager that does not
// serve the load balancer of the lease leaves the condition as it is.
func TestUnusedLeaseHasNoAnnouncedCondition(t *testing.T) {
	for name, c := range map[string]struct {
		by    string
		ways  EnabledBackends
		ports []v1alpha1.LeasedPort
		want  bool
	}{
		"of MetalLB":              {by: v1alpha1.ShownByMetalLB, ways: EnabledBackends{MetalLB: true, Hosts: true}},
		"of hosts":                {by: v1alpha1.ShownByHost, ways: EnabledBackends{MetalLB: true, Hosts: true}},
		"of another manager":      {by: v1alpha1.ShownByMetalLB, ways: EnabledBackends{Hosts: true}, want: true},
		"of another one, by host": {by: v1alpha1.ShownByHost, ways: EnabledBackends{MetalLB: true}, want: true},
		"with a port":             {by: v1alpha1.ShownByMetalLB, ways: EnabledBackends{MetalLB: true}, ports: []v1alpha1.LeasedPort{{Port: 80}}, want: true},
	} {
		scheme := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shop"}}
		o.Status = v1alpha1.IPLeaseStatus{Address: "10.0.0.1", ShownBy: c.by, Ports: c.ports, Conditions: []metav1.Condition{
			{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.MetalLBRefusesReason, Message: "pools overlap"},
		}}
		api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build()
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		r := &Reconciler{Client: api, Live: api, EnabledBackends: c.ways}
		s := newScope(r, ns, time.Now())
		s.state.leases = []*v1alpha1.IPLease{o}
		if _, err := s.reports.reportConditions(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		if condition := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition); (condition != nil) != c.want {
			t.Errorf("%s: it says %+v", name, condition)
		}
	}
}
