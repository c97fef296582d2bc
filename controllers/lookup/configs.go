package lookup

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// FindProviderConfig returns the ProviderConfig that a Cluster names, which has these blocks. If there is none, it
// returns the decision to report on the Cluster.
func FindProviderConfig(ctx context.Context, from client.Reader, cluster *clusterv1.Cluster, blocks []*v1alpha1.IPAllocation) (*v1alpha1.ProviderConfig, *tenancy.Decision, error) {
	all := &v1alpha1.ProviderConfigList{}
	if err := from.List(ctx, all); err != nil {
		return nil, nil, fmt.Errorf("listing the ProviderConfigs: %w", err)
	}
	ns, err := getNamespace(ctx, from, cluster.Namespace)
	if err != nil {
		return nil, nil, err
	}
	config, refusal := tenancy.ChooseProviderConfig(all.Items, cluster.Labels[v1alpha1.ProviderConfigLabel], ns, blocks)
	return config, refusal, nil
}

// NewNodeQuotaLookup returns a function that returns how many addresses for machines a Cluster may have; limited is
// false if it may have any number. blocks returns the blocks of a Cluster.
func NewNodeQuotaLookup(from client.Reader, blocks func(types.NamespacedName) []*v1alpha1.IPAllocation) func(context.Context, types.NamespacedName) (limit int64, limited bool) {
	return func(ctx context.Context, key types.NamespacedName) (int64, bool) {
		cluster := &clusterv1.Cluster{}
		if err := from.Get(ctx, key, cluster); err != nil || cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
			return 0, false
		}
		config, _, err := FindProviderConfig(ctx, from, cluster, blocks(key))
		if err != nil || config == nil {
			return 0, false
		}
		return tenancy.NodeQuota(config.Network())
	}
}

// listConfigsNaming returns the ProviderConfigs in mode ipam that name a pool.
func listConfigsNaming(ctx context.Context, from client.Reader, pool v1alpha1.Pool) ([]v1alpha1.ProviderConfig, error) {
	configs := &v1alpha1.ProviderConfigList{}
	if err := from.List(ctx, configs, client.InNamespace(pool.GetNamespace())); err != nil {
		return nil, fmt.Errorf("listing the ProviderConfigs: %w", err)
	}
	key := pools.KeyForPool(pool)
	return slices.DeleteFunc(configs.Items, func(c v1alpha1.ProviderConfig) bool {
		return c.Network().Mode != v1alpha1.IPAMMode || !slices.ContainsFunc(c.Network().PoolRefs, func(ref v1alpha1.ProviderPoolReference) bool {
			return pools.KeyFromPoolReference(c.Namespace, ref.PoolReference) == key
		})
	}), nil
}

// getNamespace reads the labels of a namespace, which decide on access, from the cache.
func getNamespace(ctx context.Context, from client.Reader, name string) (tenancy.Namespace, error) {
	ns := NamespaceMetadata()
	if err := from.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return tenancy.Namespace{}, fmt.Errorf("reading the labels of namespace %s: %w", name, err)
	}
	return tenancy.Namespace{Name: name, Labels: ns.Labels}, nil
}

// NamespaceMetadata returns an empty Namespace for reads and watches of the metadata alone: only labels are used.
func NamespaceMetadata() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}
