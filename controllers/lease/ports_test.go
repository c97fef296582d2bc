package lease

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// TestMayShowPort checks P4: from which Services a port must not be taken yet.
func TestMayShowPort(t *testing.T) {
	service := func(change ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web", Annotations: map[string]string{v1alpha1.LeaseAnnotation: "shop"}}}
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}
		for _, f := range change {
			f(s)
		}
		return s
	}
	withCondition := func(status metav1.ConditionStatus) func(*corev1.Service) {
		return func(s *corev1.Service) {
			meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{Type: v1alpha1.LeaseSatisfiedCondition, Status: status, Reason: "x"})
		}
	}
	published := func(s *corev1.Service) { s.Annotations[v1alpha1.LeasedAddressesAnnotation] = "10.0.0.1" }
	placed := func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
	}
	asksNot := func(s *corev1.Service) { delete(s.Annotations, v1alpha1.LeaseAnnotation) }
	onHost := func(port int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1", Ports: []corev1.PortStatus{{Protocol: corev1.ProtocolTCP, Port: port}}}}
		}
	}
	moved := func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }
	elsewhere := func(s *corev1.Service) { s.Namespace, s.Annotations[v1alpha1.LeaseAnnotation] = other, ns+"/shop" }
	ofClass := func(s *corev1.Service) {
		delete(s.Annotations, v1alpha1.LeaseAnnotation)
		s.Name, s.Spec.LoadBalancerClass, s.Spec.LoadBalancerIP = "web", ptr.To(byClass), "10.0.0.1"
	}
	because := func(reason string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{Type: v1alpha1.LeaseSatisfiedCondition, Status: metav1.ConditionFalse, Reason: reason})
		}
	}
	madeFor := func(o *v1alpha1.IPLease) {
		o.Name, o.Labels = "ip-10-0-0-1", map[string]string{v1alpha1.MadeForServicesLabel: ""}
	}
	deleted := func(o *v1alpha1.IPLease) { o.DeletionTimestamp = ptr.To(metav1.Now()) }
	handed := func(o *v1alpha1.IPLease) {
		o.Spec.Ports = []v1alpha1.LeasePort{{Protocol: corev1.ProtocolTCP, Port: 80, Service: "v2"}}
	}
	for name, c := range map[string]struct {
		s     *corev1.Service
		lease func(*v1alpha1.IPLease)
		want  bool
	}{
		"it asks":                                      {s: service(), want: true},
		"it asks no more":                              {s: service(asksNot, withCondition(metav1.ConditionTrue))},
		"it asks no more, and is published":            {s: service(asksNot, published), want: true},
		"it asks no more, and is placed":               {s: service(asksNot, placed), want: true},
		"it has another port":                          {s: service(moved, published, placed)},
		"it has another port, and hosts show this one": {s: service(moved, onHost(80)), want: true},
		"it has another port, and hosts show that":     {s: service(moved, onHost(81))},
		"handed over":                                  {s: service(withCondition(metav1.ConditionFalse)), lease: handed},
		"handed over, and not reported":                {s: service(withCondition(metav1.ConditionTrue)), lease: handed, want: true},
		"handed over, and placed":                      {s: service(withCondition(metav1.ConditionFalse), placed), lease: handed, want: true},
		"of a namespace that is not selected":          {s: service(elsewhere, withCondition(metav1.ConditionFalse))},
		"of one, and not reported":                     {s: service(elsewhere, withCondition(metav1.ConditionTrue)), want: true},
		"of one, and placed":                           {s: service(elsewhere, withCondition(metav1.ConditionFalse), placed), want: true},
		"of the class":                                 {s: service(ofClass), lease: madeFor, want: true},
		"of the class, and reported as idle":           {s: service(ofClass, because(v1alpha1.IdleReason)), lease: madeFor},
		"of the class, reported as idle, and shown":    {s: service(ofClass, because(v1alpha1.IdleReason), published), lease: madeFor, want: true},
		"deleted":                   {s: service(withCondition(metav1.ConditionFalse)), lease: deleted},
		"deleted, and not reported": {s: service(withCondition(metav1.ConditionTrue)), lease: deleted, want: true},
		"deleted, and published":    {s: service(withCondition(metav1.ConditionFalse), published), lease: deleted, want: true},
	} {
		o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Status: v1alpha1.IPLeaseStatus{Address: "10.0.0.1"}}
		if c.lease != nil {
			c.lease(o)
		}
		st := &state{namespace: ns, leases: []*v1alpha1.IPLease{o}, leaseStates: []leaseports.Lease{leaseports.NewLease(o)}}
		if got := st.mayShowPort(c.s, o, leaseports.Port{Protocol: corev1.ProtocolTCP, Number: 80}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestUnmanagedLeaseIsNotRecreated checks that an unmanaged lease is not created again from another pool, and that it
// ends no reconcile: the others get what is due to them.
func TestUnmanagedLeaseIsNotRecreated(t *testing.T) {
	for name, leave := range map[string]func(*Reconciler, *v1alpha1.IPLease){
		"paused": func(_ *Reconciler, o *v1alpha1.IPLease) {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, clusterv1.PausedAnnotation, "")
		},
		"another manager's": func(r *Reconciler, _ *v1alpha1.IPLease) { r.WatchFilter = "mine" },
	} {
		api, o := faults.NewServer(), &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
		_ = api.Create(o)
		r := &Reconciler{Client: api.NewClient("manager")}
		leave(r, o)
		lease := leaseports.NewLease(o)
		s := newScope(r, ns, time.Now())
		s.state.leasesByName = map[string]*v1alpha1.IPLease{"web": o}
		ctx, done := context.WithCancel(t.Context())
		done() // a call that it makes fails at once
		if changed, err := s.leases.createLeases(ctx, []leaseports.LeaseRequest{{Name: "web", Replaces: &lease}}); changed || err != nil || len(api.PendingRequests()) > 0 {
			t.Errorf("%s: changed %v, %v, waiting %d", name, changed, err, len(api.PendingRequests()))
		}
	}
}

// TestConfirmedTwice checks that two reconciles, some time apart, prove something, and that what was not observed in
// between starts again.
func TestConfirmedTwice(t *testing.T) {
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	o, earlier := observation{leaseUID: "uid"}, balancer.FirstSeen[observation](nil)
	for _, c := range []struct {
		after   time.Duration
		nothing bool // nothing is observed
		want    bool
	}{
		{after: 0},
		{after: balancer.ConfirmationInterval - time.Millisecond},
		{after: balancer.ConfirmationInterval, want: true},
		{after: time.Hour, nothing: true},
		{after: 2 * time.Hour},
	} {
		now := begin.Add(c.after)
		ob := &observations{earlier: earlier, clock: func() time.Time { return now }, schedule: &schedule{now: now}}
		if !c.nothing && ob.confirmedTwice(o) != c.want {
			t.Errorf("after %s: want %v", c.after, c.want)
		}
		if waits := ob.schedule.requeueAfter > 0; waits != (!c.nothing && !c.want) {
			t.Errorf("after %s: requeued after %s", c.after, ob.schedule.requeueAfter)
		}
		earlier = ob.current
	}
}
