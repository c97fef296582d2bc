// Package pools handles the pools of both kinds in one way.
package pools

import (
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// List lists the NetworkPools of a namespace, of all namespaces if it is empty, and the GlobalNetworkPools.
func List(ctx context.Context, from client.Reader, namespace string, opts ...client.ListOption) ([]v1alpha1.Pool, error) {
	local, global := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	if err := from.List(ctx, local, append(slices.Clone(opts), client.InNamespace(namespace))...); err != nil {
		return nil, err
	}
	if err := from.List(ctx, global, opts...); err != nil {
		return nil, err
	}
	return FromLists(local, global), nil
}

// FromLists returns the pools of two lists, the global ones last. They point into the lists.
func FromLists(local *v1alpha1.NetworkPoolList, global *v1alpha1.GlobalNetworkPoolList) []v1alpha1.Pool {
	out := make([]v1alpha1.Pool, 0, len(local.Items)+len(global.Items))
	for i := range local.Items {
		out = append(out, &local.Items[i])
	}
	for i := range global.Items {
		out = append(out, &global.Items[i])
	}
	return out
}
