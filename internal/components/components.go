// Package components lists what the manager can do beside fulfilling claims: each component is off until a flag turns
// it on, and needs roles that are not bound before (config/components). At its start the manager logs which components
// are on, and which rights they miss.
package components

import (
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/config"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/options"
)

// Component is a part of what the manager does, or may do.
type Component struct {
	// Name is the name of its folder in config/components.
	Name    string
	Enabled bool
}

// ClaimsComponent is part of every manager except one for Nodes alone. Its role is bound by default.
const ClaimsComponent = "claims"

// ListComponents returns the components of a manager with these flags, enabled or not.
func ListComponents(o *options.Options) []Component {
	return []Component{
		{ClaimsComponent, o.NodeCIDRs != options.NodeCIDRsOnly},
		{"load-balancers", o.LoadBalancers},
		{"leases", o.ServesLeases()},
		{"service-leases", o.ServiceLeases},
		{"host-load-balancers", o.HostLoadBalancers},
		{"in-cluster-pools", o.InClusterPools},
		{"failure-domains", o.FailureDomains},
		{"node-cidrs", o.NodeCIDRs == options.NodeCIDRsOn},
		{"own-node-cidrs", o.ServesOwnNodes() && o.NodeCIDRs != options.NodeCIDRsOn},
		{"control-plane-endpoints", o.ControlPlaneEndpoints},
		{"fleet-node-cidrs", o.ServesFleetNodes() && o.NodeCIDRs != options.NodeCIDRsOn},
	}
}

// requirement has the rules that a component needs in a namespace; empty means in all.
type requirement struct {
	namespace string
	rules     []rbacv1.PolicyRule
}

// requirements returns the rules that the manifest of a component binds.
func (c Component) requirements() ([]requirement, error) {
	if c.Name == ClaimsComponent {
		rules, err := readRoleRules("role.yaml")
		return []requirement{{"", rules}}, err
	}
	text, err := config.Files.ReadFile("components/" + c.Name + "/component.yaml")
	if err != nil {
		return nil, err
	}
	var out []requirement
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		binding := &rbacv1.RoleBinding{} // a ClusterRoleBinding has the same fields
		if err := yaml.Unmarshal([]byte(doc), binding); err != nil {
			return nil, fmt.Errorf("config/components/%s: %w", c.Name, err)
		}
		if binding.RoleRef.Name == "" {
			continue // the flags of the component, or an object of another kind
		}
		role := strings.TrimPrefix(binding.RoleRef.Name, "butler-ipam-system-")
		rules, err := readRoleRules(strings.ReplaceAll(role, "-", "_") + ".yaml")
		if err != nil {
			return nil, err
		}
		out = append(out, requirement{binding.Namespace, rules})
	}
	return out, nil
}

// readRoleRules returns the rules in the file of a role.
func readRoleRules(file string) ([]rbacv1.PolicyRule, error) {
	text, err := config.Files.ReadFile("rbac/" + file)
	if err != nil {
		return nil, err
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(text, role); err != nil {
		return nil, fmt.Errorf("config/rbac/%s: %w", file, err)
	}
	return role.Rules, nil
}
