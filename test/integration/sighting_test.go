package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// expectClusterSeen waits until the condition ClusterSeen of an allocation has the given status, and returns the
// message of Ready.
func expectClusterSeen(ctx context.Context, o *v1alpha1.IPAllocation, status metav1.ConditionStatus) string {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
		g.Expect(meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ClusterSeenCondition)).To(HaveValue(HaveField("Status", status)))
	}).Should(Succeed())
	return meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition).Message
}

var _ = Describe("An IPAllocation that comes before its Cluster", func() {
	It("is kept until its Cluster is created, and is an orphan when that is deleted", func(ctx SpecContext) { // B70
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns, shortGrace)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.125.0.0/28").Obj()
		early, lost := framework.MakeAllocation(ns, "early").Count(4).Obj(), framework.MakeAllocation(ns, "lost").Count(4).Cluster(ns, "lost").Obj()
		create(ctx, pool, makeCluster(ns, "lost", false), early, lost)
		allocatedTo(ctx, lost)
		was := allocatedTo(ctx, early)
		Expect(expectClusterSeen(ctx, early, metav1.ConditionFalse)).To(Equal("allocated 4 IPs: " + was + "; Cluster " + ns + "/tenant does not exist yet"))
		// The allocation whose Cluster was seen is deleted after the grace; the other one, which is as old, is not.
		expectClusterSeen(ctx, lost, metav1.ConditionTrue)
		Expect(k8s.Delete(ctx, makeCluster(ns, "lost", false))).To(Succeed())
		expectGone(ctx, lost)
		Expect(allocatedTo(ctx, early)).To(Equal(was))
		Expect(early.DeletionTimestamp).To(BeNil())

		By("creating the Cluster")
		create(ctx, makeCluster(ns, "tenant", false))
		Expect(expectClusterSeen(ctx, early, metav1.ConditionTrue)).To(Equal("allocated 4 IPs: " + was))
		version := early.ResourceVersion

		By("deleting the Cluster while no manager runs")
		Expect(m.Stop()).To(Succeed())
		Expect(k8s.Delete(ctx, makeCluster(ns, "tenant", false))).To(Succeed())
		Expect(k8s.Get(ctx, keyOf(early), early)).To(Succeed())
		Expect(early.ResourceVersion).To(Equal(version)) // at rest
		m = namespaceManager(ctx, ns, shortGrace)
		expectGone(ctx, early)
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 0})
		Expect(m.Stop()).To(Succeed())
	})
})
