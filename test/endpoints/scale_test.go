package endpoints

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const atOnce = 100

// createAtOnce creates all Clusters at once, and returns how long Cluster API takes until each has its
// infrastructure.
func createAtOnce(ctx context.Context, ns string, leftOut bool) time.Duration {
	GinkgoHelper()
	start := time.Now()
	var all sync.WaitGroup
	for i := range atOnce {
		cluster := newCluster(ns, fmt.Sprintf("c-%d", i), "")
		if leftOut {
			none := clusterv1.ClusterVariable{Name: "controlPlanePool"}
			none.Value.Raw = []byte(`{"name": ""}`)
			cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{none}
		}
		all.Go(func() {
			defer GinkgoRecover()
			create(ctx, cluster)
		})
	}
	all.Wait()
	Eventually(func(g Gomega) {
		g.Expect(withInfrastructure(ctx, ns)).To(Equal(atOnce))
	}).WithTimeout(framework.LongTimeout).Should(Succeed())
	return time.Since(start)
}

func withInfrastructure(ctx context.Context, ns string) (n int) {
	GinkgoHelper()
	list := &clusterv1.ClusterList{}
	Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Spec.InfrastructureRef.IsDefined() {
			n++
		}
	}
	return n
}

// report prints the measurements.
func report(ctx context.Context, m *framework.Manager, took time.Duration) {
	GinkgoHelper()
	answers, err := m.ReadHistogramBuckets(ctx, "butler_ipam_control_plane_endpoint_seconds")
	Expect(err).NotTo(HaveOccurred())
	GinkgoWriter.Printf("%d Clusters had their infrastructure after %.1f s; answers by seconds that they took at most: %v\n", atOnce, took.Seconds(), answers)
}

var measureWithoutAddresses = flag.Bool("left-out", false, "create the hundred Clusters once more, without addresses of a pool: what the addresses cost is the difference")

var _ = Describe("A hundred Clusters that are created at once", func() {
	It("each have an address of their own", func(ctx SpecContext) { // U48
		m := startManager(ctx)
		ns := newNamespace(ctx)
		create(ctx, pool(ns, "endpoints").CIDR("10.1.0.0/24").Obj())
		newClass(ctx, ns, "VSphere")
		took := createAtOnce(ctx, ns, false)
		list := &ipamv1.IPAddressList{}
		Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
		addresses := sets.New[string]()
		for i := range list.Items {
			addresses.Insert(list.Items[i].Spec.Address)
		}
		Expect(addresses).To(HaveLen(atOnce))
		Expect(claimsIn(ctx, ns)).To(HaveLen(atOnce))
		report(ctx, m, took)
	})

	It("get no claims when their variable names no pool", func(ctx SpecContext) { // U41
		if !*measureWithoutAddresses {
			Skip("it is for measuring: -left-out")
		}
		m := startManager(ctx)
		ns := newNamespace(ctx)
		newClass(ctx, ns, "VSphere")
		took := createAtOnce(ctx, ns, true)
		Expect(claimsIn(ctx, ns)).To(BeEmpty())
		report(ctx, m, took)
	})
})
