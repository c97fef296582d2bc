package balancer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fakeWorkload is a workload cluster with Services; if broken is set, it does not answer.
type fakeWorkload struct {
	client.Reader
	services []corev1.Service
	broken   error
}

// List implements client.Reader. It does not select: the caller has to.
func (w fakeWorkload) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*corev1.ServiceList).Items = slices.Clone(w.services)
	return w.broken
}

func service(namespace, name string, of corev1.ServiceType, addresses ...string) corev1.Service {
	s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Type: of}}
	for _, a := range addresses {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return s
}

func deleting(s corev1.Service) corev1.Service {
	s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	return s
}

// TestListServices checks that all Services of type LoadBalancer count, of every namespace, class and age, with and
// without an address. One that is being deleted counts as long as it has one.
func TestListServices(t *testing.T) { // B35 (all Services of type LoadBalancer count)
	class := service("c", "class", corev1.ServiceTypeLoadBalancer)
	class.Spec.LoadBalancerClass = new(string)
	from := fakeWorkload{services: []corev1.Service{
		service("a", "waits", corev1.ServiceTypeLoadBalancer), service("b", "has", corev1.ServiceTypeLoadBalancer, "10.0.0.1"), class,
		service("a", "inside", corev1.ServiceTypeClusterIP), service("a", "port", corev1.ServiceTypeNodePort, "10.0.0.2"), service("a", "elsewhere", corev1.ServiceTypeExternalName),
		deleting(service("a", "goes", corev1.ServiceTypeLoadBalancer, "10.0.0.3")), deleting(service("a", "went", corev1.ServiceTypeLoadBalancer)),
	}}
	all, err := ListServices(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range all {
		got = append(got, s.Namespace+"/"+s.Name)
	}
	if want := []string{"a/waits", "b/has", "c/class", "a/goes"}; !slices.Equal(got, want) {
		t.Errorf("the Services %v count, want %v", got, want)
	}
	if from.broken = errors.New("it does not answer"); !fails(ListServices(t.Context(), from)) {
		t.Error("a cluster that does not answer has no Services")
	}
}

// TestFindRangeUser checks that a Service that has an address of a range keeps the range from being released, in
// whatever form the address is written, whatever its class, and while it is being deleted. A failed read is an error,
// not a result.
func TestFindRangeUser(t *testing.T) { // F2 (an address is free after MetalLB has released it)
	block := netipx.MustParseIPRange("10.0.0.8-10.0.0.9")
	for name, c := range map[string]struct {
		service corev1.Service
		want    string
	}{
		"the first":          {service: service("a", "s", corev1.ServiceTypeLoadBalancer, "10.0.0.8"), want: "Service a/s has 10.0.0.8"},
		"the last":           {service: service("a", "s", corev1.ServiceTypeLoadBalancer, "10.0.0.9"), want: "Service a/s has 10.0.0.9"},
		"its second address": {service: service("a", "s", corev1.ServiceTypeLoadBalancer, "fd00::1", "10.0.0.8"), want: "Service a/s has 10.0.0.8"},
		"mapped":             {service: service("a", "s", corev1.ServiceTypeLoadBalancer, "::ffff:10.0.0.8"), want: "Service a/s has ::ffff:10.0.0.8"},
		"being deleted":      {service: deleting(service("a", "s", corev1.ServiceTypeLoadBalancer, "10.0.0.8")), want: "Service a/s has 10.0.0.8"},
		"one before":         {service: service("a", "s", corev1.ServiceTypeLoadBalancer, "10.0.0.7")},
		"one behind":         {service: service("a", "s", corev1.ServiceTypeLoadBalancer, "10.0.0.10")},
		"none":               {service: service("a", "s", corev1.ServiceTypeLoadBalancer)},
		"a name":             {service: service("a", "s", corev1.ServiceTypeLoadBalancer, "lb.example.com")},
	} {
		got, err := FindRangeUser(t.Context(), fakeWorkload{services: []corev1.Service{service("z", "other", corev1.ServiceTypeLoadBalancer, "192.0.2.1"), c.service}}, block)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
	if !fails(FindRangeUser(t.Context(), fakeWorkload{broken: errors.New("it does not answer")}, block)) {
		t.Error("a cluster that does not answer has nothing in use")
	}
}

func fails[T any](_ T, err error) bool { return err != nil }
