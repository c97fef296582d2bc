package clusterctl

import (
	"encoding/json"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("clusterctl", Ordered, func() {
	var s *site
	BeforeAll(func() { s = startSite() })

	It("installs the provider, whose manager serves claims with the rights that were installed", func(ctx SpecContext) { // C37
		Expect(s.init(ctx, "list-images")).To(ContainSubstring("cluster-api-ipam-provider-butler:" + release))
		Expect(s.init(ctx)).To(ContainSubstring(`Installing provider="ipam-butler"`))
		d := s.deployment(ctx)
		Expect(d.Labels).To(HaveKeyWithValue("cluster.x-k8s.io/provider", "ipam-butler"))
		Expect(d.Spec.Replicas).To(HaveValue(Equal(int32(1))))
		Expect(d.Spec.Template.Spec.Containers).To(HaveExactElements(And(HaveField("Name", "manager"), HaveField("Image", HaveSuffix(":"+release)))))
		s.add(ctx, "load-balancers", "leases")
		s.run(ctx)
		newFleet(ctx, s, "first").waitUntilGranted(ctx, s)
	})

	It("offers a newer release, and installs it without a change of the allocations", func(ctx SpecContext) { // C40
		before := s.allocated(ctx)
		Expect(before).To(HaveLen(9))
		Expect(s.clusterctl(ctx, "upgrade", "plan")).To(MatchRegexp(`ipam-butler +%s +IPAMProvider +%s +%s`, namespace, release, newer))
		Expect(s.manager.Stop()).To(Succeed()) // as the old Deployment ends
		s.clusterctl(ctx, "upgrade", "apply", "--ipam", "butler:"+newer)
		Expect(s.deployment(ctx).Spec.Template.Spec.Containers[0].Image).To(HaveSuffix(":" + newer))
		Expect(s.allocated(ctx)).To(Equal(before))
		s.run(ctx) // with the components that were added before
		claim := framework.MakeClaim("first", "later").Pool("machines").Obj()
		Expect(s.Create(ctx, claim)).To(Succeed())
		address := s.addressOf(ctx, claim)
		after := s.allocated(ctx)
		Expect(after).To(HaveKeyWithValue("IPAddress first/later", address))
		delete(after, "IPAddress first/later")
		Expect(after).To(Equal(before))
	})

	It("deletes the provider, and leaves the allocations", func(ctx SpecContext) { // C40
		before := s.allocated(ctx)
		Expect(s.manager.Stop()).To(Succeed())
		s.clusterctl(ctx, "delete", "--ipam", "butler")
		Expect(s.allocated(ctx)).To(Equal(before))
		for _, kind := range []string{"ClusterRole", "ClusterRoleBinding"} {
			list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: kind + "List"}}
			Expect(s.List(ctx, list, client.MatchingLabels{"cluster.x-k8s.io/provider": "ipam-butler"})).To(Succeed())
			Expect(list.Items).To(BeEmpty(), kind)
		}
	})
})

var _ = Describe("The set of components that clusterctl generates", func() {
	It("has a description, and takes its image from the configured repository", func(ctx SpecContext) { // C39
		described := clusterctl(ctx, "generate", "provider", "--ipam", "butler", "--describe")
		Expect(described).To(And(ContainSubstring(namespace), ContainSubstring("cluster-api-ipam-provider-butler:"+release)))
		config, err := os.ReadFile(filepath.Join(repo.dir, "clusterctl.yaml"))
		Expect(err).NotTo(HaveOccurred())
		repo.write("mirrored.yaml", append(config, "images: {ipam-butler: {repository: mirror.example.com/butler}}\n"...))
		Expect(clusterctl(ctx, "generate", "provider", "--ipam", "butler", "--config", filepath.Join(repo.dir, "mirrored.yaml"))).
			To(ContainSubstring("image: mirror.example.com/butler/cluster-api-ipam-provider-butler:" + release))
	})

	It("is in the target namespace, whatever its name is", func(ctx SpecContext) { // C38
		objs, err := framework.ParseManifests([]byte(clusterctl(ctx, "generate", "provider", "--ipam", "butler", "--target-namespace", "elsewhere")))
		Expect(err).NotTo(HaveOccurred())
		for _, o := range objs {
			if o.GetKind() == "Namespace" {
				Expect(o.GetName()).To(Equal("elsewhere"))
			}
			text, err := json.Marshal(o.Object)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(text)).NotTo(MatchRegexp(`"namespace":"%[1]s"|\.%[1]s\.svc|"%[1]s/`, namespace), "%s %s", o.GetKind(), o.GetName())
			Expect(o.GetLabels()).To(HaveKeyWithValue("cluster.x-k8s.io/provider", "ipam-butler"), "%s %s", o.GetKind(), o.GetName())
		}
	})

	It("has a variant without webhooks and cert-manager", func() {
		text, err := os.ReadFile(repo.dir + "/ipam-butler/" + release + "/ipam-components-no-webhook.yaml")
		Expect(err).NotTo(HaveOccurred())
		kinds := map[string]int{}
		objs, err := framework.ParseManifests(text)
		Expect(err).NotTo(HaveOccurred())
		for _, o := range objs {
			kinds[o.GetKind()]++
		}
		Expect(kinds).To(And(HaveKeyWithValue("Deployment", 1), HaveKeyWithValue("Namespace", 1), HaveKeyWithValue("CustomResourceDefinition", 6)))
		Expect(kinds).NotTo(Or(HaveKey("ValidatingWebhookConfiguration"), HaveKey("Certificate"), HaveKey("Issuer")))
		Expect(string(text)).To(ContainSubstring("--webhook-port=0"))
	})
})
