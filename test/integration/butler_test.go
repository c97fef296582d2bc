package integration

import (
	"context"
	"os"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// readExamples returns Butler's own examples with the given names, unchanged.
func readExamples(file string, names ...string) []client.Object {
	GinkgoHelper()
	text, err := os.ReadFile("../api/testdata/butler-" + file + ".yaml")
	Expect(err).NotTo(HaveOccurred())
	all, err := framework.ParseManifests(text)
	Expect(err).NotTo(HaveOccurred())
	var out []client.Object
	for _, name := range names {
		at := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool { return u.GetName() == name })
		Expect(at).NotTo(BeNumerically("<", 0), "there is no %s after those before it in %s", name, file)
		out = append(out, all[at])
		all = all[at+1:]
	}
	return out
}

var _ = Describe("Butler's own manifests", Ordered, func() {
	const system, team = "butler-system", "team-platform"
	var used []client.Object
	apply := func(ctx context.Context, objs ...client.Object) {
		GinkgoHelper()
		create(ctx, objs...)
		used = append(objs, used...) // the last one is removed first
	}

	BeforeAll(func(ctx SpecContext) {
		create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team, Labels: map[string]string{v1alpha1.TeamLabel: team}}})
		startManager(ctx)
	})

	// The examples are alternatives: their pools overlap.
	AfterEach(func(ctx SpecContext) {
		for _, o := range used {
			remove(ctx, o)
		}
		used = nil
	})

	It("get the pinned range they name, and a block of the size they name", func(ctx SpecContext) { // B61, B62
		apply(ctx, readExamples("pools", "lab-pool")...)
		apply(ctx, readExamples("allocations", "team-platform-prod-cluster-lb", "team-platform-api-lb")...)
		pinned := framework.MakeAllocation(system, "team-platform-api-lb").Obj()
		Expect(allocatedTo(ctx, pinned)).To(Equal("10.40.2.0/29"))
		counted := framework.MakeAllocation(system, "team-platform-prod-cluster-lb").Obj()
		allocatedTo(ctx, counted)
		Expect(counted.Status.AllocatedCount).To(Equal(int64(8)))
	})

	It("serve a Cluster in static mode", func(ctx SpecContext) { // B22, B26
		apply(ctx, readExamples("pools", "lab-pool")...)
		apply(ctx, readExamples("providerconfigs", "harvester-lab")...)
		cluster := tenant(team, "prod-cluster", "harvester-lab")
		apply(ctx, cluster)
		expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)
		o := framework.MakeAllocation(system, "team-platform-prod-cluster-lb").Obj()
		Expect(allocatedTo(ctx, o)).To(HavePrefix("10.40.1."))
		// The labels of the example, which was written by hand, and those of the ProviderConfig and of Cluster API.
		want := readExamples("allocations", o.Name)[0].GetLabels()
		want[v1alpha1.ProviderConfigLabel] = "harvester-lab"
		want[clusterv1.ClusterNameLabel] = cluster.Name
		Expect(o.Labels).To(Equal(want))
	})

	It("serve a Cluster from the second pool where the first is full", func(ctx SpecContext) { // B24, F6
		apply(ctx, readExamples("pools", "prod-pool-primary", "prod-pool-secondary")...)
		rest := framework.MakeAllocation(system, "everything").Pool("prod-pool-primary").PinnedRange("10.40.0.64", "10.40.3.254").Obj()
		apply(ctx, rest)
		allocatedTo(ctx, rest)
		apply(ctx, readExamples("providerconfigs", "harvester-prod")...)
		cluster := tenant(team, "prod-cluster", "harvester-prod")
		apply(ctx, cluster)
		expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)
		o := framework.MakeAllocation(system, "team-platform-prod-cluster-lb").Obj()
		Expect(allocatedTo(ctx, o)).To(HavePrefix("10.40.4."))
		Expect(o.Spec.PoolRef.Name).To(Equal("prod-pool-secondary"))
	})
})

var _ = Describe("The promise", func() {
	It("holds for allocations of Butler, and conditions report two that overlap", func(ctx SpecContext) { // B12
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.122.0.0/24").Obj()
		create(ctx, pool)
		butlers := map[string][2]string{"a": {"10.122.0.16", "10.122.0.23"}, "b": {"10.122.0.40", "10.122.0.43"}, "c": {"10.122.0.43", "10.122.0.46"}}
		for name, r := range butlers {
			o := framework.MakeAllocation(ns, name).Count(4).Obj()
			o.Finalizers = []string{v1alpha1.IPAllocationFinalizer}
			create(ctx, o)
			o.Status = v1alpha1.IPAllocationStatus{
				Phase: v1alpha1.AllocationAllocated, StartAddress: r[0], EndAddress: r[1], AllocatedBy: v1alpha1.AllocatedBy,
				AllocatedAt: ptr.To(metav1.Now().Rfc3339Copy()),
			}
			Expect(k8s.Status().Update(ctx, o)).To(Succeed())
		}
		m := namespaceManager(ctx, ns)
		a, b, c := framework.MakeAllocation(ns, "a").Obj(), framework.MakeAllocation(ns, "b").Obj(), framework.MakeAllocation(ns, "c").Obj()
		overlap := func(o *v1alpha1.IPAllocation) func(Gomega) *metav1.Condition {
			return func(g Gomega) *metav1.Condition {
				g.Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
				g.Expect(o.Status.AllocatedCount).To(Equal(int64(len(o.Status.Addresses))))
				return meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OverlapCondition)
			}
		}
		haveStatus := func(status metav1.ConditionStatus, text string) OmegaMatcher {
			return HaveValue(And(HaveField("Status", status), HaveField("Message", ContainSubstring(text))))
		}
		Eventually(overlap(a)).Should(haveStatus(metav1.ConditionFalse, "no other claimant"))
		Eventually(overlap(b)).Should(haveStatus(metav1.ConditionTrue, "IPAllocation "+ns+"/c has"))
		Eventually(overlap(c)).Should(haveStatus(metav1.ConditionTrue, "IPAllocation "+ns+"/b has"))
		for name, r := range butlers {
			o := framework.MakeAllocation(ns, name).Obj()
			allocatedTo(ctx, o)
			Expect([2]string{o.Status.StartAddress, o.Status.EndAddress}).To(Equal(r))
			Expect(o.Annotations).To(HaveKeyWithValue(v1alpha1.AddressAnnotation, o.Status.CIDR))
		}
		Expect(eventsAbout(ctx, ns, a)).To(BeEmpty()) // there was no allocation
		remove(ctx, c)
		Eventually(overlap(b)).Should(haveStatus(metav1.ConditionFalse, "no other claimant"))
		Expect(m.Stop()).To(Succeed())
	})
})
