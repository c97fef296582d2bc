package tenancy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// BlockIdentity identifies an allocation that is created for a Cluster.
type BlockIdentity struct {
	// Cluster is the Cluster that it is for.
	Cluster v1alpha1.ClusterReference
	// Pool is the pool that it comes from.
	Pool v1alpha1.PoolReference
	// Type is what its addresses are used for.
	Type v1alpha1.AllocationType
	// Role is InitialRole or GrowthRole.
	Role string
	// ProviderConfig is the name of the ProviderConfig that it is created for.
	ProviderConfig string
}

// LabelsForBlock returns the labels of a block: Butler's five, by which its users and tools find allocations, the
// ProviderConfig, and Cluster API's label for objects of a Cluster. A value of more than 63 characters is cut, and a
// hash of the whole value replaces the part that is cut off. Code that selects by one of these labels must take the
// value from this function.
func LabelsForBlock(b BlockIdentity) map[string]string {
	return map[string]string{
		clusterv1.ClusterNameLabel:   format.MustFormatValue(b.Cluster.Name),
		v1alpha1.TeamLabel:           text.ShortenText(b.Cluster.Namespace, maxLabelLength),
		v1alpha1.TenantLabel:         text.ShortenText(b.Cluster.Name, maxLabelLength),
		v1alpha1.NetworkPoolLabel:    text.ShortenText(b.Pool.Name, maxLabelLength),
		v1alpha1.AllocationTypeLabel: string(b.Type),
		v1alpha1.AllocationRoleLabel: b.Role,
		v1alpha1.ProviderConfigLabel: text.ShortenText(b.ProviderConfig, maxLabelLength),
	}
}

// NewAllocation returns an IPAllocation that requests load-balancer addresses for a Cluster from a pool of a
// ProviderConfig.
func NewAllocation(cluster v1alpha1.ClusterReference, config *v1alpha1.ProviderConfig, name, role string, pool v1alpha1.PoolReference, count int32) *v1alpha1.IPAllocation {
	return &v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: config.Namespace, Name: name,
			Labels: LabelsForBlock(BlockIdentity{
				Cluster: cluster, Pool: pool, Type: v1alpha1.LoadBalancerAllocation, Role: role, ProviderConfig: config.Name,
			}),
		},
		Spec: v1alpha1.IPAllocationSpec{PoolRef: pool, TenantClusterRef: cluster, Type: v1alpha1.LoadBalancerAllocation, Count: &count},
	}
}

// ClusterLabels returns the labels that select all blocks of a Cluster. They are necessary but not sufficient: check
// each result with OwnsAllocation.
func ClusterLabels(cluster v1alpha1.ClusterReference) map[string]string {
	return map[string]string{
		v1alpha1.TeamLabel:   text.ShortenText(cluster.Namespace, maxLabelLength),
		v1alpha1.TenantLabel: text.ShortenText(cluster.Name, maxLabelLength),
	}
}
