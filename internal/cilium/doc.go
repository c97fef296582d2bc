// Package cilium reads what the Services and the CiliumLoadBalancerIPPools of a workload cluster are, shows the LB IPAM of
// its Cilium the blocks that it may use, and finds out whether it has let go of one (docs/adr/0036). It follows Cilium
// v1.20.
package cilium

const (
	// DefaultPool is the CiliumLoadBalancerIPPool that has all blocks, unless each has one of its own.
	DefaultPool = "default-pool"
	resource    = "ciliumloadbalancerippools"
)
