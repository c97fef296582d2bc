package page

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// The names of what addresses are used for, as the page knows them: first those of the allocator, in its order.
var uses = []string{"claim", "loadbalancer", "nodes", "carved", "pods", "lease", "noclaim", "conflict", "preallocated", "resting", "held", "draining", "elsewhere", "reserved", "gateway"}

const (
	useReserved = grants.UseElsewhere + 1 + iota
	useGateway
)
