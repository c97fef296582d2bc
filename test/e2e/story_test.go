package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// grace is how long idle blocks are kept in these stories.
const grace = "2s"

var networks atomic.Int64

// story is a tenant: a Cluster of the management cluster, and its Services in the workload cluster.
type story struct {
	// ns is the namespace of its pools, ProviderConfig and Cluster; services is the namespace of its Services.
	ns, services string
	// net is the prefix of its addresses: the first three bytes.
	net     string
	config  *v1alpha1.ProviderConfig
	cluster *clusterv1.Cluster
}

// newStory creates a namespace for pools, a namespace for Services, and the spec of an elastic ProviderConfig that
// begins with one address and grows by at least one.
func newStory(ctx context.Context) *story {
	GinkgoHelper()
	s := &story{ns: management.newNamespace(ctx), services: workload.newNamespace(ctx), net: fmt.Sprintf("10.200.%d.", networks.Add(1))}
	s.config = &v1alpha1.ProviderConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: s.ns},
		Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{
			Mode: v1alpha1.IPAMMode,
			LoadBalancer: &v1alpha1.LoadBalancerPool{
				AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: ptr.To[int32](1), GrowthIncrement: ptr.To[int32](1),
			},
		}},
	}
	return s
}

// pool creates a pool of the tenant's network, from first to last, and adds it to the pools of the ProviderConfig.
func (s *story) pool(ctx context.Context, name string, first, last int) *v1alpha1.NetworkPool {
	GinkgoHelper()
	p := framework.MakePool(name).Namespace(s.ns).Addresses(fmt.Sprintf("%s%d-%s%d", s.net, first, s.net, last)).Obj()
	Expect(management.Create(ctx, p)).To(Succeed())
	refs := &s.config.Spec.Network.PoolRefs
	*refs = append(*refs, v1alpha1.ProviderPoolReference{PoolReference: v1alpha1.PoolReference{Name: name}, Priority: int32(len(*refs))})
	return p
}

// begin creates the ProviderConfig and the Cluster. No manager runs yet.
func (s *story) begin(ctx context.Context, annotations map[string]string) {
	GinkgoHelper()
	DeferCleanup(s.clear)
	Expect(management.Create(ctx, s.config)).To(Succeed())
	rights := workload.TenantKubeconfig // no more than config/tenant grants
	if s.config.Spec.Network.LoadBalancer.Type == v1alpha1.CiliumLoadBalancer {
		rights = workload.CiliumTenantKubeconfig
	}
	credentials, err := rights(ctx)
	Expect(err).NotTo(HaveOccurred())
	s.cluster, err = framework.CreateClusterWithKubeconfig(ctx, management, credentials, metav1.ObjectMeta{
		Namespace: s.ns, Name: "tenant", Labels: map[string]string{v1alpha1.ProviderConfigLabel: s.config.Name}, Annotations: annotations,
	})
	Expect(err).NotTo(HaveOccurred())
}

