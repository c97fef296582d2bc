package cilium

import (
	"context"

	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
)

// Balancer implements balancer.Balancer for the LB IPAM of Cilium.
type Balancer struct{}

var _ balancer.Balancer = Balancer{}

// Name implements balancer.Balancer, as do the other methods.
func (Balancer) Name() string { return "Cilium" }

// SharedPoolName returns the same name as for MetalLB.
func (Balancer) SharedPoolName() string { return DefaultPool }

// WatchedKinds returns the pools, which are cluster-scoped.
func (Balancer) WatchedKinds() (kinds []client.Object, namespace string) {
	return []client.Object{&Pool{}}, ""
}

// WatchedLists returns the list of pools.
func (Balancer) WatchedLists() []client.ObjectList { return []client.ObjectList{&PoolList{}} }

// MissingReason states in its message what happens once Cilium's kind is installed.
func (Balancer) MissingReason() (reason, message string) {
	return v1alpha1.CiliumMissingReason, "the kind CiliumLoadBalancerIPPool of " + GroupVersion.String() +
		" is not installed in the Cluster (Cilium v1.18.2 or later has it); the blocks of the Cluster are shown to Cilium as soon as it is"
}

// RoleFile returns the ClusterRole for Cilium.
func (Balancer) RoleFile() string { return "config/tenant/cilium_role.yaml" }

// ObserveCluster reads Services and the pools.
func (Balancer) ObserveCluster(ctx context.Context, services, objects, live client.Reader) (balancer.ObservedCluster, error) {
	o, err := observeCluster(ctx, services, objects, live)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// CheckPoolEmpty checks whether a pool still serves a Service.
func (Balancer) CheckPoolEmpty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (string, error) {
	return checkPoolEmpty(ctx, live, pool, r)
}

// CheckReleased checks whether Cilium has released a range.
func (Balancer) CheckReleased(ctx context.Context, live client.Reader, r netipx.IPRange) (string, error) {
	return checkReleased(ctx, live, r)
}
