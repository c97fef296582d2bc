package endpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// The names of the handlers. A ClusterClass writes them as "handler.ExtensionConfig".
const (
	PatchesHandler   = "control-plane-endpoint"
	VariablesHandler = "control-plane-pool"
)

// The settings of the patch, and the variable by which a Cluster names another pool.
const (
	PoolNameSetting = "poolName"
	PoolKindSetting = "poolKind"
	PoolVariable    = "controlPlanePool"
)

// groupByPoolKind maps the kinds of pools that have addresses for control planes to their API groups.
var groupByPoolKind = map[string]string{
	v1alpha1.NetworkPoolKind:       v1alpha1.GroupVersion.Group,
	v1alpha1.GlobalNetworkPoolKind: v1alpha1.GroupVersion.Group,
	incluster.IPPoolKind:           incluster.GroupVersion.Group,
	incluster.GlobalIPPoolKind:     incluster.GroupVersion.Group,
}

func poolKinds() []string { return slices.Sorted(maps.Keys(groupByPoolKind)) }

// poolVariable is the value of the variable PoolVariable.
type poolVariable struct{ Kind, Name string }

// ClusterVariables returns the definitions of the variables that a Cluster may set.
func ClusterVariables() []clusterv1.ClusterClassVariable {
	enum := make([]apiextensionsv1.JSON, 0, len(groupByPoolKind))
	for _, kind := range poolKinds() {
		enum = append(enum, apiextensionsv1.JSON{Raw: fmt.Appendf(nil, "%q", kind)})
	}
	return []clusterv1.ClusterClassVariable{{
		Name: PoolVariable, Required: ptr.To(false),
		Schema: clusterv1.VariableSchema{OpenAPIV3Schema: clusterv1.JSONSchemaProps{
			Type:        "object",
			Description: "The pool that the address of the control plane comes from, where it is another than that of the ClusterClass. It counts until there is an address.",
			Required:    []string{"name"},
			Properties: map[string]clusterv1.JSONSchemaProps{
				"kind": {Type: "string", Enum: enum, Description: "Kind of the pool: NetworkPool, if it is left out."},
				"name": {Type: "string", Description: "Name of the pool, in the namespace of the Cluster where its kind has one. Empty: the address comes from no pool."},
			},
		}},
	}}
}

// PoolForCluster returns the pool from which a Cluster's control plane gets its address: the one that its variable
// names, else the one of the settings, or noPool where its variable has an empty name.
func PoolForCluster(cluster *clusterv1.Cluster, settings map[string]string) (ipamv1.IPPoolReference, error) {
	pool, from := poolVariable{settings[PoolKindSetting], settings[PoolNameSetting]}, "the settings of the patch"
	for _, v := range cluster.Spec.Topology.Variables {
		if v.Name != PoolVariable {
			continue
		}
		pool, from = poolVariable{}, "variable "+PoolVariable
		if err := json.Unmarshal(v.Value.Raw, &pool); err != nil {
			return ipamv1.IPPoolReference{}, fmt.Errorf("variable %s cannot be read: %w; it has a kind and a name", PoolVariable, err)
		}
		if pool.Name == "" {
			return noPool, nil
		}
	}
	if pool.Name == "" {
		return ipamv1.IPPoolReference{}, fmt.Errorf("no pool is named; set %s in the settings of the patch, or variable %s of the Cluster", PoolNameSetting, PoolVariable)
	}
	kind := cmp.Or(pool.Kind, v1alpha1.NetworkPoolKind)
	group, known := groupByPoolKind[kind]
	if !known {
		return ipamv1.IPPoolReference{}, fmt.Errorf("%s has kind %q, which is none of %s", from, kind, strings.Join(poolKinds(), ", "))
	}
	return ipamv1.IPPoolReference{APIGroup: group, Kind: kind, Name: pool.Name}, nil
}

// noPool means that the Cluster gets its address from no pool.
var noPool ipamv1.IPPoolReference

// CheckClassSettings returns an error unless a patch of the class names our extension with these settings. Any client
// can send a request with settings of its own, so nothing is written that the class itself does not ask for.
func CheckClassSettings(class *clusterv1.ClusterClass, settings map[string]string) error {
	if slices.ContainsFunc(class.Spec.Patches, func(p clusterv1.ClusterClassPatch) bool {
		if p.External == nil {
			return false
		}
		handler, _, _ := strings.Cut(p.External.GeneratePatchesExtension, ".")
		return handler == PatchesHandler &&
			p.External.Settings[PoolNameSetting] == settings[PoolNameSetting] && p.External.Settings[PoolKindSetting] == settings[PoolKindSetting]
	}) {
		return nil
	}
	return fmt.Errorf("no patch of ClusterClass %s/%s names the extension %s with %s %q in its settings; write the pool there, not into the ExtensionConfig",
		class.Namespace, class.Name, PatchesHandler, PoolNameSetting, settings[PoolNameSetting])
}
