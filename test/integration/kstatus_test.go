package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// kstatusOf returns the status that tools without knowledge of a kind compute for an object: Argo CD, Flux, kpt,
// Helm. The rules are those of sigs.k8s.io/cli-utils/pkg/kstatus/status for kinds without special rules.
func kstatusOf(ctx context.Context, o client.Object) string {
	GinkgoHelper()
	gvk, err := apiutil.GVKForObject(o, k8s.Scheme())
	Expect(err).NotTo(HaveOccurred())
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(o), u)).To(Succeed())
	if u.GetDeletionTimestamp() != nil {
		return "Terminating"
	}
	observed, found, err := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
	Expect(err).NotTo(HaveOccurred())
	if found && observed != u.GetGeneration() {
		return "InProgress"
	}
	conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	Expect(err).NotTo(HaveOccurred())
	statuses := map[string]string{}
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		kind, _ := condition["type"].(string)
		statuses[kind], _ = condition["status"].(string)
	}
	switch {
	case statuses["Stalled"] == "True":
		return "Failed"
	case statuses["Reconciling"] == "True", statuses["Ready"] == "False", statuses["Ready"] == "Unknown":
		return "InProgress"
	}
	return "Current" // also without any condition
}

var _ = Describe("An applied object", func() { // B80
	It("is InProgress until it is served, for tools that use kstatus", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		pool, global := framework.MakePool("p").Namespace(ns).CIDR("10.223.0.0/26").Obj(), framework.MakeGlobalPool(ns).CIDR("10.223.1.0/29").Obj()
		config, blockless := provider(ns, "good", "p"), provider(ns, "bad", "nowhere")
		block, tooLarge := framework.MakeAllocation(ns, "b").Count(2).Obj(), framework.MakeAllocation(ns, "large").Count(100).Obj()
		served := []client.Object{pool, global, config, block}
		waiting := []client.Object{blockless, tooLarge}
		for _, o := range append(append([]client.Object{}, served...), waiting...) {
			create(ctx, o)
			Expect(kstatusOf(ctx, o)).To(Equal("InProgress"), "%T, which no controller has seen", o)
		}
		startManager(ctx)
		for _, o := range served {
			Eventually(kstatusOf).WithArguments(ctx, o).Should(Equal("Current"), "%T", o)
		}
		claim, refused := framework.MakeClaim(ns, "c").Pool("p").Obj(), framework.MakeClaim(ns, "refused").Pool("p").RequestAddress("10.9.9.9").Obj()
		create(ctx, claim, refused)
		addressOf(ctx, ns, "c")
		Expect(kstatusOf(ctx, claim)).To(Equal("Current"))
		refusalOf(ctx, ns, "refused", "AllocationFailed")
		refusedBlock(ctx, tooLarge, "Failed", "PoolExhausted")
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(blockless), blockless)).To(Succeed())
			g.Expect(blockless.Status.ObservedGeneration).To(Equal(blockless.Generation))
		}).Should(Succeed())
		for _, o := range append(waiting, refused) {
			Expect(kstatusOf(ctx, o)).To(Equal("InProgress"), "%T, which was refused", o)
		}
		for _, o := range []client.Object{pool, block, claim} {
			modify(ctx, o, func(o client.Object) { o.SetFinalizers(append(o.GetFinalizers(), "example.com/hold")) }) // else it is gone
			Expect(k8s.Delete(ctx, o)).To(Succeed())
			Expect(kstatusOf(ctx, o)).To(Equal("Terminating"), "%T", o)
		}
		for _, o := range []client.Object{claim, block, pool, global} {
			force(ctx, o)
		}
	})

	It("can be listed by its selectable fields", func(ctx SpecContext) { // B74
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakeAllocation(ns, "a").Pool("p").Cluster(ns, "prod").Obj(), framework.MakeAllocation(ns, "b").Pool("q").Cluster(ns, "prod").Obj(),
			framework.MakeAllocation(ns, "c").Pool("q").Cluster("elsewhere", "test").Obj())
		for _, by := range []struct {
			field, value string
			want         []string
		}{
			{"spec.poolRef.name", "q", []string{"b", "c"}},
			{"spec.tenantClusterRef.name", "prod", []string{"a", "b"}},
			{"spec.tenantClusterRef.namespace", "elsewhere", []string{"c"}},
		} {
			list := &v1alpha1.IPAllocationList{}
			Expect(k8s.List(ctx, list, client.InNamespace(ns), client.MatchingFields{by.field: by.value})).To(Succeed())
			var found []string
			for i := range list.Items {
				found = append(found, list.Items[i].Name)
			}
			Expect(found).To(ConsistOf(by.want), by.field)
		}
	})
})
