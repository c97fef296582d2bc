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

// planInput is the input of a plan.
type planInput struct {
	pool *sourcePool
	poolUsers
	// clusters are the Clusters that the claims name; nil for one that does not exist.
	clusters map[client.ObjectKey]*clusterv1.Cluster
	// runningWorkloads are the Pods and Deployments of the provider that may serve the pool. blockingWebhooks are the
	// configurations of webhooks that block writes of its objects while none of these runs.
	runningWorkloads, blockingWebhooks []string
	// targetPool is the existing pool of ours with the name of the target; nil if there is none. otherPools are all
	// other pools of ours.
	targetPool v1alpha1.Pool
	otherPools []v1alpha1.Pool
	// metal3NameConflict reports whether Metal3 has a pool with the name of the target that is not the imported one.
	metal3NameConflict bool
}

// readUsersForPool reads the claims and IPAddresses that name a pool.
func readUsersForPool(ctx context.Context, from client.Reader, namespace string, ref ipamv1.IPPoolReference) (poolUsers, error) {
	claims, addresses, err := listClaimsAndAddresses(ctx, from, namespace)
	return filterByPool(ref, claims, addresses), err
}

// listClaimsAndAddresses lists the claims and IPAddresses of Cluster API; addresses first, as a claim is gone later
// than its address.
func listClaimsAndAddresses(ctx context.Context, from client.Reader, namespace string) ([]ipamv1.IPAddressClaim, []ipamv1.IPAddress, error) {
	addresses, claims := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}
	if err := from.List(ctx, addresses, client.InNamespace(namespace)); err != nil {
		return nil, nil, fmt.Errorf("listing the IPAddresses: %w", err)
	}
	if err := from.List(ctx, claims, client.InNamespace(namespace)); err != nil {
		return nil, nil, fmt.Errorf("listing the claims: %w", err)
	}
	return claims.Items, addresses.Items, nil
}

// filterByPool returns those of the claims and IPAddresses that name a pool.
func filterByPool(ref ipamv1.IPPoolReference, claims []ipamv1.IPAddressClaim, addresses []ipamv1.IPAddress) poolUsers {
	out := poolUsers{addressByClaim: map[client.ObjectKey]*ipamv1.IPAddress{}}
	for i := range addresses {
		a := &addresses[i]
		out.addressByClaim[client.ObjectKeyFromObject(a)] = a
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

// gatherInput reads the pool, its users, and the objects around it.
func gatherInput(ctx context.Context, from client.Reader, source Source, target pools.Key) (*planInput, error) {
	out, o := &planInput{}, source.provider()
	var err error
	if out.pool, err = o.readPool(ctx, from, nil); err != nil {
		return nil, err
	}
	if out.poolUsers, err = o.readUsers(ctx, from); err != nil {
		return nil, err
	}
	if out.clusters, err = readClusters(ctx, from, out.claims, out.notImported); err != nil {
		return nil, err
	}
	if err := o.readEnvironment(ctx, from, out); err != nil {
		return nil, err
	}
	if out.metal3NameConflict, err = hasMetal3NameConflict(ctx, from, source, target); err != nil {
		return nil, err
	}
	all, err := pools.List(ctx, from, "")
	if err != nil {
		return nil, fmt.Errorf("listing the pools: %w", err)
	}
	for _, p := range all {
		if pools.KeyForPool(p) == target {
			out.targetPool = p
		} else {
			out.otherPools = append(out.otherPools, p)
		}
	}
	return out, nil
}

// readClusters reads the Clusters that claims name.
func readClusters(ctx context.Context, from client.Reader, lists ...[]ipamv1.IPAddressClaim) (map[client.ObjectKey]*clusterv1.Cluster, error) {
	out := map[client.ObjectKey]*clusterv1.Cluster{}
	for _, list := range lists {
		for i := range list {
			key := clusterKeyForClaim(&list[i])
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

// hasMetal3NameConflict reports whether Metal3 has a pool with the name of the target that is not the imported one.
func hasMetal3NameConflict(ctx context.Context, from client.Reader, source Source, target pools.Key) (bool, error) {
	list := &m3ipamv1.IPPoolList{}
	if err := from.List(ctx, list, client.InNamespace(target.Namespace)); meta.IsNoMatchError(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("listing the IPPools of Metal3: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(p m3ipamv1.IPPool) bool {
		return p.Name == target.Name && source != Source{Metal3IPPoolKind, p.Namespace, p.Name}
	}), nil
}

func clusterKeyForClaim(c *ipamv1.IPAddressClaim) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: claims.ClusterNameForClaim(c)}
}
