package e2e

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// triggerReconciles makes managers reconcile the tenant the given number of times: an annotation of a Service that is
// satisfied wakes them.
func (s *story) triggerReconciles(ctx context.Context, times int, service *corev1.Service, managers ...*framework.Manager) {
	GinkgoHelper()
	for i := range times {
		var before []int
		for _, m := range managers {
			before = append(before, reconciles(ctx, m))
		}
		workload.change(ctx, service, fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, i))
		for j, m := range managers {
			Eventually(func() int { return reconciles(ctx, m) }).Should(BeNumerically(">", before[j]))
		}
	}
	workload.change(ctx, service, `{"metadata":{"annotations":{"look":null}}}`)
}

// reconciles returns how often a manager has reconciled tenants.
func reconciles(ctx context.Context, m *framework.Manager) (sum int) {
	GinkgoHelper()
	counts, err := m.ReadCounter(ctx, "controller_runtime_reconcile_total")
	Expect(err).NotTo(HaveOccurred())
	for series, n := range counts {
		if strings.Contains(series, `controller="tenant"`) {
			sum += n
		}
	}
	return sum
}

// writes returns the manager's write requests, in both clusters.
func writes(ctx context.Context, m *framework.Manager) map[string]int {
	GinkgoHelper()
	out, err := m.ReadCounter(ctx, "rest_client_requests_total")
	Expect(err).NotTo(HaveOccurred())
	maps.DeleteFunc(out, func(series string, _ int) bool { return strings.Contains(series, `method="GET"`) })
	return out
}

// versions returns the resource versions of all objects that the manager writes for a tenant. MetalLB writes the
// status of its pools now and then, so for these it returns the generation.
func (s *story) versions(ctx context.Context) map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	note := func(kind string, o client.Object) { out[kind+" "+o.GetName()] = o.GetResourceVersion() }
	for name, a := range s.blocks(ctx) {
		note("IPAllocation "+name, a)
	}
	Expect(management.Get(ctx, client.ObjectKeyFromObject(s.cluster), s.cluster)).To(Succeed())
	note("Cluster", s.cluster)
	pools, advertisements := &metallbv1beta1.IPAddressPoolList{}, &metallbv1beta1.L2AdvertisementList{}
	for _, list := range []client.ObjectList{pools, advertisements} {
		Expect(workload.List(ctx, list, client.InNamespace(framework.MetalLBNamespace))).To(Succeed())
	}
	for i := range pools.Items {
		out["IPAddressPool "+pools.Items[i].Name] = strconv.FormatInt(pools.Items[i].Generation, 10)
	}
	for i := range advertisements.Items {
		note("L2Advertisement", &advertisements.Items[i])
	}
	return out
}
