package lease

import (
	"fmt"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/slim"
)

// EnabledBackends are the load balancers that the manager serves. The kinds of one that it does not serve are neither
// read nor watched.
type EnabledBackends struct{ MetalLB, Hosts bool }

// IsAnyEnabled reports whether the manager serves any load balancer.
func (eb EnabledBackends) IsAnyEnabled() bool { return eb.MetalLB || eb.Hosts }

// disabledMessage returns what the manager does not serve of what a load balancer shows, and which flag changes that;
// empty if it serves it.
func (eb EnabledBackends) disabledMessage(by string) string {
	switch {
	case by == v1alpha1.ShownByMetalLB && !eb.MetalLB:
		return "this manager runs without --service-leases, so it gives MetalLB no addresses"
	case by == v1alpha1.ShownByHost && !eb.Hosts:
		return fmt.Sprintf("this manager runs without --host-load-balancers, so Services of class %s get no addresses", v1alpha1.HostLoadBalancerClass)
	}
	return ""
}

// CacheOptions returns the cache settings for the kinds that the manager may read in one namespace alone, and for
// EndpointSlices, which keep only what shows whether an endpoint is ready.
func (eb EnabledBackends) CacheOptions() map[client.Object]cache.ByObject {
	out := map[client.Object]cache.ByObject{}
	in := func(namespace string) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	}
	if eb.MetalLB {
		out[&metallbv1beta1.IPAddressPool{}], out[&metallbv1beta1.L2Advertisement{}] = in(metallb.Namespace), in(metallb.Namespace)
	}
	if eb.Hosts {
		out[&coordinationv1.Lease{}] = in(record.Namespace)
	}
	if eb.IsAnyEnabled() {
		out[&discoveryv1.EndpointSlice{}] = cache.ByObject{Transform: slim.TrimEndpointSlice}
	}
	return out
}
