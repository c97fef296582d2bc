package components

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/options"
)

const root = "../../config"

// parsed returns the flags of a manager with this environment.
func parsed(t *testing.T, environ ...string) *options.Options {
	t.Helper()
	o, fs := &options.Options{}, pflag.NewFlagSet("manager", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := options.ApplyEnvironment(fs, environ); err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return o
}

func enabledNames(o *options.Options) []string {
	var out []string
	for _, c := range ListComponents(o) {
		if c.Enabled {
			out = append(out, c.Name)
		}
	}
	return out
}

// flagsOf returns the flags that the manifest of a component sets, as variables of the manager's environment.
func flagsOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "components", name, "component.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	first, bindings, _ := strings.Cut(string(text), "\n---\n")
	flags := &corev1.ConfigMap{}
	if err := yaml.UnmarshalStrict([]byte(first), flags); err != nil {
		t.Fatal(err)
	}
	if want := "butler-ipam-" + name; flags.Name != want {
		t.Errorf("ConfigMap %s, which the Deployment does not read: want %s", flags.Name, want)
	}
	for doc := range strings.SplitSeq(bindings, "\n---\n") {
		if strings.Contains(doc, "\nkind: ExtensionConfig\n") {
			if err := yaml.UnmarshalStrict([]byte(doc), &runtimev1.ExtensionConfig{}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		b := &rbacv1.RoleBinding{} // a ClusterRoleBinding has the same fields
		if err := yaml.UnmarshalStrict([]byte(doc), b); err != nil {
			t.Fatal(err)
		}
		if (b.Kind == "ClusterRoleBinding") != (b.Namespace == "") {
			t.Errorf("%s %s in namespace %q", b.Kind, b.Name, b.Namespace)
		}
		if want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "butler-ipam-system-manager", Namespace: "butler-ipam-system"}}; !slices.Equal(b.Subjects, want) {
			t.Errorf("%s is for %v", b.Name, b.Subjects)
		}
	}
	var out []string
	for flag, value := range flags.Data {
		out = append(out, options.EnvironmentPrefix+flag+"="+value)
	}
	return out
}

// boundTo returns the rules that the manifest of a component binds, by namespace.
func boundTo(t *testing.T, name string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	needs, err := Component{Name: name}.requirements()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]rbacv1.PolicyRule{}
	for _, n := range needs {
		out[n.namespace] = append(out[n.namespace], n.rules...)
	}
	if len(out) == 0 {
		t.Errorf("%s binds no role", name)
	}
	return out
}

// TestManifestsTurnComponentsOn checks that by default a manager fulfils claims alone, and that the manifest of a
// component turns the component on, with all roles that it then needs.
func TestManifestsTurnComponentsOn(t *testing.T) {
	if got := enabledNames(parsed(t)); !slices.Equal(got, []string{ClaimsComponent}) {
		t.Errorf("by default %v", got)
	}
	folders, err := os.ReadDir(filepath.Join(root, "components"))
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, folder := range folders {
		name := folder.Name()
		seen = append(seen, name)
		t.Run(name, func(t *testing.T) {
			environ := flagsOf(t, name)
			o := parsed(t, environ...)
			if got := enabledNames(o); !slices.Contains(got, name) {
				t.Fatalf("%v turn %v on", environ, got)
			}
			bound := boundTo(t, name)
			for _, c := range ListComponents(o) {
				if !c.Enabled || c.Name == ClaimsComponent {
					continue
				}
				for in, rules := range boundTo(t, c.Name) {
					if ok, missing := validation.Covers(bound[in], rules); !ok {
						t.Errorf("%s is on too, and lacks %v in namespace %q", c.Name, missing, in)
					}
				}
			}
		})
	}
	for _, c := range ListComponents(&options.Options{}) {
		if c.Name != ClaimsComponent && !slices.Contains(seen, c.Name) {
			t.Errorf("no folder for component %s", c.Name)
		}
	}
}

// serves reports whether everything that a component is for is on: node-cidrs is own-node-cidrs and fleet-node-cidrs.
func serves(o *options.Options, name string) bool {
	switch name {
	case "own-node-cidrs":
		return o.ServesOwnNodes()
	case "fleet-node-cidrs":
		return o.ServesFleetNodes()
	case "node-cidrs":
		return o.ServesOwnNodes() && o.ServesFleetNodes()
	}
	return slices.Contains(enabledNames(o), name)
}

// TestComponentsGoTogether checks that of two components both are on, whichever ConfigMap is read last: no component
// sets a flag that another one sets differently.
func TestComponentsGoTogether(t *testing.T) {
	folders, err := os.ReadDir(filepath.Join(root, "components"))
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range folders {
		for _, last := range folders {
			environ := map[string]string{}
			for _, name := range []string{first.Name(), last.Name()} {
				for _, variable := range flagsOf(t, name) {
					key, _, _ := strings.Cut(variable, "=")
					environ[key] = variable
				}
			}
			o := parsed(t, slices.Collect(maps.Values(environ))...)
			for _, name := range []string{first.Name(), last.Name()} {
				// node-cidrs turns on more than own-node-cidrs, and the Deployment reads it after that.
				if !serves(o, name) && (first.Name() != "node-cidrs" || last.Name() != "own-node-cidrs") {
					t.Errorf("%s before %s: %s is off", first.Name(), last.Name(), name)
				}
			}
		}
	}
}

// TestDeploymentReadsComponents checks that the Deployment reads the ConfigMap of each component, and that of the
// administrator last.
func TestDeploymentReadsComponents(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "manager", "manager.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(text, d); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, from := range d.Spec.Template.Spec.Containers[0].EnvFrom {
		if from.Prefix != options.EnvironmentPrefix || from.ConfigMapRef == nil || from.ConfigMapRef.Optional == nil || !*from.ConfigMapRef.Optional {
			t.Errorf("%+v", from)
			continue
		}
		got = append(got, from.ConfigMapRef.Name)
	}
	want := []string{}
	for _, c := range ListComponents(&options.Options{}) {
		if c.Name != ClaimsComponent {
			want = append(want, "butler-ipam-"+c.Name)
		}
	}
	slices.Sort(got[:len(got)-1])
	slices.Sort(want)
	if want = append(want, "butler-ipam-flags"); !slices.Equal(got, want) {
		t.Errorf("reads %v, want %v", got, want)
	}
}

// TestDefaultRoleIsLeast checks what the default role must not have: it is all that most installations need.
func TestDefaultRoleIsLeast(t *testing.T) {
	rules, err := readRoleRules("role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	reads := []string{"get", "list", "watch"}
	may := map[string][]string{ // resources that it may not write, or not even read
		"namespaces": reads, "clusters": reads, "clusters/status": nil, "providerconfigs": reads, "ipleases": reads, "ipleases/status": nil,
		"secrets": nil, "services": nil, "nodes": nil, "configmaps": nil, "clustercidrs": nil, "inclusterippools": nil, "ipaddresspools": nil,
	}
	for _, rule := range rules {
		if slices.Contains(rule.Resources, "*") || slices.Contains(rule.Verbs, "*") || slices.Contains(rule.APIGroups, "*") {
			t.Errorf("a rule for everything: %v", rule)
		}
		for _, one := range validation.BreakdownRule(rule) {
			if verbs, known := may[one.Resources[0]]; known && !slices.Contains(verbs, one.Verbs[0]) {
				t.Errorf("may %s %s", one.Verbs[0], one.Resources[0])
			}
		}
	}
}
