package framework

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// InstallInClusterPools installs CRDs for the pools of the in-cluster provider, with their names, scopes and status.
// The schemas have the fields of the spec, list the required ones, and validate little of their values.
func (c *ControlPlane) InstallInClusterPools() error {
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, k := range incluster.PoolKinds {
		crds = append(crds, newInClusterCRD(k))
	}
	if _, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: crds, MaxTime: startTimeout}); err != nil {
		return fmt.Errorf("installing the CRDs of the in-cluster provider: %w", err)
	}
	return nil
}

func newInClusterCRD(k incluster.PoolKind) *apiextensionsv1.CustomResourceDefinition {
	type schema = apiextensionsv1.JSONSchemaProps
	of := func(kind string) schema { return schema{Type: kind} }
	list := schema{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: ptr.To(of("string"))}}
	required := []string{"addresses", "prefix"}
	spec := map[string]schema{
		"addresses": list, "prefix": {Type: "integer", Minimum: ptr.To(0.0), Maximum: ptr.To(128.0)}, "gateway": of("string"), "allocateReservedIPAddresses": of("boolean"),
		"excludedAddresses": list, "addressReuseGracePeriodSeconds": of("integer"),
	}
	if k.IsPrefixPool {
		required = []string{"prefixes"}
		spec = map[string]schema{
			"prefixes": list, "allocationPrefixLength": of("integer"), "gateway": of("string"), "excludedPrefixes": list,
		}
	}
	counts := schema{Type: "object", Required: []string{"total", "free", "used", "outOfRange"}, Properties: map[string]schema{
		"total": of("integer"), "free": of("integer"), "used": of("integer"), "outOfRange": of("integer"),
	}}
	scope, singular := apiextensionsv1.NamespaceScoped, strings.ToLower(k.Name)
	if k.IsGlobal {
		scope = apiextensionsv1.ClusterScoped
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: singular + "s." + incluster.GroupVersion.Group, Annotations: map[string]string{
			apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, for tests",
		}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: incluster.GroupVersion.Group, Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: k.Name, ListKind: k.Name + "List", Singular: singular, Plural: singular + "s"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: incluster.GroupVersion.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema{Type: "object", Properties: map[string]schema{
					"spec":   {Type: "object", Required: required, Properties: spec},
					"status": {Type: "object", Properties: map[string]schema{"ipAddresses": counts}},
				}}},
			}},
		},
	}
}
