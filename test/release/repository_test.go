package release

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Cluster API's Tiltfile builds the manager from these files, and sets it as the image that kustomize names.
func TestTiltProviderSettings(t *testing.T) {
	var provider struct {
		Name   string `json:"name"`
		Config struct {
			Image          string   `json:"image"`
			LiveReloadDeps []string `json:"live_reload_deps"`
			Label          string   `json:"label"`
		} `json:"config"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "tilt-provider.yaml")), &provider); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(read(t, "config/default/kustomization.yaml"), "cluster.x-k8s.io/provider: "+provider.Name+"\n") {
		t.Errorf("the components are not those of %s", provider.Name)
	}
	if !strings.Contains(read(t, "config/manager/manager.yaml"), "image: "+provider.Config.Image+":latest\n") {
		t.Errorf("the Deployment does not run the image %q", provider.Config.Image)
	}
	for _, dep := range provider.Config.LiveReloadDeps {
		if _, err := os.Stat(filepath.Join(framework.RepoRootForTest(t), dep)); err != nil {
			t.Error(err)
		}
	}
	// The sources of the manager are watched.
	packages := command(t, "go", "list", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{end}}{{end}}", ".")
	for _, p := range strings.Fields(packages)[1:] {
		p = strings.TrimPrefix(p, "github.com/butlerdotdev/cluster-api-ipam-provider-butler")
		if dir := strings.Split(strings.TrimPrefix(p, "/"), "/")[0]; dir != "" && !slices.Contains(provider.Config.LiveReloadDeps, dir) {
			t.Errorf("live_reload_deps lacks %s", dir)
		}
	}
}

// Renovate raises in one pull request the modules that `make align` keeps in one version.
func TestRenovateGroupsAlignedModules(t *testing.T) {
	var config struct {
		PackageRules []struct {
			GroupName         string   `json:"groupName"`
			MatchFileNames    []string `json:"matchFileNames"`
			MatchPackageNames []string `json:"matchPackageNames"`
		} `json:"packageRules"`
	}
	text := regexp.MustCompile(`(?m)^\s*//.*$`).ReplaceAllString(read(t, "renovate.json5"), "")
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	// group returns the group of the last rule that matches, as renovate does.
	group := func(file, module string) (name string) {
		for _, rule := range config.PackageRules {
			if rule.GroupName != "" && (rule.MatchFileNames != nil || rule.MatchPackageNames != nil) &&
				matches(t, rule.MatchFileNames, file) && matches(t, rule.MatchPackageNames, module) {
				name = rule.GroupName
			}
		}
		return name
	}
	for name, tc := range map[string]struct{ file, module, want string }{
		"the manager's Kubernetes":      {"go.mod", "k8s.io/client-go", "kubernetes"},
		"the manager's Cluster API":     {"go.mod", "sigs.k8s.io/cluster-api", "kubernetes"},
		"its kinds":                     {"go.mod", "sigs.k8s.io/cluster-api/api", "kubernetes"},
		"its controller-runtime":        {"go.mod", "sigs.k8s.io/controller-runtime", "kubernetes"},
		"the control plane":             {"hack/tools/kubernetes/go.mod", "k8s.io/kubernetes", "kubernetes"},
		"etcd":                          {"hack/tools/etcd/go.mod", "go.etcd.io/etcd/server/v3", "kubernetes"},
		"clusterctl":                    {"hack/tools/clusterctl/go.mod", "sigs.k8s.io/cluster-api", "kubernetes"},
		"MetalLB's kinds":               {"go.mod", "go.universe.tf/metallb", "metallb"},
		"MetalLB's controller":          {"hack/tools/metallb/go.mod", "go.universe.tf/metallb", "metallb"},
		"Cilium's LB IPAM":              {"hack/tools/cilium/go.mod", "github.com/cilium/cilium", "cilium"},
		"a tool":                        {"hack/tools/golangci-lint/go.mod", "github.com/golangci/golangci-lint/v2", "tools"},
		"a test module":                 {"test/page/go.mod", "github.com/chromedp/chromedp", "tools"},
		"what signs":                    {"hack/tools/cosign/go.mod", "github.com/sigstore/cosign/v3", "release tools"},
		"what packs":                    {"hack/tools/image/go.mod", "github.com/google/go-containerregistry", "release tools"},
		"what pushes":                   {"hack/tools/crane/go.mod", "github.com/google/go-containerregistry", "release tools"},
		"another module of the manager": {"go.mod", "go4.org/netipx", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(framework.RepoRootForTest(t), tc.file)); err != nil || !strings.Contains(read(t, tc.file), tc.module+" v") {
				t.Fatalf("%s does not name %s: %v", tc.file, tc.module, err)
			}
			if got := group(tc.file, tc.module); got != tc.want {
				t.Errorf("%q, not %q", got, tc.want)
			}
		})
	}
}

// matches reports whether one of the patterns matches a name, or there are no patterns. A ** matches the rest.
func matches(t *testing.T, patterns []string, name string) bool {
	t.Helper()
	return patterns == nil || slices.ContainsFunc(patterns, func(p string) bool {
		if before, ok := strings.CutSuffix(p, "**"); ok {
			return strings.HasPrefix(name, before)
		}
		ok, err := path.Match(p, name)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	})
}
