// Package operator tests the page on how the Cluster API Operator installs the provider. It is a module of its own,
// so that the operator is not a dependency of the manager.
package operator

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	operatorv1 "sigs.k8s.io/cluster-api-operator/api/v1alpha2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/options"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var cp *framework.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(framework.RunTestMain(m, framework.Options{}, func(c *framework.ControlPlane) { cp = c }))
}

func TestDocumentedProvider(t *testing.T) {
	dir, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)\n```yaml\n(apiVersion: operator\\.cluster\\.x-k8s\\.io/.*?)```").FindSubmatch(page)
	if shown == nil {
		t.Fatal("docs/install.md shows no object of the operator")
	}
	provider := &operatorv1.IPAMProvider{}
	if err := yaml.UnmarshalStrict(shown[1], provider); err != nil {
		t.Fatal(err)
	}

	t.Run("is one that the operator's API takes", func(t *testing.T) {
		c := install(t)
		if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: provider.Namespace}}); err != nil {
			t.Fatal(err)
		}
		strict := client.WithFieldValidation(c, metav1.FieldValidationStrict)
		if err := strict.Create(t.Context(), provider.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		wrong := provider.DeepCopy()
		wrong.Name = "wrong"
		wrong.Spec.FetchConfig.Selector = &metav1.LabelSelector{}
		if err := strict.Create(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "one and only one") {
			t.Errorf("the rules of its CRD are not checked: %v", err)
		}
	})

	t.Run("is the provider that clusterctl installs", func(t *testing.T) {
		if provider.Name != "butler" || !strings.Contains(string(page), " url: "+provider.Spec.FetchConfig.URL+"\n") {
			t.Errorf("%s from %s", provider.Name, provider.Spec.FetchConfig.URL)
		}
	})

	t.Run("sets flags that there are, on the container that there is", func(t *testing.T) {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		(&options.Options{}).AddFlags(flags)
		manager, err := os.ReadFile(filepath.Join(dir, "config", "manager", "manager.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range provider.Spec.Deployment.Containers {
			if !strings.Contains(string(manager), "- name: "+c.Name+"\n") {
				t.Errorf("no container %s", c.Name)
			}
			if len(c.Args) == 0 {
				t.Errorf("container %s has no args", c.Name)
			}
			for name, value := range c.Args {
				if err := flags.Parse([]string{name + "=" + value}); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// install installs the operator's CRD, from the module that the test compiles.
func install(t *testing.T) client.Client {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api-operator").Output()
	if err != nil {
		t.Fatal(err)
	}
	crd := filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "bases", "operator.cluster.x-k8s.io_ipamproviders.yaml")
	if _, err := envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{Paths: []string{crd}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, operatorv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(cp.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
