package tenancy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Block is an allocation that is made for a Cluster.
type Block struct {
	// Cluster it is for.
	Cluster v1alpha1.ClusterReference
	// Pool it comes from.
	Pool v1alpha1.PoolReference
	// Type says what it is used for.
	Type v1alpha1.AllocationType
	// Role is InitialRole or GrowthRole.
	Role string
	// ProviderConfig is the name of the one that it is made for.
	ProviderConfig string
}

// Labels are those of a block: Butler's five, by which its users and tools find allocations, the
// ProviderConfig, and Cluster API's own for what is a Cluster's. Values beyond 63 characters are cut, and a hash of the
// whole takes the place of what is missing: whoever selects by a label takes the value from here.
func Labels(b Block) map[string]string {
	return map[string]string{
		clusterv1.ClusterNameLabel:   format.MustFormatValue(b.Cluster.Name),
		v1alpha1.TeamLabel:           text.Shorten(b.Cluster.Namespace, maxLabel),
		v1alpha1.TenantLabel:         text.Shorten(b.Cluster.Name, maxLabel),
		v1alpha1.NetworkPoolLabel:    text.Shorten(b.Pool.Name, maxLabel),
		v1alpha1.AllocationTypeLabel: string(b.Type),
		v1alpha1.AllocationRoleLabel: b.Role,
		v1alpha1.ProviderConfigLabel: text.Shorten(b.ProviderConfig, maxLabel),
	}
}

// Request is the IPAllocation that asks a pool of a ProviderConfig for load-balancer addresses of a Cluster.
func Request(cluster v1alpha1.ClusterReference, config *v1alpha1.ProviderConfig, name, role string, pool v1alpha1.PoolReference, count int32) *v1alpha1.IPAllocation {
	return &v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: config.Namespace, Name: name,
			Labels: Labels(Block{
				Cluster: cluster, Pool: pool, Type: v1alpha1.LoadBalancerAllocation, Role: role, ProviderConfig: config.Name,
			}),
		},
		Spec: v1alpha1.IPAllocationSpec{PoolRef: pool, TenantClusterRef: cluster, Type: v1alpha1.LoadBalancerAllocation, Count: &count},
	}
}

// ClusterLabels are the labels by which all blocks of a Cluster are found. They are necessary, not
// sufficient: what is found is the Cluster's only if Owns says so.
func ClusterLabels(cluster v1alpha1.ClusterReference) map[string]string {
	return map[string]string{
		v1alpha1.TeamLabel:   text.Shorten(cluster.Namespace, maxLabel),
		v1alpha1.TenantLabel: text.Shorten(cluster.Name, maxLabel),
	}
}
