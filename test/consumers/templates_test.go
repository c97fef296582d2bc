package consumers

import (
	"errors"
	"os"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/yamlprocessor"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var (
	documented = regexp.MustCompile(`([A-Z0-9_]+)=('[^']*'|\S+)`)
	noDefault  = regexp.MustCompile(`\$\{[A-Z0-9_]+:?[=-]\}`)
)

// variablesOf returns the variables in the comment at the head of a template, with their values.
func variablesOf(template string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(template) {
		if exports, ok := strings.CutPrefix(line, "#   export "); ok {
			exports, _, _ = strings.Cut(exports, " #")
			for _, match := range documented.FindAllStringSubmatch(exports, -1) {
				out[match[1]] = strings.Trim(match[2], "'")
			}
		}
	}
	return out
}

// poolRefs returns the references to pools of this provider, anywhere in an object.
func poolRefs(value any) []map[string]any {
	var out []map[string]any
	switch v := value.(type) {
	case map[string]any:
		if v["apiGroup"] == v1alpha1.GroupVersion.Group {
			out = append(out, v)
		}
		for _, inner := range v {
			out = append(out, poolRefs(inner)...)
		}
	case []any:
		for _, inner := range v {
			out = append(out, poolRefs(inner)...)
		}
	}
	return out
}

var _ = Describe("The template", Ordered, func() {
	// strict is a client of a management cluster of its own, with the kinds of the infrastructure providers; in the
	// shared one, owners of claims in testdata replace some of these kinds.
	var strict client.Client
	BeforeAll(func(ctx SpecContext) {
		management, err := framework.StartControlPlane(framework.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(management.Stop()).To(Succeed()) })
		dir, err := framework.FindClusterAPIDir(ctx)
		Expect(err).NotTo(HaveOccurred())
		paths, err := framework.FindProviderCRDs(ctx)
		Expect(err).NotTo(HaveOccurred())
		_, err = envtest.InstallCRDs(management.Config, envtest.CRDInstallOptions{ErrorIfPathMissing: true, Paths: append(paths,
			dir+"/core/config/crd/bases/cluster.x-k8s.io_machinedeployments.yaml",
			dir+"/bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigtemplates.yaml",
			dir+"/controlplane/kubeadm/config/crd/bases/controlplane.cluster.x-k8s.io_kubeadmcontrolplanes.yaml",
		)})
		Expect(err).NotTo(HaveOccurred())
		admin, err := management.NewClient()
		Expect(err).NotTo(HaveOccurred())
		strict = client.WithFieldValidation(admin, "Strict")
	})

	// refs is the number of references to a pool in the template.
	DescribeTable("renders objects that a management cluster accepts", func(ctx SpecContext, provider string, refs int) {
		const ns = "default"
		text, err := os.ReadFile("../../templates/cluster-template-" + provider + ".yaml")
		Expect(err).NotTo(HaveOccurred())
		Expect(noDefault.FindAllString(string(text), -1)).To(BeEmpty(), "clusterctl takes an empty default for none")

		// clusterctl sets these from its flags; the others are in the comment, which lists no variable that is not
		// needed.
		values := map[string]string{
			"CLUSTER_NAME": "c", "NAMESPACE": ns, "KUBERNETES_VERSION": "v1.34.1", "CONTROL_PLANE_MACHINE_COUNT": "3", "WORKER_MACHINE_COUNT": "3",
		}
		for name, value := range variablesOf(string(text)) {
			values[name] = value
		}
		processor := yamlprocessor.NewSimpleProcessor()
		needed, err := processor.GetVariables(text)
		Expect(err).NotTo(HaveOccurred())
		for name := range values {
			Expect(needed).To(ContainElement(name))
		}
		rendered, err := processor.Process(text, func(name string) (string, error) {
			if value, ok := values[name]; ok {
				return value, nil
			}
			return "", errors.New("the comment does not have " + name)
		})
		Expect(err).NotTo(HaveOccurred())

		objs, err := framework.ParseManifests(rendered)
		Expect(err).NotTo(HaveOccurred())
		pools := map[string]bool{}
		for _, obj := range objs {
			Expect(obj.GetNamespace()).To(Equal(ns), obj.GetKind())
			if obj.GroupVersionKind().Group == v1alpha1.GroupVersion.Group {
				pools[obj.GetKind()+"/"+obj.GetName()] = true
			}
			Expect(strict.Create(ctx, obj.DeepCopy(), client.DryRunAll)).To(Succeed(), obj.GetKind()+" "+obj.GetName())
		}

		var named int
		for _, obj := range objs {
			for _, ref := range poolRefs(obj.Object) {
				Expect(pools).To(HaveKey(ref["kind"].(string) + "/" + ref["name"].(string)))
				named++
			}
		}
		Expect(named).To(Equal(refs))
	},
		Entry("on vSphere", "vsphere", 2),
		Entry("on bare metal", "metal3", 4),
		Entry("on Proxmox, whose provider accepts no pool of ours", "proxmox", 0),
	)
})
