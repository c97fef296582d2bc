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

// ManagerKubeconfig writes a kubeconfig of a user with the manager's default role of config/rbac and nothing else,
// and returns its path: a manager that runs with it shows whether the role is sufficient. The file is valid until the
// next call.
func (c *ControlPlane) ManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-manager", "rbac/role.yaml")
}

// ComponentsManagerKubeconfig is ManagerKubeconfig with the additional roles for [ComponentFlags].
func (c *ControlPlane) ComponentsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-components-manager", "rbac/role.yaml", "rbac/load_balancers_role.yaml", "rbac/leases_role.yaml")
}

// FleetManagerKubeconfig is ManagerKubeconfig with the additional role for --node-cidrs=fleet.
func (c *ControlPlane) FleetManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-fleet-manager", "rbac/role.yaml", "rbac/fleet_node_cidrs_role.yaml")
}

// EndpointsManagerKubeconfig is ManagerKubeconfig with the additional role for --control-plane-endpoints.
func (c *ControlPlane) EndpointsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-endpoints-manager", "rbac/role.yaml", "rbac/control_plane_endpoints_role.yaml")
}

// InClusterManagerKubeconfig is ManagerKubeconfig with the additional role for --serve-in-cluster-pools.
func (c *ControlPlane) InClusterManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-in-cluster-manager", "rbac/role.yaml", "rbac/in_cluster_role.yaml")
}

// FailureDomainsManagerKubeconfig is ManagerKubeconfig with the additional role for --failure-domains.
func (c *ControlPlane) FailureDomainsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-failure-domains-manager", "rbac/role.yaml", "rbac/failure_domains_role.yaml")
}

// LeasesManagerKubeconfig is ManagerKubeconfig with the additional roles for --service-leases.
func (c *ControlPlane) LeasesManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-leases-manager", leaseRoleFiles...)
}

// LeasesAndLoadBalancersManagerKubeconfig is LeasesManagerKubeconfig with the additional role for --load-balancers.
func (c *ControlPlane) LeasesAndLoadBalancersManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-both-manager", append(slices.Clone(leaseRoleFiles), "rbac/load_balancers_role.yaml")...)
}

var leaseRoleFiles = []string{"rbac/role.yaml", "rbac/leases_role.yaml", "rbac/service_leases_role.yaml", "rbac/service_leases_metallb_role.yaml"}

// HostKubeconfig returns a kubeconfig of a user with the rights of config/host-lb and nothing else, and creates the
// namespace that hosts write into.
func (c *ControlPlane) HostKubeconfig(ctx context.Context) ([]byte, error) {
	admin, err := c.NewClient()
	if err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: record.Namespace}}
	if err := client.IgnoreAlreadyExists(admin.Create(ctx, ns)); err != nil {
		return nil, err
	}
	return c.newKubeconfigForRoles(ctx, "butler-host-lb", "host-lb/role.yaml")
}

// HostLBsManagerKubeconfig is ManagerKubeconfig with the additional roles for --host-load-balancers.
func (c *ControlPlane) HostLBsManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, "butler-ipam-host-lbs-manager", "rbac/role.yaml", "rbac/leases_role.yaml", "rbac/service_leases_role.yaml", "rbac/host_load_balancers_role.yaml")
}

// NodesManagerUser is the user name of a manager in its own cluster, by which config/policy recognises it.
const NodesManagerUser = "system:serviceaccount:butler-ipam-system:butler-ipam-system-manager"

// NodesManagerKubeconfig writes a kubeconfig of NodesManagerUser with the roles for --node-cidrs and nothing else,
// and returns its path.
func (c *ControlPlane) NodesManagerKubeconfig(ctx context.Context) (string, error) {
	return c.writeManagerKubeconfig(ctx, NodesManagerUser, "rbac/node_cidrs_role.yaml", "rbac/node_cidrs_fence_role.yaml")
}

func (c *ControlPlane) writeManagerKubeconfig(ctx context.Context, name string, roles ...string) (string, error) {
	kubeconfig, err := c.newKubeconfigForRoles(ctx, name, roles...)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir, name+".kubeconfig")
	return path, os.WriteFile(path, kubeconfig, 0o600)
}

// TenantKubeconfig returns a kubeconfig of a user with the rights of config/tenant and nothing else, for a workload
// cluster that has the namespace of MetalLB.
func (c *ControlPlane) TenantKubeconfig(ctx context.Context) ([]byte, error) {
	return c.newKubeconfigForRoles(ctx, "butler-ipam-tenant", "tenant/role.yaml")
}

// CiliumTenantKubeconfig does the same for a workload cluster in which blocks are shown to Cilium.
func (c *ControlPlane) CiliumTenantKubeconfig(ctx context.Context) ([]byte, error) {
	return c.newKubeconfigForRoles(ctx, "butler-ipam-tenant-cilium", "tenant/cilium_role.yaml")
}

// NodesTenantKubeconfig returns a kubeconfig of NodesManagerUser with the rights that a manager needs to set the pod
// CIDRs of the Nodes of a workload cluster, and nothing else.
func (c *ControlPlane) NodesTenantKubeconfig(ctx context.Context) ([]byte, error) {
	return c.newKubeconfigForRoles(ctx, NodesManagerUser, "tenant/node_cidrs_role.yaml")
}

// newKubeconfigForRoles returns a kubeconfig of a user with the roles in files of config.
func (c *ControlPlane) newKubeconfigForRoles(ctx context.Context, name string, files ...string) ([]byte, error) {
	for i, file := range files {
		role := name // the first role has the name of the user
		if i > 0 {
			role = fmt.Sprintf("%s-%d", name, i)
		}
		if err := c.bindRoles(ctx, name, role, file); err != nil {
			return nil, fmt.Errorf("giving %s the rights of %s: %w", name, file, err)
		}
	}
	return c.NewUserKubeconfig(name)
}

// bindRoles creates the roles in a file of config under the given name, and binds them to a user.
func (c *ControlPlane) bindRoles(ctx context.Context, user, name, file string) error {
	root, err := FindRepoRoot()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, "config", file))
	if err != nil {
		return err
	}
	admin, err := c.NewClient()
	if err != nil {
		return err
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		objs, err := newRoleAndBinding(doc, name, user)
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

// NewUserKubeconfig returns a kubeconfig of a user of this name, without any rights of its own; the caller binds them
// to the name.
func (c *ControlPlane) NewUserKubeconfig(name string) ([]byte, error) {
	user, err := c.testEnv.AddUser(envtest.User{Name: name}, &rest.Config{})
	if err != nil {
		return nil, err
	}
	return user.KubeConfig()
}

// newRoleAndBinding returns a Role or a ClusterRole of the given name, and the binding of it to a user.
func newRoleAndBinding(text, name, user string) ([]client.Object, error) {
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
