package integration

import (
	"context"
	"fmt"
	"math/rand/v2"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A tool restores the objects of a backup one after the other, while a manager runs. The Cluster exists, and is
// paused.
var _ = Describe("A restore", func() {
	// backedUp returns copies of all objects, with their finalizers and annotations, as they are created again.
	backedUp := func(o pools.Objects) (out []client.Object) {
		for _, p := range o.Pools {
			out = append(out, p.DeepCopyObject().(client.Object))
		}
		for i := range o.Claims {
			out = append(out, o.Claims[i].DeepCopy())
		}
		for i := range o.Addresses {
			out = append(out, o.Addresses[i].DeepCopy())
		}
		for i := range o.Allocations {
			out = append(out, o.Allocations[i].DeepCopy())
		}
		for i := range o.Leases {
			out = append(out, o.Leases[i].DeepCopy())
		}
		for _, obj := range out {
			obj.SetUID("")
			obj.SetResourceVersion("")
			obj.SetManagedFields(nil)
		}
		return out
	}
	// grantedAddresses returns the addresses of each claim, block and lease, by kind and name.
	grantedAddresses := func(o pools.Objects) map[string]string {
		out := map[string]string{}
		for i := range o.Addresses {
			out["claim "+o.Addresses[i].Name] = o.Addresses[i].Spec.Address
		}
		for i := range o.Allocations {
			out["block "+o.Allocations[i].Name] = o.Allocations[i].Status.CIDR
		}
		for i := range o.Leases {
			out["lease "+o.Leases[i].Name] = o.Leases[i].Status.Address
		}
		return out
	}
	// checkServed returns an error unless exactly n objects exist and all of them have addresses.
	checkServed := func(ctx context.Context, ns string, n int) error {
		out := grantedAddresses(objects(ctx, ns))
		for of, address := range out {
			if address == "" {
				return fmt.Errorf("%s has nothing", of)
			}
		}
		if len(out) != n {
			return fmt.Errorf("%d have something, not %d: %v", len(out), n, out)
		}
		return nil
	}

	DescribeTable("of pools, claims, IPAddresses, blocks and leases in random order gives each its addresses again, and grants none twice,", func(ctx SpecContext, seed int) { // R2, R10
		ns := newNamespace(ctx, nil)
		cluster := makeCluster(ns, "k", false)
		site := framework.MakePool("p").Namespace(ns).CIDR(fmt.Sprintf("10.70.%d.0/27", seed)).AllocateReservedAddresses().Carvable().Obj()
		site.Spec.Leases = &v1alpha1.Leases{}
		team := framework.MakePool("team").Namespace(ns).AllocateReservedAddresses().Carve(v1alpha1.NetworkPoolKind, "p", 30, 1, 2).Obj()
		create(ctx, cluster, site, team)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "a").Pool("p").Cluster("k").Obj(), framework.MakeClaim(ns, "b").Pool("p").Obj(), framework.MakeClaim(ns, "c").Pool("team").Cluster("k").Obj(),
			framework.MakeAllocation(ns, "x").Cluster(ns, "k").Count(4).Obj(), framework.MakeLease(ns, "l").Obj())
		const before, later = 6, 4 // including the block of the carved pool
		Eventually(checkServed).WithArguments(ctx, ns, before).WithTimeout(framework.LongTimeout).Should(Succeed())
		comesToRest(ctx, m)
		all, had := backedUp(objects(ctx, ns)), grantedAddresses(objects(ctx, ns))

		By("deleting all objects")
		Expect(m.Stop()).To(Succeed())
		for _, obj := range all {
			force(ctx, obj.DeepCopyObject().(client.Object))
		}
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = new(true) })
		m = namespaceManager(ctx, ns)

		By("restoring them while new claims wait")
		asked := [later]client.Object{
			framework.MakeClaim(ns, "new").Pool("p").Obj(), framework.MakeClaim(ns, "newest").Pool("team").Obj(), framework.MakeLease(ns, "m").Obj(),
			framework.MakeAllocation(ns, "y").Cluster(ns, "k").Count(2).Obj(),
		}
		r, history := rand.New(rand.NewPCG(uint64(seed), 0)), &invariants.History{}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, obj := range all {
			// Objects with a record, and without a paused Cluster, are served meanwhile: their IPAddress may exist
			// already.
			Expect(client.IgnoreAlreadyExists(k8s.Create(ctx, obj))).To(Succeed())
			if i%3 == 1 {
				create(ctx, asked[i/3])
			}
			Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
		}
		restored := map[string]*v1alpha1.NetworkPool{}
		for _, name := range []string{"p", "team"} {
			restored[name] = &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
			Eventually(func() string {
				return expectCondition(ctx, restored[name], v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
			}).Should(ContainSubstring("Cluster k is paused"))
		}
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = new(false) })
		for _, p := range restored {
			Eventually(func() string {
				Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
				return expectCondition(ctx, p, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
			}).Should(ContainSubstring("new grants start at"))
		}

		By("ending the wait of the pools")
		Expect(m.Kill()).To(Succeed())
		for _, p := range restored {
			endQuarantine(ctx, p)
		}
		m = namespaceManager(ctx, ns)
		Eventually(func() error {
			Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
			return checkServed(ctx, ns, before+later)
		}).WithTimeout(framework.LongTimeout).Should(Succeed())
		now := grantedAddresses(objects(ctx, ns))
		for of, address := range had {
			Expect(now).To(HaveKeyWithValue(of, address))
		}
		expectAtRest(ctx, ns, 5)
		Expect(history.CheckAtRest(objects(ctx, ns))).To(BeEmpty())
		Expect(m.Stop()).To(Succeed())
	},
		Entry("with seed 1", 1),
		Entry("with seed 2", 2),
		Entry("with seed 3", 3),
	)
})
