package page

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
)

// The names of what addresses are used for, as the page knows them: first those of the allocator, in its order.
var uses = []string{"claim", "loadbalancer", "nodes", "noclaim", "conflict", "preallocated", "resting", "held", "reserved", "gateway"}

const (
	useReserved = allocator.UseHeld + 1 + iota
	useGateway
)
