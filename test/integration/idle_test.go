package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("Two managers at rest", func() {
	const quiet = 8e9 // twice the three seconds after which pending work is taken over (R5)

	start := func(ctx SpecContext, cidr string, claims ...*ipamv1.IPAddressClaim) (pool *v1alpha1.NetworkPool, managers [2]*framework.Manager) {
		ns := newNamespace(ctx, nil)
		pool = framework.MakePool("p").Namespace(ns).CIDR(cidr).Obj()
		create(ctx, pool, framework.MakeClaim(ns, "served").Pool("p").Obj())
		for _, claim := range claims {
			claim.Namespace = ns
			create(ctx, claim)
		}
		managers[0] = namespaceManager(ctx, ns)
		addressOf(ctx, ns, "served")
		managers[1] = namespaceManager(ctx, ns)
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 1})
		Eventually(func() []v1alpha1.Grant { return statusOf(ctx, pool).Allocator.InFlight }).Should(BeEmpty())
		return pool, managers
	}
	version := func(ctx SpecContext, pool *v1alpha1.NetworkPool) func() string {
		return func() string { statusOf(ctx, pool); return pool.ResourceVersion }
	}
	stop := func(managers [2]*framework.Manager) {
		for _, m := range managers {
			Expect(m.Stop()).To(Succeed())
		}
	}

	It("write nothing", func(ctx SpecContext) { // R5, B52's principle: at rest, zero writes
		pool, managers := start(ctx, "10.22.0.0/24")
		Consistently(version(ctx, pool)).WithTimeout(quiet).Should(Equal(version(ctx, pool)()))
		stop(managers)
	})

	It("write nothing while a full pool has claims that wait", func(ctx SpecContext) { // R5, W6
		pool, managers := start(ctx, "10.22.1.0/32", framework.MakeClaim("", "waits").Pool("p").Obj())
		refusalOf(ctx, pool.Namespace, "waits", "PoolExhausted")
		Consistently(version(ctx, pool)).WithTimeout(quiet).Should(Equal(version(ctx, pool)()))
		stop(managers)
	})

	It("do not take the pool from each other for claims that neither may serve", func(ctx SpecContext) { // R5
		pool, managers := start(ctx, "10.22.2.0/24", framework.MakeClaim("", "paused").Pool("p").Annotate(clusterv1.PausedAnnotation, "").Obj())
		Consistently(version(ctx, pool)).WithTimeout(quiet).Should(Equal(version(ctx, pool)()))
		stop(managers)
	})
})
