package tenant

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// TestEachLoadBalancerTypeIsRegistered checks that each type that a ProviderConfig may name has all that a manager needs:
// an implementation, a role, and a finalizer that the policy for records names.
func TestEachLoadBalancerTypeIsRegistered(t *testing.T) {
	root := filepath.Join("..", "..")
	policy, err := os.ReadFile(filepath.Join(root, "config", "policy", "records.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	types := loadBalancerTypes(t, root)
	for _, lb := range types {
		b := balancers[lb]
		if b == nil {
			t.Errorf("%s has no entry in balancers", lb)
			continue
		}
		if _, err := os.Stat(filepath.Join(root, b.RoleFile())); err != nil || b.RoleFile() == "" {
			t.Errorf("%s has the role file %q: %v", lb, b.RoleFile(), err)
		}
		finalizer := tenancy.ProjectionFinalizer(lb)
		if !strings.Contains(string(policy), `"`+strings.TrimPrefix(finalizer, v1alpha1.GroupVersion.Group+"/")+`"`) {
			t.Errorf("%s has the finalizer %q, which config/policy/records.yaml does not name", lb, finalizer)
		}
		a := &v1alpha1.IPAllocation{}
		if a.Finalizers = []string{finalizer}; tenancy.ProjectedTo(a) != lb {
			t.Errorf("a block with finalizer %s is projected to %q, want %s", finalizer, tenancy.ProjectedTo(a), lb)
		}
	}
	if len(balancers) != len(types) {
		t.Errorf("there are %d load balancers and %d types: %v", len(balancers), len(types), types)
	}
}

// loadBalancerTypes returns the types of load balancers that the schema of ProviderConfig allows.
func loadBalancerTypes(t *testing.T, root string) (out []v1alpha1.LoadBalancerType) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "config", "crd", "bases", "butler.butlerlabs.dev_providerconfigs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		t.Fatal(err)
	}
	at := *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	for _, field := range []string{"spec", "network", "loadBalancer", "type"} {
		at = at.Properties[field]
	}
	for _, value := range at.Enum {
		var lb v1alpha1.LoadBalancerType
		if err := yaml.Unmarshal(value.Raw, &lb); err != nil {
			t.Fatal(err)
		}
		out = append(out, lb)
	}
	if len(out) == 0 {
		t.Fatal("the schema of ProviderConfig has no spec.network.loadBalancer.type with an enum")
	}
	return out
}
