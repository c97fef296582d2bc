package e2e

import (
	"context"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// serveAll creates Services.
func (s *story) serveAll(ctx context.Context, names ...string) []*corev1.Service {
	GinkgoHelper()
	out := make([]*corev1.Service, 0, len(names))
	for _, name := range names {
		out = append(out, s.serve(ctx, name))
	}
	return out
}

// addressesOf waits until Services have addresses, expects them to be distinct, and returns them.
func (s *story) addressesOf(ctx context.Context, services ...*corev1.Service) []string {
	GinkgoHelper()
	var out []string
	for _, service := range services {
		address := s.addressOf(ctx, service)
		Expect(out).NotTo(ContainElement(address), "two Services have %s", address)
		out = append(out, address)
	}
	return out
}

// annotated returns a change that sets an annotation of a Service.
func annotated(key, value string) func(*corev1.Service) {
	return func(service *corev1.Service) { metav1.SetMetaDataAnnotation(&service.ObjectMeta, key, value) }
}

// change patches an object.
func (c cluster) change(ctx context.Context, o client.Object, patch string) {
	GinkgoHelper()
	Expect(c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

// inMetalLB returns the key of an object of MetalLB.
func inMetalLB(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: framework.MetalLBNamespace, Name: name}
}

// metalLBPool reads an IPAddressPool.
func metalLBPool(ctx context.Context, name string) (*metallbv1beta1.IPAddressPool, error) {
	p := &metallbv1beta1.IPAddressPool{}
	return p, workload.Get(ctx, inMetalLB(name), p)
}

// withLongTimeout runs steps that no event completes in time: a controller retries in its own time, or MetalLB
// reconnects to its API server.
func withLongTimeout(steps func()) {
	SetDefaultEventuallyTimeout(framework.LongTimeout)
	defer SetDefaultEventuallyTimeout(framework.EventTimeout)
	steps()
}

// freezeMetalLB stops the controller of MetalLB until the end of the spec, or until thaw is called: until then it
// confirms nothing, so no block is released.
func freezeMetalLB() (thaw func()) {
	GinkgoHelper()
	Expect(metalLB.Signal(syscall.SIGSTOP)).To(Succeed())
	thaw = func() { Expect(metalLB.Signal(syscall.SIGCONT)).To(Succeed()) }
	DeferCleanup(thaw)
	return thaw
}

// waitForAdvertisement waits for the L2Advertisement of the pools that show blocks, which is created after them.
func waitForAdvertisement(ctx context.Context) *metallbv1beta1.L2Advertisement {
	GinkgoHelper()
	a := &metallbv1beta1.L2Advertisement{}
	Eventually(func() error { return workload.Get(ctx, inMetalLB("default-pool"), a) }).Should(Succeed())
	return a
}

// watchUntil reads a watch until an object is as wanted, and returns all objects so far.
func watchUntil[O client.Object](w watch.Interface, done func(watch.EventType, O) bool) (seen []O) {
	GinkgoHelper()
	for e := range w.ResultChan() {
		o, ok := e.Object.(O)
		Expect(ok).To(BeTrue(), "%v", e.Object)
		if seen = append(seen, o); done(e.Type, o) {
			return seen
		}
	}
	Fail("the watch ended")
	return nil
}

// watching watches the IPAllocations of the tenant's namespace until the end of the spec.
func (s *story) watching(ctx context.Context) watch.Interface {
	GinkgoHelper()
	w, err := management.Watch(ctx, &v1alpha1.IPAllocationList{}, client.InNamespace(s.ns))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(w.Stop)
	return w
}

// expectDisjoint expects that no address is in two blocks, and that no block has changed.
func (s *story) expectDisjoint(ctx context.Context, history *invariants.History) {
	GinkgoHelper()
	list := &v1alpha1.IPAllocationList{}
	Expect(management.List(ctx, list, client.InNamespace(s.ns))).To(Succeed())
	Expect(history.CheckMoment(pools.Objects{Allocations: list.Items})).To(BeEmpty())
}

// free waits until another allocation gets a block of `count` addresses, and returns the first address.
func (s *story) free(ctx context.Context, name string, count int32) string {
	GinkgoHelper()
	other := s.allocation(name, count)
	Expect(management.Create(ctx, other)).To(Succeed())
	return waitForGrant(ctx, other)
}

// waitForGrant waits until an IPAllocation has addresses, and returns the first.
func waitForGrant(ctx context.Context, a *v1alpha1.IPAllocation) string {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(a), a)).To(Succeed())
		g.Expect(a.Status.Phase).To(Equal(v1alpha1.AllocationAllocated), "%+v", a.Status)
	}).Should(Succeed())
	return a.Status.StartAddress
}
