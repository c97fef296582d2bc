package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// warnings collects the warnings that the API server sends to a client.
type warnings struct {
	sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.Lock()
	defer w.Unlock()
	w.texts = append(w.texts, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() []string {
	w.Lock()
	defer w.Unlock()
	texts := w.texts
	w.texts = nil
	return texts
}

// serveWebhooks starts a manager with webhooks and registers them for the pools of a namespace, and for global pools
// that have its name as the label "spec". The webhooks are those of config/webhook.
func serveWebhooks(ctx context.Context, ns string) {
	GinkgoHelper()
	port, err := framework.FreePort()
	Expect(err).NotTo(HaveOccurred())
	certs := GinkgoT().TempDir()
	ca, err := framework.WriteServingCerts(certs)
	Expect(err).NotTo(HaveOccurred())
	startManager(ctx, fmt.Sprintf("--webhook-port=%d", port), "--webhook-cert-dir="+certs)
	registerWebhooks(ctx, ns, port, ca)
	// The API server takes a moment until it calls the webhooks.
	Eventually(func() error {
		return k8s.Create(ctx, framework.MakePool("asked").Namespace(ns).Addresses("10.21.99.1").Reserved("10.21.98.1").Obj(), client.DryRunAll)
	}).Should(Satisfy(apierrors.IsInvalid))
}

// registerWebhooks registers the webhooks of config/webhook at a port, for the pools of a namespace, and for global
// pools that have its name as the label "spec".
func registerWebhooks(ctx context.Context, ns string, port int, ca []byte) {
	GinkgoHelper()
	root, err := framework.FindRepoRoot()
	Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile(filepath.Join(root, "config", "webhook", "manifests.yaml"))
	Expect(err).NotTo(HaveOccurred())
	configuration := &admissionv1.ValidatingWebhookConfiguration{}
	Expect(yaml.UnmarshalStrict(text, configuration)).To(Succeed())
	configuration.Name = ns
	for i := range configuration.Webhooks {
		hook := &configuration.Webhooks[i]
		hook.ClientConfig = admissionv1.WebhookClientConfig{
			URL:      ptr.To(fmt.Sprintf("https://127.0.0.1:%d%s", port, *hook.ClientConfig.Service.Path)),
			CABundle: ca,
		}
		if hook.Rules[0].Resources[0] != "globalnetworkpools" {
			hook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}}
		} else {
			hook.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"spec": ns}}
		}
	}
	create(ctx, configuration)
	DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, configuration)).To(Succeed()) })
}

