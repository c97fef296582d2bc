package cilium

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// observed is what a workload cluster has.
type observed struct {
	installed bool
	services  []service
	pools     []Pool
}

// observe reads a workload cluster.
func observe(ctx context.Context, services, objects, live client.Reader) (*observed, error) {
	o := &observed{}
	all, err := balancer.Services(ctx, services)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		o.services = append(o.services, serviceOf(s))
	}
	pools := &PoolList{}
	if err = objects.List(ctx, pools); err == nil && len(pools.Items) == 0 {
		err = live.List(ctx, &PoolList{})
	}
	if balancer.Missing(err) {
		return o, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the CiliumLoadBalancerIPPools: %w", err)
	}
	o.installed, o.pools = true, pools.Items
	return o, nil
}

func (o *observed) Installed() bool { return o.installed }

func (o *observed) Shows(name string) bool {
	p := o.find(name)
	return p != nil && balancer.Made(p)
}

// find returns the pool of a name, nil if there is none.
func (o *observed) find(name string) *Pool {
	if at := slices.IndexFunc(o.pools, func(p Pool) bool { return p.Name == name }); at >= 0 {
		return &o.pools[at]
	}
	return nil
}

// Unread says which pool has a block that cannot be read.
func (o *observed) Unread() string {
	for i := range o.pools {
		for _, b := range o.pools[i].Spec.Blocks {
			if _, err := b.rangeOf(); err != nil {
				return fmt.Sprintf("CiliumLoadBalancerIPPool %s has a block in spec.blocks that is not a range: %v", o.pools[i].Name, err)
			}
		}
	}
	return ""
}

// Foreign says whose a pool is. It is not handed over: no Service depends on the name of a pool, so taking it over has no use.
// Nothing renames a pool, and without one that has its address a Service loses it as soon as Cilium looks.
func (o *observed) Foreign(names ...string) string {
	for _, name := range names {
		p := o.find(name)
		if p == nil || balancer.Made(p) {
			continue
		}
		do := "with cilium-operator stopped, delete that pool and create it under another name: Services keep their addresses"
		if name == DefaultPool {
			do = "use projection: PoolPerAllocation; or, " + do
		}
		return fmt.Sprintf("CiliumLoadBalancerIPPool %s in the Cluster was made by somebody else (%s), and is left as it is; %s", name, balancer.Maker(p), do)
	}
	return ""
}

// ForeignAdvertisement is none: what Cilium announces is chosen by Services, not by pools.
func (o *observed) ForeignAdvertisement([]elastic.Desired) string { return "" }

// Unplaced says why a Service waits: what Cilium says of it, or of the pools that show blocks.
func (o *observed) Unplaced(_ context.Context, _ client.Reader, s *elastic.Service) (string, error) {
	for i := range o.pools {
		if why := o.pools[i].problem(); balancer.Made(&o.pools[i]) && why != "" {
			return why, nil
		}
	}
	at := slices.IndexFunc(o.services, func(is service) bool { return is.Key() == s.Key() })
	if at >= 0 && o.services[at].lacks != nil {
		return said(&o.services[at]), nil
	}
	return "check that cilium-operator runs with LB IPAM, and its log", nil
}
