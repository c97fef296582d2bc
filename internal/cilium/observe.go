package cilium

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// observedCluster is the observed state of a workload cluster.
type observedCluster struct {
	installed bool
	services  []service
	pools     []Pool
}

// observeCluster reads a workload cluster. If the cache has no pools, it lists them live.
func observeCluster(ctx context.Context, services, objects, live client.Reader) (*observedCluster, error) {
	o := &observedCluster{}
	all, err := balancer.ListServices(ctx, services)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		o.services = append(o.services, newService(s))
	}
	pools := &PoolList{}
	if err = objects.List(ctx, pools); err == nil && len(pools.Items) == 0 {
		err = live.List(ctx, &PoolList{})
	}
	if balancer.IsMissing(err) {
		return o, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the CiliumLoadBalancerIPPools: %w", err)
	}
	o.installed, o.pools = true, pools.Items
	return o, nil
}

func (o *observedCluster) IsInstalled() bool { return o.installed }

func (o *observedCluster) HasProjectedPool(name string) bool {
	p := o.findPool(name)
	return p != nil && balancer.IsManaged(p)
}

// findPool returns the pool of a name, nil if there is none.
func (o *observedCluster) findPool(name string) *Pool {
	if at := slices.IndexFunc(o.pools, func(p Pool) bool { return p.Name == name }); at >= 0 {
		return &o.pools[at]
	}
	return nil
}

// UnreadablePool describes a pool with a block that cannot be parsed; empty if there is none.
func (o *observedCluster) UnreadablePool() string {
	for i := range o.pools {
		for _, b := range o.pools[i].Spec.Blocks {
			if _, err := b.parseRange(); err != nil {
				return fmt.Sprintf("CiliumLoadBalancerIPPool %s has a block in spec.blocks that is not a range: %v", o.pools[i].Name, err)
			}
		}
	}
	return ""
}

// DescribeForeignPool describes a pool of another owner. Such a pool cannot be handed over: no Service depends on the
// name of a pool, so taking it over has no use. Nothing renames a pool, and a Service whose address is in no pool
// loses it as soon as Cilium reconciles it.
func (o *observedCluster) DescribeForeignPool(names ...string) string {
	for _, name := range names {
		p := o.findPool(name)
		if p == nil || balancer.IsManaged(p) {
			continue
		}
		do := "with cilium-operator stopped, delete that pool and create it under another name: Services keep their addresses"
		if name == DefaultPool {
			do = "use projection: PoolPerAllocation; or, " + do
		}
		return fmt.Sprintf("CiliumLoadBalancerIPPool %s in the Cluster was created by another owner (%s) and is not changed; %s", name, balancer.DescribeManagers(p), do)
	}
	return ""
}

// DescribeForeignAdvertisement returns nothing: Services, not pools, select what Cilium announces.
func (o *observedCluster) DescribeForeignAdvertisement([]elastic.DesiredPool) string { return "" }

// DescribeUnplaced states why a Service waits: the conflict of a pool of blocks, or the condition that Cilium has set
// on the Service.
func (o *observedCluster) DescribeUnplaced(_ context.Context, _ client.Reader, s *elastic.Service) (string, error) {
	for i := range o.pools {
		if why := o.pools[i].conflictMessage(); balancer.IsManaged(&o.pools[i]) && why != "" {
			return why, nil
		}
	}
	at := slices.IndexFunc(o.services, func(other service) bool { return other.Key() == s.Key() })
	if at >= 0 && o.services[at].unsatisfied != nil {
		return conditionMessage(&o.services[at]), nil
	}
	return "check that cilium-operator runs with LB IPAM, and its log", nil
}
