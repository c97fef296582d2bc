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

// InstallInClusterPools has the API server serve the pools of the in-cluster provider: kinds of their names, scope
// and status. Of the spec it knows the fields and which must be there, and little of what is valid in them.
func (c *ControlPlane) InstallInClusterPools() error {
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, k := range incluster.Kinds {
		crds = append(crds, inClusterCRD(k))
	}
	if _, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: crds, MaxTime: startTimeout}); err != nil {
		return fmt.Errorf("installing the CRDs of the in-cluster provider: %w", err)
	}
	return nil
}

func inClusterCRD(k incluster.Kind) *apiextensionsv1.CustomResourceDefinition {
	type schema = apiextensionsv1.JSONSchemaProps
	of := func(kind string) schema { return schema{Type: kind} }
	list := schema{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: ptr.To(of("string"))}}
	required := []string{"addresses", "prefix"}
	spec := map[string]schema{
		"addresses": list, "prefix": {Type: "integer", Minimum: ptr.To(0.0), Maximum: ptr.To(128.0)}, "gateway": of("string"), "allocateReservedIPAddresses": of("boolean"),
		"excludedAddresses": list, "addressReuseGracePeriodSeconds": of("integer"),
	}
	if k.Prefixes {
		required = []string{"prefixes"}
		spec = map[string]schema{
			"prefixes": list, "allocationPrefixLength": of("integer"), "gateway": of("string"), "excludedPrefixes": list,
		}
	}
	counts := schema{Type: "object", Required: []string{"total", "free", "used", "outOfRange"}, Properties: map[string]schema{
		"total": of("integer"), "free": of("integer"), "used": of("integer"), "outOfRange": of("integer"),
	}}
	scope, singular := apiextensionsv1.NamespaceScoped, strings.ToLower(k.Name)
	if k.Global {
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
