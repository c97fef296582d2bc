package page

import (
	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
)

// The names of what addresses are used for, as the page knows them: first those of the allocator, in its order.
var uses = []string{"claim", "loadbalancer", "nodes", "noclaim", "conflict", "preallocated", "resting", "held", "reserved", "gateway"}

const (
	useReserved = allocator.UseHeld + 1 + iota
	useGateway
)

// format is a range as a person reads it: an address, a prefix, or two addresses.
func format(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	if p, ok := r.Prefix(); ok {
		return p.String()
	}
	return r.String()
}