// clear restores both clusters to their state before the story. No manager runs any more.
func (s *story) clear(ctx context.Context) {
	GinkgoHelper()
	gone := []client.Object{s.config}
	if s.cluster != nil {
		gone = append(gone, s.cluster)
	}
	list := &v1alpha1.IPAllocationList{}
	Expect(management.List(ctx, list, client.InNamespace(s.ns))).To(Succeed())
	for i := range list.Items {
		gone = append(gone, &list.Items[i])
	}
	for _, o := range gone {
		Expect(client.IgnoreNotFound(management.Delete(ctx, o))).To(Succeed())
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`))
		Expect(client.IgnoreNotFound(management.Patch(ctx, o, patch))).To(Succeed())
	}
	Expect(workload.DeleteAllOf(ctx, &corev1.Service{}, client.InNamespace(s.services))).To(Succeed())
	for _, o := range []client.Object{&metallbv1beta1.IPAddressPool{}, &metallbv1beta1.L2Advertisement{}} {
		err := workload.DeleteAllOf(ctx, o, client.InNamespace(framework.MetalLBNamespace))
		Expect(err).To(Or(Not(HaveOccurred()), Satisfy(meta.IsNoMatchError)))
	}
	Eventually(func(g Gomega) {
		list := &corev1.ServiceList{}
		g.Expect(workload.List(ctx, list, client.InNamespace(s.services))).To(Succeed())
		g.Expect(list.Items).To(BeEmpty())
	}).Should(Succeed())
}

// serve creates a Service; the functions in change may edit it first.
func (s *story) serve(ctx context.Context, name string, change ...func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.services, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, c := range change {
		c(service)
	}
	Expect(workload.Create(ctx, service)).To(Succeed())
	return service
}

// addressOf waits until a Service has an address, and returns it.
func (s *story) addressOf(ctx context.Context, service *corev1.Service) string {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(service), service)).To(Succeed())
		g.Expect(service.Status.LoadBalancer.Ingress).NotTo(BeEmpty(), "%s", service.Name)
	}).Should(Succeed())
	return service.Status.LoadBalancer.Ingress[0].IP
}

// stop deletes Services, and waits until they are gone.
func (s *story) stop(ctx context.Context, services ...*corev1.Service) {
	GinkgoHelper()
	for _, service := range services {
		Expect(workload.Delete(ctx, service)).To(Succeed())
	}
	for _, service := range services {
		Eventually(func() bool {
			return apierrors.IsNotFound(workload.Get(ctx, client.ObjectKeyFromObject(service), service.DeepCopy()))
		}).Should(BeTrue())
	}
}

// blocks returns the IPAllocations of the tenant, by the suffix of their names: lb, lb-1 and so on.
func (s *story) blocks(ctx context.Context) map[string]*v1alpha1.IPAllocation {
	GinkgoHelper()
	list := &v1alpha1.IPAllocationList{}
	Expect(management.List(ctx, list, client.InNamespace(s.ns))).To(Succeed())
	out := map[string]*v1alpha1.IPAllocation{}
	for i := range list.Items {
		if short, ours := strings.CutPrefix(list.Items[i].Name, s.ns+"-tenant-"); ours {
			out[short] = &list.Items[i]
		}
	}
	return out
}

// expectBlocks waits until the tenant has exactly the blocks of these names and sizes.
func (s *story) expectBlocks(ctx context.Context, want map[string]int) {
	GinkgoHelper()
	Eventually(func() map[string]int {
		sizes := map[string]int{}
		for name, a := range s.blocks(ctx) {
			sizes[name] = int(a.Status.AllocatedCount)
		}
		return sizes
	}).Should(Equal(want))
}

// expectPoolEntries waits until MetalLB's pool has these entries.
func (s *story) expectPoolEntries(ctx context.Context, last ...string) {
	GinkgoHelper()
	want := make([]string, 0, len(last))
	for _, l := range last {
		first, end, _ := strings.Cut(l, "-")
		want = append(want, s.net+first+"-"+s.net+end)
	}
	Eventually(func(g Gomega) {
		pool := &metallbv1beta1.IPAddressPool{}
		g.Expect(workload.Get(ctx, client.ObjectKey{Namespace: framework.MetalLBNamespace, Name: "default-pool"}, pool)).To(Succeed())
		g.Expect(pool.Spec.Addresses).To(Equal(want))
	}).Should(Succeed())
}

// condition waits for a condition of a block, and returns it.
func (s *story) condition(ctx context.Context, block, kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	GinkgoHelper()
	var condition *metav1.Condition
	Eventually(func(g Gomega) {
		a := s.blocks(ctx)[block]
		g.Expect(a).NotTo(BeNil(), block)
		condition = meta.FindStatusCondition(a.Status.Conditions, kind)
		g.Expect(condition).To(HaveValue(And(HaveField("Status", status), HaveField("Reason", reason))), "%+v", a.Status.Conditions)
	}).Should(Succeed())
	return *condition
}

// eventsOn returns the notes of the events on an object with the given reason.
func eventsOn(ctx context.Context, c cluster, ns string, uid types.UID, reason string) []string {
	GinkgoHelper()
	list := &eventsv1.EventList{}
	Expect(c.List(ctx, list, client.InNamespace(ns))).To(Succeed())
	var out []string
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.UID == uid && e.Reason == reason {
			out = append(out, e.Note)
		}
	}
	slices.Sort(out)
	return out
}

// allocation returns a block for another Cluster, from the tenant's first pool.
func (s *story) allocation(name string, count int32) *v1alpha1.IPAllocation {
	return framework.MakeAllocation(s.ns, name).Pool(s.config.Spec.Network.PoolRefs[0].Name).Count(count).Cluster(s.ns, "elsewhere").Obj()
}

// served creates a Service, and expects it to get the given address of the tenant's network.
func (s *story) served(ctx context.Context, name, last string) *corev1.Service {
	GinkgoHelper()
	service := s.serve(ctx, name)
	Expect(s.addressOf(ctx, service)).To(Equal(s.net + last))
	return service
}

// stopWorkloadAPIServer stops the API server of the workload cluster until the end of the spec, or until restore is called.
func stopWorkloadAPIServer() (restore func()) {
	GinkgoHelper()
	Expect(workload.KillAPIServer()).To(Succeed())
	up := false
	restore = func() {
		Expect(workload.StartAPIServer()).To(Succeed())
		up = true
	}
	DeferCleanup(func(ctx SpecContext) {
		if up {
			return
		}
		restore()
		// MetalLB recovers when its watches do, which takes some time; restarted, it does not enter the next spec
		// with the state of this one.
		Expect(metalLB.Kill()).To(Succeed())
		var err error
		metalLB, err = workload.StartMetalLB(ctx)
		Expect(err).NotTo(HaveOccurred())
	})
	return restore
}
