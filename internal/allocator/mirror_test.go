package allocator

import (
	"testing"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

var (
	mirrorKey = PoolKey{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "p.in-cluster"}
	mirrored  = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPool, Name: "p"}
)

// aMirror is the memory of a pool that mirrors InClusterIPPool p.
func aMirror(t *testing.T, addresses string, change ...func(*v1alpha1.NetworkPool)) *pool {
	t.Helper()
	p := aPool(t, addresses, change...)
	p.key = mirrorKey
	return p
}

func naming(ref ipamv1.IPPoolReference) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef = ref }
}
