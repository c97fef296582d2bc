package controllers

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// namespaceOf reads what decides on access from the cache.
func namespaceOf(ctx context.Context, from client.Reader, name string) (tenancy.Namespace, error) {
	ns := namespaceMetadata()
	if err := from.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return tenancy.Namespace{}, fmt.Errorf("reading the labels of namespace %s: %w", name, err)
	}
	return tenancy.Namespace{Name: name, Labels: ns.Labels}, nil
}

// poolsOf reads the pools of a ProviderConfig, in the order in which they are asked.
func poolsOf(ctx context.Context, from client.Reader, config *v1alpha1.ProviderConfig) ([]tenancy.Pool, error) {
	ns, err := namespaceOf(ctx, from, config.Namespace)
	if err != nil {
		return nil, err
	}
	var out []tenancy.Pool
	for _, ref := range tenancy.Order(config.Network().PoolRefs) {
		pool, err := pools.KeyOfPool(config.Namespace, ref).Get(ctx, from)
		switch {
		case apierrors.IsNotFound(err):
			pool = nil
		case err != nil:
			return nil, fmt.Errorf("reading %s %s: %w", ref.Kind, ref.Name, err)
		}
		out = append(out, tenancy.PoolOf(ref, pool, ns))
	}
	return out, nil
}

// naming returns the ProviderConfigs in mode ipam that name a pool.
func naming(ctx context.Context, from client.Reader, pool v1alpha1.Pool) ([]v1alpha1.ProviderConfig, error) {
	configs := &v1alpha1.ProviderConfigList{}
	if err := from.List(ctx, configs, client.InNamespace(pool.GetNamespace())); err != nil {
		return nil, fmt.Errorf("listing the ProviderConfigs: %w", err)
	}
	key := pools.KeyOf(pool)
	return slices.DeleteFunc(configs.Items, func(c v1alpha1.ProviderConfig) bool {
		return c.Network().Mode != v1alpha1.IPAMMode || !slices.ContainsFunc(c.Network().PoolRefs, func(ref v1alpha1.ProviderPoolReference) bool {
			return pools.KeyOfPool(c.Namespace, ref.PoolReference) == key
		})
	}), nil
}
