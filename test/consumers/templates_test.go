package consumers

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/yamlprocessor"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// providerCRDs names directories with the CRDs of infrastructure providers, separated by colons. They are not
// in Go modules that could be had everywhere, so without it their objects in the templates are only parsed.
const providerCRDs = "PROVIDER_CRDS"

var (
	documented = regexp.MustCompile(`([A-Z0-9_]+)=('[^']*'|\S+)`)
	noDefault  = regexp.MustCompile(`\$\{[A-Z0-9_]+:?[=-]\}`)
)

// variablesOf are those that the comment at the head of a template has, with their values.
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

// poolRefs returns the references to pools of ours, wherever they stand in an object.
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
	BeforeAll(func(ctx SpecContext) {
		dir, err := framework.ClusterAPIDir(ctx)
		Expect(err).NotTo(HaveOccurred())
		paths := []string{
			dir + "/core/config/crd/bases/cluster.x-k8s.io_machinedeployments.yaml",
			dir + "/bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigtemplates.yaml",
			dir + "/controlplane/kubeadm/config/crd/bases/controlplane.cluster.x-k8s.io_kubeadmcontrolplanes.yaml",
		}
		if dirs := os.Getenv(providerCRDs); dirs != "" {
			paths = append(paths, filepath.SplitList(dirs)...)
		}
		_, err = envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{Paths: paths, ErrorIfPathMissing: true})
		Expect(err).NotTo(HaveOccurred())
	})

	// refs: how often the template names a pool.
	DescribeTable("gives what a management cluster takes", func(ctx SpecContext, provider string, refs int) {
		ns := newNamespace(ctx)
		text, err := os.ReadFile("../../templates/cluster-template-" + provider + ".yaml")
		Expect(err).NotTo(HaveOccurred())
		Expect(noDefault.FindAllString(string(text), -1)).To(BeEmpty(), "clusterctl takes an empty default for none")

		// clusterctl sets these from its flags, the others are in the comment, and no more than are needed.
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

		objs, err := framework.Documents(rendered)
		Expect(err).NotTo(HaveOccurred())
		strict := client.WithFieldValidation(k8s, "Strict")
		pools := map[string]bool{}
		var unknown []string
		for _, obj := range objs {
			Expect(obj.GetNamespace()).To(Equal(ns), obj.GetKind())
			var opts []client.CreateOption
			if obj.GroupVersionKind().Group == v1alpha1.GroupVersion.Group {
				pools[obj.GetKind()+"/"+obj.GetName()] = true
			} else {
				opts = append(opts, client.DryRunAll)
			}
			err := strict.Create(ctx, obj.DeepCopy(), opts...)
			if meta.IsNoMatchError(err) {
				unknown = append(unknown, obj.GetKind())
				continue
			}
			Expect(err).NotTo(HaveOccurred(), obj.GetKind()+" "+obj.GetName())
		}
		AddReportEntry("parsed only, for want of "+providerCRDs, unknown)

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
		Entry("on Proxmox, which admits no pool of ours", "proxmox", 0),
	)
})
