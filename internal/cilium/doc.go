// Package cilium reads the Services and the CiliumLoadBalancerIPPools of a workload cluster, projects to the LB IPAM
// of its Cilium the blocks that it may use, and checks whether it has released one (docs/adr/0036). It follows Cilium
// v1.20.
package cilium

const (
	// DefaultPool is the name of the CiliumLoadBalancerIPPool that contains all blocks, unless each has a pool of its
	// own.
	DefaultPool  = "default-pool"
	poolResource = "ciliumloadbalancerippools"
)
