// Package components has what the manager can do beside fulfilling claims: each is off until a flag turns it on, and needs
// roles that nobody binds before (config/components). The manager says at its start which are on, and what they lack.
package components

import (
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/config"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/options"
)

// Component is something that the manager does, or may do.
type Component struct {
	// Name is that of its folder in config/components.
	Name string
	On   bool
}

// Claims is what every manager does but one of Nodes alone. Its role is bound by default.
const Claims = "claims"

// Of are the components of a manager with these flags, on or off.
func Of(o *options.Options) []Component {
	return []Component{
		{Claims, o.NodeCIDRs != options.NodeCIDRsOnly},
		{"load-balancers", o.LoadBalancers},
		{"leases", o.ServesLeases()},
		{"service-leases", o.ServiceLeases},
		{"host-load-balancers", o.HostLBs},
		{"in-cluster-pools", o.InClusterPools},
		{"failure-domains", o.FailureDomains},
		{"node-cidrs", o.NodeCIDRs == options.NodeCIDRsOn},
		{"own-node-cidrs", o.OwnNodes() && o.NodeCIDRs != options.NodeCIDRsOn},
		{"control-plane-endpoints", o.ControlPlaneEndpoints},
		{"fleet-node-cidrs", o.FleetNodes() && o.NodeCIDRs != options.NodeCIDRsOn},
	}
}

// need is rules that a component needs in a namespace; empty: in all.
type need struct {
	namespace string
	rules     []rbacv1.PolicyRule
}

// needs are what the manifest of a component binds.
func (c Component) needs() ([]need, error) {
	if c.Name == Claims {
		rules, err := rulesOf("role.yaml")
		return []need{{"", rules}}, err
	}
	text, err := config.Files.ReadFile("components/" + c.Name + "/component.yaml")
	if err != nil {
		return nil, err
	}
	var out []need
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		binding := &rbacv1.RoleBinding{} // a ClusterRoleBinding has the same fields
		if err := yaml.Unmarshal([]byte(doc), binding); err != nil {
			return nil, fmt.Errorf("config/components/%s: %w", c.Name, err)
		}
		if binding.RoleRef.Name == "" {
			continue // its flags, or an object of another kind
		}
		role := strings.TrimPrefix(binding.RoleRef.Name, "butler-ipam-system-")
		rules, err := rulesOf(strings.ReplaceAll(role, "-", "_") + ".yaml")
		if err != nil {
			return nil, err
		}
		out = append(out, need{binding.Namespace, rules})
	}
	return out, nil
}

// rulesOf are those of a role's file.
func rulesOf(file string) ([]rbacv1.PolicyRule, error) {
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
