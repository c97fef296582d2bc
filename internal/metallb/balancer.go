package metallb

import (
	"context"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// Balancer implements balancer.Balancer for MetalLB.
type Balancer struct{}

var _ balancer.Balancer = Balancer{}

// Name implements balancer.Balancer, as do the other methods.
func (Balancer) Name() string { return "MetalLB" }

// SharedPoolName returns the name that Butler and many guides to MetalLB use.
func (Balancer) SharedPoolName() string { return DefaultPool }

// WatchedKinds returns MetalLB's kinds, which are read in MetalLB's namespace only.
func (Balancer) WatchedKinds() ([]client.Object, string) {
	return []client.Object{&metallbv1beta1.IPAddressPool{}, &metallbv1beta1.L2Advertisement{}}, Namespace
}

// WatchedLists returns the lists of the watched kinds.
func (Balancer) WatchedLists() []client.ObjectList {
	return []client.ObjectList{&metallbv1beta1.IPAddressPoolList{}, &metallbv1beta1.L2AdvertisementList{}}
}

// MissingReason states in its message what happens once MetalLB is installed.
func (Balancer) MissingReason() (reason, message string) {
	return v1alpha1.MetalLBMissingReason, "MetalLB is not installed in the Cluster (namespace " + Namespace + "); the blocks of the Cluster are added to MetalLB as soon as it is"
}

// RoleFile returns the ClusterRole for MetalLB.
func (Balancer) RoleFile() string { return "config/tenant/role.yaml" }

// ObserveCluster reads Services and MetalLB's objects.
func (Balancer) ObserveCluster(ctx context.Context, services, objects, live client.Reader) (balancer.ObservedCluster, error) {
	o, err := ObserveCluster(ctx, services, objects, live)
	if err != nil {
		return nil, err
	}
	return observedAdapter{o}, nil
}

// CheckPoolEmpty checks whether an IPAddressPool still serves a Service.
func (Balancer) CheckPoolEmpty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (string, error) {
	return CheckPoolEmpty(ctx, live, pool, r)
}

// CheckReleased checks whether MetalLB has released a range.
func (Balancer) CheckReleased(ctx context.Context, live client.Reader, r netipx.IPRange) (string, error) {
	return CheckReleased(ctx, live, r)
}

// observedAdapter adapts ObservedCluster to balancer.ObservedCluster.
type observedAdapter struct{ *ObservedCluster }

func (o observedAdapter) IsInstalled() bool { return o.Installed }

func (o observedAdapter) AssessServices(out balancer.DesiredState) elastic.Assessment {
	return elastic.AssessServices(elastic.Inventory{
		Services: o.Services, LoadBalancerClass: out.LoadBalancerClass, GrowableFamilies: out.GrowableFamilies, Pools: o.PlanPools(out.Pools, out.GrowthPool),
	})
}

// UnreadablePool describes an IPAddressPool that cannot be parsed: which of its addresses Services may have is
// unknown.
func (o observedAdapter) UnreadablePool() string {
	if len(o.Problems) == 0 {
		return ""
	}
	return o.Problems[0].Error()
}

func (o observedAdapter) DescribeForeignPool(names ...string) string { return o.ForeignPool(names...) }

func (o observedAdapter) PlanChanges(want []elastic.DesiredPool) balancer.PoolChanges {
	c := o.ObservedCluster.PlanChanges(want)
	return &c
}

// DescribeUnplaced states why MetalLB refuses its configuration: MetalLB reports nothing about a single Service.
func (o observedAdapter) DescribeUnplaced(ctx context.Context, live client.Reader, _ *elastic.Service) (string, error) {
	why, err := DescribeRefusal(ctx, live)
	if why == "" {
		why = o.UnreadablePool()
	}
	if why == "" {
		why = "check that the MetalLB controller runs, its log, and the events of the Service"
	}
	return why, err
}
