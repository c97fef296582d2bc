package migrate

import (
	"context"
	"fmt"
	"slices"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// found is what a plan is made from.
type found struct {
	pool *oldPool
	users
	// clusters are those that the claims name; nil: it does not exist.
	clusters map[client.ObjectKey]*clusterv1.Cluster
	// running are the pods and Deployments of the provider that can serve the pool; asked are the configurations of
	// webhooks that keep its objects from being written while none of these runs.
	running, asked []string
	// target is the pool of ours of that name, nil if there is none; others are the rest.
	target v1alpha1.Pool
	others []v1alpha1.Pool
	// namesake: Metal3 has a pool of the name of the target, and it is not the one that is imported.
	namesake bool
}

// usersOf reads the claims and IPAddresses that name a pool, as they are.
func usersOf(ctx context.Context, from client.Reader, namespace string, ref ipamv1.IPPoolReference) (users, error) {
	claims, addresses, err := list(ctx, from, namespace)
	return naming(ref, claims, addresses), err
}

// list reads the claims and IPAddresses of Cluster API: addresses first, as a claim goes after its address.
func list(ctx context.Context, from client.Reader, namespace string) ([]ipamv1.IPAddressClaim, []ipamv1.IPAddress, error) {
	addresses, claims := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}
	if err := from.List(ctx, addresses, client.InNamespace(namespace)); err != nil {
		return nil, nil, fmt.Errorf("listing the IPAddresses: %w", err)
	}
	if err := from.List(ctx, claims, client.InNamespace(namespace)); err != nil {
		return nil, nil, fmt.Errorf("listing the claims: %w", err)
	}
	return claims.Items, addresses.Items, nil
}

// naming are those of claims and IPAddresses that name a pool.
func naming(ref ipamv1.IPPoolReference, claims []ipamv1.IPAddressClaim, addresses []ipamv1.IPAddress) users {
	out := users{named: map[client.ObjectKey]*ipamv1.IPAddress{}}
	for i := range addresses {
		a := &addresses[i]
		out.named[client.ObjectKeyFromObject(a)] = a
		if a.Spec.PoolRef == ref {
			out.addresses = append(out.addresses, *a)
		}
	}
	for i := range claims {
		if claims[i].Spec.PoolRef == ref {
			out.claims = append(out.claims, claims[i])
		}
	}
	return out
}

// gather reads the pool, who has something of it, and what is around it.
func gather(ctx context.Context, from client.Reader, source Source, target pools.Key) (*found, error) {
	out, o := &found{}, source.origin()
	var err error
	if out.pool, err = o.pool(ctx, from, nil); err != nil {
		return nil, err
	}
	if out.users, err = o.users(ctx, from); err != nil {
		return nil, err
	}
	if out.clusters, err = clustersOf(ctx, from, out.claims, out.left); err != nil {
		return nil, err
	}
	if err := o.surroundings(ctx, from, out); err != nil {
		return nil, err
	}
	if out.namesake, err = namesake(ctx, from, source, target); err != nil {
		return nil, err
	}
	all, err := pools.List(ctx, from, "")
	if err != nil {
		return nil, fmt.Errorf("listing the pools: %w", err)
	}
	for _, p := range all {
		if pools.KeyOf(p) == target {
			out.target = p
		} else {
			out.others = append(out.others, p)
		}
	}
	return out, nil
}

// clustersOf reads the Clusters that claims name.
func clustersOf(ctx context.Context, from client.Reader, lists ...[]ipamv1.IPAddressClaim) (map[client.ObjectKey]*clusterv1.Cluster, error) {
	out := map[client.ObjectKey]*clusterv1.Cluster{}
	for _, list := range lists {
		for i := range list {
			key := clusterOf(&list[i])
			if _, known := out[key]; known || key.Name == "" {
				continue
			}
			cluster := &clusterv1.Cluster{}
			if err := from.Get(ctx, key, cluster); apierrors.IsNotFound(err) {
				cluster = nil
			} else if err != nil {
				return nil, fmt.Errorf("reading Cluster %s: %w", key, err)
			}
			out[key] = cluster
		}
	}
	return out, nil
}

// namesake reports whether Metal3 has a pool of the name that ours is to have, beside the one that is imported.
func namesake(ctx context.Context, from client.Reader, source Source, target pools.Key) (bool, error) {
	list := &m3ipamv1.IPPoolList{}
	if err := from.List(ctx, list, client.InNamespace(target.Namespace)); meta.IsNoMatchError(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("listing the IPPools of Metal3: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(p m3ipamv1.IPPool) bool {
		return p.Name == target.Name && source != Source{Metal3IPPool, p.Namespace, p.Name}
	}), nil
}

func clusterOf(c *ipamv1.IPAddressClaim) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: claims.ClusterOf(c)}
}
