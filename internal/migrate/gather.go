package migrate

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/dropin"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// found is what a plan is made from.
type found struct {
	pool *sourcePool
	names
	// clusters are those that the claims name; nil: it does not exist.
	clusters map[client.ObjectKey]*clusterv1.Cluster
	// running are the pods and Deployments of the in-cluster provider that can serve the pool.
	running []string
	// target is the pool of ours of that name, nil if there is none; others are the rest.
	target v1alpha1.Pool
	others []v1alpha1.Pool
}

// names are what names a pool.
type names struct {
	claims    []ipamv1.IPAddressClaim
	addresses []ipamv1.IPAddress
	// named are all IPAddresses, of whatever pool, by the name of the claim they would be found under.
	named map[client.ObjectKey]*ipamv1.IPAddress
}

// namesOf reads what names a pool.
func namesOf(ctx context.Context, from client.Reader, namespace string, ref ipamv1.IPPoolReference) (out names, err error) {
	addresses, claims := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}
	if err := from.List(ctx, addresses, client.InNamespace(namespace)); err != nil {
		return out, fmt.Errorf("listing the IPAddresses: %w", err)
	}
	if err := from.List(ctx, claims, client.InNamespace(namespace)); err != nil {
		return out, fmt.Errorf("listing the claims: %w", err)
	}
	out.named = map[client.ObjectKey]*ipamv1.IPAddress{}
	for i := range addresses.Items {
		a := &addresses.Items[i]
		out.named[client.ObjectKeyFromObject(a)] = a
		if a.Spec.PoolRef == ref {
			out.addresses = append(out.addresses, *a)
		}
	}
	for i := range claims.Items {
		if claims.Items[i].Spec.PoolRef == ref {
			out.claims = append(out.claims, claims.Items[i])
		}
	}
	return out, nil
}

// gather reads what there is of a side, and around it.
func gather(ctx context.Context, from client.Reader, source Source, target pools.Key, ref ipamv1.IPPoolReference) (*found, error) {
	out := &found{clusters: map[client.ObjectKey]*clusterv1.Cluster{}}
	var err error
	if out.pool, err = source.get(ctx, from); err != nil {
		return nil, err
	}
	if out.names, err = namesOf(ctx, from, source.Namespace, ref); err != nil {
		return nil, err
	}
	for i := range out.claims {
		if key := clusterOf(&out.claims[i]); key.Name != "" {
			if _, known := out.clusters[key]; known {
				continue
			}
			cluster := &clusterv1.Cluster{}
			if err := from.Get(ctx, key, cluster); apierrors.IsNotFound(err) {
				cluster = nil
			} else if err != nil {
				return nil, fmt.Errorf("reading Cluster %s: %w", key, err)
			}
			out.clusters[key] = cluster
		}
	}
	if out.running, err = dropin.Running(ctx, from); err != nil {
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

func clusterOf(c *ipamv1.IPAddressClaim) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: claims.ClusterOf(c)}
}
