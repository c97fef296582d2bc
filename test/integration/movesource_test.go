package integration

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// deleteForMove does what clusterctl does with an object on the source of a move: it replaces all of its annotations,
// deletes it, and removes all of its finalizers (C45). It ignores an object that is gone.
func deleteForMove(ctx context.Context, obj client.Object) {
	GinkgoHelper()
	mark := client.RawPatch(types.JSONPatchType, []byte(
		`[{"op": "add", "path": "/metadata/annotations", "value": {"clusterctl.cluster.x-k8s.io/delete-for-move": ""}}]`))
	Expect(client.IgnoreNotFound(k8s.Patch(ctx, obj, mark))).To(Succeed())
	force(ctx, obj)
	expectGone(ctx, obj)
}

var _ = Describe("On the source of a move", func() {
	It("moved addresses are held until an operator releases them", func(ctx SpecContext) { // R9, C45, C48
		startManager(ctx)
		ns := newNamespace(ctx, nil)
		cluster := makeCluster(ns, "k", false)
		pool := framework.MakeGlobalPool(ns).CIDR("10.12.16.0/29").Obj()
		stays := framework.MakeClaim(ns, "stays").GlobalPool(ns).Obj()
		create(ctx, cluster, pool, framework.MakeClaim(ns, "a").GlobalPool(ns).Cluster("k").Obj(),
			framework.MakeClaim(ns, "b").GlobalPool(ns).Cluster("k").Obj(), stays)
		for _, name := range []string{"a", "b", "stays"} {
			addressOf(ctx, ns, name)
		}
		held := map[string]string{}
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		for _, name := range []string{"a", "b"} {
			address := addressOf(ctx, ns, name)
			held[address.Spec.Address] = name
			deleteForMove(ctx, address)
		}
		for _, name := range []string{"a", "b"} {
			deleteForMove(ctx, getClaim(ctx, ns, name))
		}
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.MovedReason)
		Eventually(func(g Gomega) {
			status := statusOf(ctx, pool)
			got := map[string]string{}
			for _, h := range status.Held {
				g.Expect(h).To(And(HaveField("Reason", v1alpha1.MovedReason), HaveField("Namespace", ns), HaveField("Last", h.First)))
				got[h.First] = h.Name
			}
			g.Expect(got).To(Equal(held))
			g.Expect(status.AllocatedIPs).To(Equal(int64(1)))
			g.Expect(status.AvailableIPs).To(Equal(int64(3)))
		}).Should(Succeed())
		create(ctx, framework.MakeClaim(ns, "new").GlobalPool(ns).Obj())
		Expect(refusalOf(ctx, ns, "new", "PoolNotReady")).To(ContainSubstring("status.held"))
		// The entry survives a restart; the claim that stayed is released as usual.
		m := startManager(ctx)
		create(ctx, framework.MakeClaim(ns, "newer").GlobalPool(ns).Obj())
		refusalOf(ctx, ns, "newer", "PoolNotReady")
		expectRestMeanwhile(ctx, 1, m)
		Expect(m.Stop()).To(Succeed())
		deleteClaim(ctx, ns, "stays")
		expectGone(ctx, stays)

		releases := func(entries []v1alpha1.HeldRange) {
			var value []string
			for _, h := range entries {
				value = append(value, grants.FormatHeldRelease(h))
			}
			modify(ctx, pool, func(p *v1alpha1.GlobalNetworkPool) {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.ReleaseHeldAnnotation, strings.Join(value, ","))
			})
		}
		entries := statusOf(ctx, pool).Held
		releases(entries[:1])
		Eventually(func() []v1alpha1.HeldRange { return statusOf(ctx, pool).Held }).Should(Equal(entries[1:]))
		refusalOf(ctx, ns, "newer", "PoolNotReady")
		releases(entries)
		addressOf(ctx, ns, "new")
		addressOf(ctx, ns, "newer")
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		Eventually(func() int64 { return statusOf(ctx, pool).AvailableIPs }).Should(Equal(int64(4)))
		Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ContainElement("PoolMoved"))

		// The annotation stays, and releases no later entry, even for the same range.
		again := map[string]bool{}
		for _, name := range []string{"new", "newer"} {
			address := addressOf(ctx, ns, name)
			again[address.Spec.Address] = true
			// The claim first: its Cluster is not paused, so the manager would write the IPAddress of a living claim
			// again. The manager may be first to delete the IPAddress of a deleted claim; its address is held then.
			deleteForMove(ctx, getClaim(ctx, ns, name))
			deleteForMove(ctx, address)
		}
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.MovedReason)
		create(ctx, framework.MakeClaim(ns, "newest").GlobalPool(ns).Obj())
		refusalOf(ctx, ns, "newest", "PoolNotReady")
		startManager(ctx)
		create(ctx, framework.MakeClaim(ns, "last").GlobalPool(ns).Obj())
		refusalOf(ctx, ns, "last", "PoolNotReady")
		Expect(statusOf(ctx, pool).Held).To(HaveLen(len(again)))
		// A user who removes the entries from the status by hand has released them, too.
		modifyStatus(ctx, pool, func(p *v1alpha1.GlobalNetworkPool) { p.Status.Held = nil })
		addressOf(ctx, ns, "last")
		addressOf(ctx, ns, "newest")
	})
})
