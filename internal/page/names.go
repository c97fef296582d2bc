package page

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// useNames names the uses of addresses on the page: first those of the allocator, in its order.
var useNames = []string{"claim", "loadbalancer", "nodes", "carved", "pods", "lease", "noclaim", "conflict", "preallocated", "resting", "held", "draining", "elsewhere", "reserved", "gateway"}

const (
	useReserved = grants.UseOtherPool + 1 + iota
	useGateway
)
