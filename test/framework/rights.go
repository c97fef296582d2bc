package framework

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// ManagerKubeconfig writes a kubeconfig of a user who has the manager's default role of config/rbac and
// nothing else, and returns its path: a manager that runs with it shows whether the role is enough.
// It lasts until the next call.
func (c *ControlPlane) ManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-manager", "rbac/role.yaml")
}

// ComponentsManagerKubeconfig is ManagerKubeconfig with the roles that [Components] need besides.
func (c *ControlPlane) ComponentsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-components-manager", "rbac/role.yaml", "rbac/load_balancers_role.yaml", "rbac/leases_role.yaml")
}

// FleetManagerKubeconfig is ManagerKubeconfig with the role that --node-cidrs=fleet needs besides.
func (c *ControlPlane) FleetManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-fleet-manager", "rbac/role.yaml", "rbac/fleet_node_cidrs_role.yaml")
}

// EndpointsManagerKubeconfig is ManagerKubeconfig with the role that --control-plane-endpoints needs besides.
func (c *ControlPlane) EndpointsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-endpoints-manager", "rbac/role.yaml", "rbac/control_plane_endpoints_role.yaml")
}

// InClusterManagerKubeconfig is ManagerKubeconfig with the role that --serve-in-cluster-pools needs besides.
func (c *ControlPlane) InClusterManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-in-cluster-manager", "rbac/role.yaml", "rbac/in_cluster_role.yaml")
}

// FailureDomainsManagerKubeconfig is ManagerKubeconfig with the role that --failure-domains needs besides.
func (c *ControlPlane) FailureDomainsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-failure-domains-manager", "rbac/role.yaml", "rbac/failure_domains_role.yaml")
}

// LeasesManagerKubeconfig is ManagerKubeconfig with the roles that --service-leases needs besides.
func (c *ControlPlane) LeasesManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-leases-manager", ofLeases...)
}

// LeasesAndLoadBalancersManagerKubeconfig is LeasesManagerKubeconfig with the role that --load-balancers needs besides.
func (c *ControlPlane) LeasesAndLoadBalancersManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-both-manager", append(slices.Clone(ofLeases), "rbac/load_balancers_role.yaml")...)
}

var ofLeases = []string{"rbac/role.yaml", "rbac/leases_role.yaml", "rbac/service_leases_role.yaml", "rbac/service_leases_metallb_role.yaml"}

// HostKubeconfig returns a kubeconfig of a user who has the rights of config/host-lb and nothing else, and makes the namespace
// that hosts write into.
func (c *ControlPlane) HostKubeconfig(ctx context.Context) ([]byte, error) {
	admin, err := c.Client()
	if err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: record.Namespace}}
	if err := client.IgnoreAlreadyExists(admin.Create(ctx, ns)); err != nil {
		return nil, err
	}
	return c.kubeconfigOf(ctx, "butler-host-lb", "host-lb/role.yaml")
}

// HostLBsManagerKubeconfig is ManagerKubeconfig with the roles that --host-load-balancers needs besides.
func (c *ControlPlane) HostLBsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, "butler-ipam-host-lbs-manager", "rbac/role.yaml", "rbac/leases_role.yaml", "rbac/service_leases_role.yaml", "rbac/host_load_balancers_role.yaml")
}

// NodesManager is the user that a manager is in its own cluster, which config/policy knows it by.
const NodesManager = "system:serviceaccount:butler-ipam-system:butler-ipam-system-manager"

// NodesManagerKubeconfig is the kubeconfig of NodesManager with the roles that --node-cidrs needs and nothing else.
func (c *ControlPlane) NodesManagerKubeconfig(ctx context.Context) (string, error) {
	return c.managerKubeconfig(ctx, NodesManager, "rbac/node_cidrs_role.yaml", "rbac/node_cidrs_fence_role.yaml")
}

func (c *ControlPlane) managerKubeconfig(ctx context.Context, name string, roles ...string) (string, error) {
	kubeconfig, err := c.kubeconfigOf(ctx, name, roles...)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir, name+".kubeconfig")
	return path, os.WriteFile(path, kubeconfig, 0o600)
}

// TenantKubeconfig returns a kubeconfig of a user who has the rights of config/tenant and nothing else, for
// a workload cluster that has the namespace of MetalLB.
func (c *ControlPlane) TenantKubeconfig(ctx context.Context) ([]byte, error) {
	return c.kubeconfigOf(ctx, "butler-ipam-tenant", "tenant/role.yaml")
}

// CiliumTenantKubeconfig is the same for a workload cluster whose Cilium is shown blocks.
func (c *ControlPlane) CiliumTenantKubeconfig(ctx context.Context) ([]byte, error) {
	return c.kubeconfigOf(ctx, "butler-ipam-tenant-cilium", "tenant/cilium_role.yaml")
}

// NodesTenantKubeconfig returns a kubeconfig of NodesManager with the rights that a manager needs to give the Nodes of a
// workload cluster their pod CIDRs, and nothing else.
func (c *ControlPlane) NodesTenantKubeconfig(ctx context.Context) ([]byte, error) {
	return c.kubeconfigOf(ctx, NodesManager, "tenant/node_cidrs_role.yaml")
}

// kubeconfigOf returns a kubeconfig of a user who has what files of config give.
func (c *ControlPlane) kubeconfigOf(ctx context.Context, name string, files ...string) ([]byte, error) {
	for i, file := range files {
		role := name // the first has the name of the user
		if i > 0 {
			role = fmt.Sprintf("%s-%d", name, i)
		}
		if err := c.give(ctx, name, role, file); err != nil {
			return nil, fmt.Errorf("giving %s the rights of %s: %w", name, file, err)
		}
	}
	return c.User(name)
}

// give gives a user what a file of config gives, as roles of a name.
func (c *ControlPlane) give(ctx context.Context, user, name, file string) error {
	root, err := RepoRoot()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, "config", file))
	if err != nil {
		return err
	}
	admin, err := c.Client()
	if err != nil {
		return err
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		objs, err := bound(doc, name, user)
		if err != nil {
			return err
		}
		for _, obj := range objs {
			if err := client.IgnoreAlreadyExists(admin.Create(ctx, obj)); err != nil {
				return err
			}
		}
	}
	return nil
}

// User returns a kubeconfig of a user of this name, who has the rights that somebody gives the name.
func (c *ControlPlane) User(name string) ([]byte, error) {
	user, err := c.env.AddUser(envtest.User{Name: name}, &rest.Config{})
	if err != nil {
		return nil, err
	}
	return user.KubeConfig()
}

// bound returns a Role or a ClusterRole, under a name, and what binds it to a user.
func bound(text, name, user string) ([]client.Object, error) {
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	var about metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(text), &about); err != nil {
		return nil, err
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: about.Kind, Name: name}
	meta := metav1.ObjectMeta{Namespace: about.Namespace, Name: name}
	if about.Kind == "Role" {
		role := &rbacv1.Role{}
		err := yaml.UnmarshalStrict([]byte(text), role)
		role.Name = name
		return []client.Object{role, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}}, err
	}
	role := &rbacv1.ClusterRole{}
	err := yaml.UnmarshalStrict([]byte(text), role)
	role.Name = name
	return []client.Object{role, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}}, err
}