var _ = Describe("The webhooks", Ordered, func() {
	var (
		ns       string
		received *warnings
		c        client.Client
	)

	BeforeAll(func(ctx SpecContext) {
		ns = newNamespace(ctx, nil)
		serveWebhooks(ctx, ns)
		received = &warnings{}
		cfg := rest.CopyConfig(cp.Config)
		cfg.WarningHandler = received
		var err error
		c, err = client.New(cfg, client.Options{Scheme: k8s.Scheme()})
		Expect(err).NotTo(HaveOccurred())
	})

	refused := func(err error, messages ...string) {
		GinkgoHelper()
		Expect(err).To(HaveOccurred())
		for _, text := range messages {
			Expect(err.Error()).To(ContainSubstring(text))
		}
	}

	It("refuse a pool whose ranges do not fit together, with the next step in the message", func(ctx SpecContext) { // W13, U28
		refused(c.Create(ctx, framework.MakePool("reserved").Namespace(ns).Addresses("10.21.0.1-10.21.0.9", "10.21.1.1-10.21.1.9").
			Prefix(24).Reserved("10.21.0.5", "10.21.0.8-10.21.1.2").Obj()),
			"spec.reserved[1].addresses", "10.21.0.8-10.21.1.2", "not inside the pool", "correct or remove the entry")
		refused(c.Create(ctx, framework.MakePool("tenant").Namespace(ns).Addresses("10.21.0.1-10.21.0.9", "10.21.1.1-10.21.1.9").
			Prefix(24).TenantRange("10.21.0.5", "10.21.0.20").Obj()), "spec.tenantAllocation.end", "outside the pool")
		refused(c.Create(ctx, framework.MakePool("pin").Namespace(ns).Addresses("10.21.0.1-10.21.0.9").PreAllocate("vip", "10.21.0.10").Obj()),
			"spec.preAllocations[vip]", "outside the pool")
		refused(c.Create(ctx, framework.MakePool("pins").Namespace(ns).CIDR("10.21.0.0/28").PreAllocate("vip", "10.21.0.9").PreAllocate("web", "10.21.0.9").Obj()),
			"spec.preAllocations[web]", `kept for "vip" too`, "give each claim an address of its own")
		global := framework.MakeGlobalPool(ns).Addresses("10.21.0.1-10.21.0.9").Reserved("10.21.9.1").Obj()
		global.Labels = map[string]string{"spec": ns}
		refused(c.Create(ctx, global), "GlobalNetworkPool", "spec.reserved[0].addresses")
	})

	It("refuse a change that would cut off an address in use, and name its holder", func(ctx SpecContext) { // W14, U23
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.21.2.0/28").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "holder").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "holder").Spec.Address).To(Equal("10.21.2.1"))
		change := func(spec func(*v1alpha1.NetworkPoolSpec)) error {
			Expect(c.Get(ctx, keyOf(pool), pool)).To(Succeed())
			before := pool.DeepCopy()
			spec(&pool.Spec)
			return c.Patch(ctx, pool, client.MergeFrom(before))
		}
		holder := "10.21.2.1 (IPAddressClaim " + ns + "/holder)"
		refused(change(func(s *v1alpha1.NetworkPoolSpec) { s.CIDR = "10.21.2.8/29" }), "cut off addresses that are in use", holder)
		refused(change(func(s *v1alpha1.NetworkPoolSpec) { s.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.21.2.0/30"}} }), holder)
		refused(change(func(s *v1alpha1.NetworkPoolSpec) { s.Gateway = "10.21.2.1" }), holder)
		// Addresses that are not in use can be removed.
		Expect(change(func(s *v1alpha1.NetworkPoolSpec) { s.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.21.2.8/29"}} })).To(Succeed())
		deleteClaim(ctx, ns, "holder")
		expectGone(ctx, framework.MakeClaim(ns, "holder").Obj())
		Expect(change(func(s *v1alpha1.NetworkPoolSpec) { s.Gateway = "10.21.2.1" })).To(Succeed())
		// The webhooks do not block the manager's own writes, or a deletion.
		Expect(c.Delete(ctx, pool)).To(Succeed())
		expectGone(ctx, pool)
	})

	It("refuse a change that would cut off a block of a carved pool, and a pool that is carved from itself", func(ctx SpecContext) { // C26
		site := framework.MakePool("site").Namespace(ns).CIDR("10.21.4.0/24").AllocateReservedAddresses().Carvable().Obj()
		team := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "site", 28, 1, 2).Carvable().Obj()
		create(ctx, site, team)
		Eventually(func() []string { return blocksOf(ctx, team) }).Should(ConsistOf("10.21.4.0/28"))
		Expect(c.Get(ctx, keyOf(site), site)).To(Succeed())
		before := site.DeepCopy()
		site.Spec.CIDR = "10.21.4.128/25"
		refused(c.Patch(ctx, site, client.MergeFrom(before)), "cut off addresses that are in use", "10.21.4.0/28", "team")

		Expect(c.Create(ctx, framework.MakePool("below").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "above", 29, 0, 2).Carvable().Obj())).To(Succeed())
		above := func() error {
			return c.Create(ctx, framework.MakePool("above").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "below", 28, 0, 2).Carvable().Obj(), client.DryRunAll)
		}
		Eventually(above).Should(HaveOccurred()) // when the manager has observed the other pool
		refused(above(), "spec.carve.poolRef", "itself")
	})

	It("warn of an allocation whose Cluster or pool does not exist yet, and do not refuse it", func(ctx SpecContext) { // B70
		o := framework.MakeAllocation(ns, "early").Pool("nowhere").Count(4).Obj()
		received.take()
		Expect(c.Create(ctx, o, client.DryRunAll)).To(Succeed())
		Expect(received.take()).To(ConsistOf(
			"NetworkPool "+ns+"/nowhere does not exist yet; nothing is allocated before it does",
			"Cluster "+ns+"/tenant does not exist yet; addresses are allocated all the same, and kept for it"))
	})

	It("warn of a preAllocation of an address that another claim has, and the pool reports it", func(ctx SpecContext) {
		pool := framework.MakePool("kept").Namespace(ns).CIDR("10.214.4.0/28").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "holder").Pool("kept").Obj())
		Expect(addressOf(ctx, ns, "holder").Spec.Address).To(Equal("10.214.4.1"))
		Expect(c.Get(ctx, keyOf(pool), pool)).To(Succeed())
		before := pool.DeepCopy()
		pool.Spec.PreAllocations = v1alpha1.PreAllocations{"vip": "10.214.4.1"}
		received.take()
		Expect(c.Patch(ctx, pool, client.MergeFrom(before))).To(Succeed())
		holder := "10.214.4.1 is held by IPAddressClaim " + ns + "/holder"
		Expect(received.take()).To(ConsistOf("spec.preAllocations[vip]: " + holder + "; a claim named vip gets it when that is released"))
		Eventually(func() string {
			return expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		}).Should(HaveSuffix("; spec.preAllocations[vip] " + holder + ", and free for that name when it is released"))
		create(ctx, framework.MakeClaim(ns, "vip").Pool("kept").Obj())
		Expect(refusalOf(ctx, ns, "vip", "AllocationFailed")).To(ContainSubstring(holder + "; wait until it is released, or change spec.preAllocations[vip] of NetworkPool " + ns + "/kept"))
		deleteClaim(ctx, ns, "holder")
		Expect(addressOf(ctx, ns, "vip").Spec.Address).To(Equal("10.214.4.1"))
	})

	It("warn of a pool that overlaps another", func(ctx SpecContext) { // W13, R11, U3
		Expect(c.Create(ctx, framework.MakePool("one").Namespace(ns).CIDR("10.21.3.0/28").Obj())).To(Succeed())
		Eventually(func() []string {
			received.take()
			Expect(c.Create(ctx, framework.MakePool("two").Namespace(ns).CIDR("10.21.3.8/29").Obj(), client.DryRunAll)).To(Succeed())
			return received.take()
		}).Should(ConsistOf(And(ContainSubstring("NetworkPool "+ns+"/one has 10.21.3.8"), ContainSubstring("spec.network"))))
		Expect(c.Create(ctx, framework.MakePool("two").Namespace(ns).CIDR("10.21.3.8/29").Network("other").Obj())).To(Succeed())
		Expect(received.take()).To(BeEmpty())
	})
})

var _ = Describe("While no manager answers", func() {
	It("a pool can be paused, and its spec cannot be changed", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.21.97.0/28").Obj()
		create(ctx, pool)
		port, err := framework.FreePort()
		Expect(err).NotTo(HaveOccurred())
		ca, err := framework.WriteServingCerts(GinkgoT().TempDir())
		Expect(err).NotTo(HaveOccurred())
		registerWebhooks(ctx, ns, port, ca)
		// The API server takes a moment until it calls the webhook.
		Eventually(func() error {
			next := pool.DeepCopy()
			next.Spec.Gateway = "10.21.97.1"
			return k8s.Patch(ctx, next, client.MergeFrom(pool), client.DryRunAll)
		}).Should(MatchError(ContainSubstring("failed calling webhook")))
		next := pool.DeepCopy()
		next.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		Expect(k8s.Patch(ctx, next, client.MergeFrom(pool))).To(Succeed())
	})
})
