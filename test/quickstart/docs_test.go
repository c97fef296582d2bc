package quickstart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var (
	yamlBlock = regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n")
	link      = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
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

// W27: whatever the documentation tells to apply, a strict API server takes.
func TestDocumentedManifests(t *testing.T) {
	cp, err := framework.Start(framework.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin, err := cp.Client()
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
					if err := c.Create(t.Context(), obj, client.DryRunAll); err != nil {
						t.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
					}
				}
			})
		}
	}
}

func TestDocumentedLinks(t *testing.T) {
	for path, text := range documents(t) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), match[1])); err != nil {
				t.Errorf("%s links to %s: %v", path, match[1], err)
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
