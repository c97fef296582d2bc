package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A Cluster that the manager cannot connect to", func() {
	It("has a block with a condition that reports a missing or a wrong kubeconfig", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		cluster := tenant(ns, "tenant", "config")
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.127.0.0/24").Obj(), provider(ns, "config", "p"), cluster)
		m := namespaceManager(ctx, ns)
		expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)
		demand := func() *metav1.Condition {
			return meta.FindStatusCondition(allocationsIn(ctx, ns)[0].Status.Conditions, v1alpha1.DemandSatisfiedCondition)
		}
		Expect(demand()).To(BeNil()) // the cluster is still being built
		modifyStatus(ctx, cluster, func(c *clusterv1.Cluster) { c.Status.Initialization.InfrastructureProvisioned = ptr.To(true) })
		Eventually(demand).Should(HaveValue(And(HaveField("Status", metav1.ConditionUnknown),
			HaveField("Reason", v1alpha1.TenantUnreachableReason), HaveField("Message", HavePrefix("Secret "+ns+"/tenant-kubeconfig does not exist")))))
		expectRestMeanwhile(ctx, 1, m)
		create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tenant-kubeconfig"}, Data: map[string][]byte{
			"value": []byte("apiVersion: v1\nkind: Config\nusers:\n- name: me\n  user: {tokenFile: /token}\n"),
		}})
		// Secrets are not watched. Cluster API writes the Cluster when it has created one.
		modifyStatus(ctx, cluster, func(c *clusterv1.Cluster) { c.Status.Phase = string(clusterv1.ClusterPhaseProvisioning) })
		Eventually(demand).Should(HaveValue(HaveField("Message", ContainSubstring("it names a file"))))
		expectRestMeanwhile(ctx, 1, m)
		Expect(m.Stop()).To(Succeed())
	})
})
