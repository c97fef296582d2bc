package quickstart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var (
	yamlBlock = regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n")
	link      = regexp.MustCompile(`\]\(([^)#]*)#?([^)]*)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	// slugless matches the characters that GitHub omits from the anchor of a heading.
	slugless = regexp.MustCompile("[^a-z0-9 _-]")
)

func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			texts[path] = string(text)
		}
	}
	return texts
}

// W27: a strict API server accepts every manifest in the documentation.
func TestDocumentedManifests(t *testing.T) {
	cp, err := framework.StartControlPlane(framework.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	installConsumers(t, cp)
	admin, err := cp.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	c := client.WithFieldValidation(admin, "Strict")
	for path, text := range documents(t) {
		for i, block := range yamlBlock.FindAllStringSubmatch(text, -1) {
			t.Run(fmt.Sprintf("%s block %d", filepath.Base(path), i+1), func(t *testing.T) {
				for doc := range strings.SplitSeq(block[1], "\n---\n") {
					obj := &unstructured.Unstructured{}
					if err := yaml.Unmarshal([]byte(doc), &obj.Object); err != nil {
						t.Fatal(err)
					}
					if obj.GroupVersionKind().Group == "operator.cluster.x-k8s.io" {
						continue // test/operator applies it
					}
					if err := c.Create(t.Context(), obj, client.DryRunAll); err != nil {
						t.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
					}
				}
			})
		}
	}
}

// installConsumers installs the CRDs of kinds in which users name pools: machine templates, and the classes that they
// are part of.
func installConsumers(t *testing.T, cp *framework.ControlPlane) {
	t.Helper()
	dirs, err := framework.FindProviderCRDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	capi, err := framework.FindClusterAPIDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	options := envtest.CRDInstallOptions{ErrorIfPathMissing: true, Paths: append(dirs, capi+"/core/config/crd/bases/cluster.x-k8s.io_clusterclasses.yaml",
		capi+"/controlplane/kubeadm/config/crd/bases/controlplane.cluster.x-k8s.io_kubeadmcontrolplanetemplates.yaml",
		capi+"/bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigtemplates.yaml")}
	if _, err := envtest.InstallCRDs(cp.Config, options); err != nil {
		t.Fatal(err)
	}
}

func TestDocumentedLinks(t *testing.T) {
	texts := documents(t)
	for path, text := range texts {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			to := path
			if match[1] != "" {
				to = filepath.Join(filepath.Dir(path), match[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", path, match[1], err)
			}
			if match[2] != "" && !anchors(texts[to])[match[2]] {
				t.Errorf("%s links to %s#%s: there is no such heading", path, match[1], match[2])
			}
		}
	}
}

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(slugless.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")] = true
	}
	return out
}

// The answers to threats in docs/security.md are tested by the tests that it names.
func TestThreatsHaveTests(t *testing.T) {
	text := documents(t)["../../docs/security.md"]
	_, table, found := strings.Cut(text, "| Threat | Answer | Tests |\n")
	if !found {
		t.Fatal("docs/security.md has no table of threats")
	}
	n := 0
	for line := range strings.Lines(table) {
		row := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(row) != 3 {
			if n > 0 {
				break
			}
			continue // the line below the heading
		}
		n++
		for test := range strings.SplitSeq(row[2], "; ") {
			pkg, name, named := strings.Cut(test, ": ")
			tests, err := framework.ReadTestNames(filepath.FromSlash("../../" + strings.Trim(pkg, "`")))
			if err != nil {
				t.Fatal(err)
			}
			if !named || (!tests.Functions[name] && !tests.Texts[name]) {
				t.Errorf("%s: %s has no test %q", row[0], pkg, name)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d lines can be read", n)
	}
}

// The pools in the documentation do not overlap the samples, so that a user who tries both gets no condition about an
// overlap.
func TestDocumentedPoolsDoNotOverlapSamples(t *testing.T) {
	declared := func(text, path string) (out []*netipx.IPSet) {
		objs, err := framework.ParseManifests([]byte(text))
		if err != nil {
			t.Fatal(path, err)
		}
		for _, obj := range objs {
			pool := &v1alpha1.NetworkPool{}
			if !strings.HasSuffix(obj.GetKind(), "NetworkPool") {
				continue
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, pool); err != nil {
				t.Fatal(path, err)
			}
			layout, errs := poolspec.Compile(&pool.Spec)
			if len(errs) > 0 {
				t.Fatal(path, errs)
			}
			out = append(out, layout.Declared())
		}
		return out
	}
	text, err := os.ReadFile("../../config/samples/pools.yaml")
	if err != nil {
		t.Fatal(err)
	}
	samples := declared(string(text), "config/samples")
	for path, text := range documents(t) {
		for _, block := range yamlBlock.FindAllStringSubmatch(text, -1) {
			for _, documented := range declared(block[1], path) {
				for _, ours := range samples {
					if ours.Overlaps(documented) {
						t.Errorf("%s has a pool of %v, and the quickstart one of %v", path, documented.Ranges(), ours.Ranges())
					}
				}
			}
		}
	}
}

// W27: clusterctl refuses a version whose series is not listed.
func TestReleaseSeries(t *testing.T) {
	var settings struct{ Config struct{ NextVersion string } }
	var metadata struct {
		ReleaseSeries []struct {
			Major, Minor int
			Contract     string
		}
	}
	read(t, "../../clusterctl-settings.json", func(b []byte) error { return json.Unmarshal(b, &settings) })
	read(t, "../../metadata.yaml", func(b []byte) error { return yaml.Unmarshal(b, &metadata) })
	for _, series := range metadata.ReleaseSeries {
		if series.Contract != "v1beta2" {
			t.Errorf("series %d.%d: contract %q", series.Major, series.Minor, series.Contract)
		}
		if strings.HasPrefix(settings.Config.NextVersion, fmt.Sprintf("v%d.%d.", series.Major, series.Minor)) {
			return
		}
	}
	t.Errorf("metadata.yaml lists no series of %s, the next version of clusterctl-settings.json", settings.Config.NextVersion)
}

func read(t *testing.T, path string, decode func([]byte) error) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = decode(text)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
