package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// W27: the tests run the versions that the pages list as tested.
func TestDocumentedVersionsAreTested(t *testing.T) {
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	pages := readPages(t)
	for name, tc := range map[string]struct{ page, mod, module string }{
		"Kubernetes":  {"versions.md", "hack/tools/kubernetes/go.mod", "k8s.io/kubernetes"},
		"Cluster API": {"versions.md", "go.mod", "sigs.k8s.io/cluster-api"},
		"Cilium":      {"cilium.md", "hack/tools/cilium/go.mod", "github.com/cilium/cilium"},
		"MetalLB":     {"elastic.md", "go.mod", "go.universe.tf/metallb"},
	} {
		t.Run(name, func(t *testing.T) {
			mod, err := os.ReadFile(filepath.Join(root, tc.mod))
			if err != nil {
				t.Fatal(err)
			}
			pinned := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(tc.module) + ` (v\d+\.\d+)\.`).FindStringSubmatch(string(mod))
			if pinned == nil {
				t.Fatalf("%s does not name %s", tc.mod, tc.module)
			}
			sentence := regexp.MustCompile(`Tested with .*?\b` + name + ` v\d+\.\d+`).FindString(pages[tc.page])
			if !strings.HasSuffix(sentence, " "+pinned[1]) {
				t.Errorf("%s says %q, and the tests run %s", tc.page, sentence, pinned[1])
			}
		})
	}
}
