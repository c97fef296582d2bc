package clusterctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const certManagerVersion = "v1.21.1"

// repository is the directory in which clusterctl finds providers.
type repository struct {
	dir, root string
	// core is the version of CAPI.
	core string
}

// makeRepository writes the releases of this provider, of the core provider and of cert-manager.
func makeRepository(ctx context.Context, versions ...string) repository {
	GinkgoHelper()
	root, err := framework.FindRepoRoot()
	Expect(err).NotTo(HaveOccurred())
	r := repository{dir: GinkgoT().TempDir(), root: root}
	for _, v := range versions {
		r.run(ctx, "make", "--silent", "release-manifests", "VERSION="+v, "RELEASE="+filepath.Join(r.dir, "ipam-butler", v))
	}
	r.core = string(bytes.TrimSpace(r.run(ctx, "go", "list", "-m", "-f", "{{.Version}}", "sigs.k8s.io/cluster-api")))
	capi := string(bytes.TrimSpace(r.run(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api")))
	components := r.run(ctx, filepath.Join(root, "bin", "tools", "kustomize"), "build", filepath.Join(capi, "core", "config", "default"))
	r.write(filepath.Join("cluster-api", r.core, "core-components.yaml"), withoutItsPod(components))
	metadata, err := os.ReadFile(filepath.Join(capi, "metadata.yaml"))
	Expect(err).NotTo(HaveOccurred())
	r.write(filepath.Join("cluster-api", r.core, "metadata.yaml"), metadata)
	r.write(filepath.Join("cert-manager", certManagerVersion, "cert-manager.yaml"), append(kind("cert-manager.io", "Issuer"), kind("cert-manager.io", "Certificate")...))
	r.write("clusterctl.yaml", fmt.Appendf(nil, `
cert-manager: {url: %[1]s/cert-manager/%[2]s/cert-manager.yaml, version: %[2]s}
providers:
- {name: cluster-api, type: CoreProvider, url: %[1]s/cluster-api/%[3]s/core-components.yaml}
- {name: butler, type: IPAMProvider, url: %[1]s/ipam-butler/%[4]s/ipam-components.yaml}
`, r.dir, certManagerVersion, r.core, versions[0]))
	return r
}

func (r repository) write(path string, text []byte) {
	GinkgoHelper()
	path = filepath.Join(r.dir, path)
	Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
	Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
}

// run runs a program in the root of the project, and returns its output.
func (r repository) run(ctx context.Context, name string, args ...string) []byte {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.root
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		out = append(out, failed.Stderr...)
	}
	Expect(err).NotTo(HaveOccurred(), "%s %v\n%s", name, args, out)
	return out
}

// withoutItsPod removes from CAPI's components what requires its Pod: webhooks and conversions.
func withoutItsPod(components []byte) []byte {
	GinkgoHelper()
	objs, err := framework.ParseManifests(components)
	Expect(err).NotTo(HaveOccurred())
	var out bytes.Buffer
	for _, o := range objs {
		switch o.GetKind() {
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			continue
		case "CustomResourceDefinition":
			unstructured.RemoveNestedField(o.Object, "spec", "conversion")
		}
		text, err := yaml.Marshal(o.Object)
		Expect(err).NotTo(HaveOccurred())
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}

// kind returns the CRD of a kind that has no controller here, without a schema.
func kind(group, name string) []byte {
	return fmt.Appendf(nil, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.%[3]s}
spec:
  group: %[3]s
  names: {kind: %[2]s, plural: %[1]ss, singular: %[1]s}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, strings.ToLower(name), name, group)
}
