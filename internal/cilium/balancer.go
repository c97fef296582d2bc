package cilium

import (
	"context"

	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
)

// Balancer is the LB IPAM of Cilium.
type Balancer struct{}

var _ balancer.Balancer = Balancer{}

// Name implements balancer.Balancer, as all of these do.
func (Balancer) Name() string { return "Cilium" }

// Pool has the name of MetalLB's.
func (Balancer) Pool() string { return DefaultPool }

// Watched are the pools, which are of the cluster.
func (Balancer) Watched() (kinds []client.Object, namespace string) {
	return []client.Object{&Pool{}}, ""
}

// Lists are those of pools.
func (Balancer) Lists() []client.ObjectList { return []client.ObjectList{&PoolList{}} }

// Missing says what happens when it is there.
func (Balancer) Missing() (reason, message string) {
	return v1alpha1.CiliumMissingReason, "the kind CiliumLoadBalancerIPPool of " + GroupVersion.String() +
		" is not installed in the Cluster (Cilium v1.18.2 or later has it); the blocks of the Cluster are shown to Cilium as soon as it is"
}

// Observe reads Services, and the pools.
func (Balancer) Observe(ctx context.Context, services, objects, live client.Reader) (balancer.Observed, error) {
	o, err := observe(ctx, services, objects, live)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Empty reads whether a pool serves anybody.
func (Balancer) Empty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (string, error) {
	return empty(ctx, live, pool, r)
}

// LetGo reads whether Cilium has let go of a range.
func (Balancer) LetGo(ctx context.Context, live client.Reader, r netipx.IPRange) (string, error) {
	return letGo(ctx, live, r)
}
