package pools

import (
	"iter"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Objects are pools and the objects that name them, as the API server had them at one moment.
type Objects struct {
	Pools       []v1alpha1.Pool
	Claims      []ipamv1.IPAddressClaim
	Addresses   []ipamv1.IPAddress
	Allocations []v1alpha1.IPAllocation
	Leases      []v1alpha1.IPLease
}

// PoolReferrers yields the objects that name a pool.
func (o *Objects) PoolReferrers() iter.Seq[client.Object] {
	return func(yield func(client.Object) bool) {
		_ = yieldEach(o.Claims, yield) && yieldEach(o.Addresses, yield) && yieldEach(o.Allocations, yield) && yieldEach(o.Leases, yield)
	}
}

func yieldEach[T any, O interface {
	*T
	client.Object
}](objects []T, yield func(client.Object) bool) bool {
	for i := range objects {
		if !yield(O(&objects[i])) {
			return false
		}
	}
	return true
}
