// Package hostlb decides what a host does that shows addresses of leases itself: which address it takes, probes, adds,
// keeps and releases. It reads and writes nothing, and uses no clock but the times that it is given. The rules that the
// code names, T1 to T6, are in docs/design.md.
//
// An address is on one host of a wire, a layer-2 segment: on the holder of its lock, which is a coordination Lease. The
// kernel removes an address that is not refreshed, so a host that is frozen or killed shows nothing after that. A host
// that is cut off from the API server keeps its addresses, and a host that would take an address over first probes
// whether another machine answers for it.
//
// HostState is what a host knows. PlanOps returns what to do now, and the caller passes each outcome to CompleteOp; in
// between other things may change. So the program and the tests drive the same code.
package hostlb

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// Host is a host that shows addresses.
type Host struct {
	Name string
	// Networks are the networks that the host has an address of. It can answer for addresses of these.
	Networks []Network
	// Network is the name of the layer-2 or routing domain of these networks: spec.network of pools.
	Network string
	// Node is the name of its Node, empty if the host is outside of the cluster.
	Node string
	// Lifetime is how long addresses stay that the host does not refresh; 0 means as long as those of the host that reads
	// this.
	Lifetime time.Duration
	// OwnAddresses are the addresses of those networks that the host has itself, sorted. It cannot show them for leases,
	// and answers for them.
	OwnAddresses []netip.Addr
	// ForwardsTraffic reports whether the host forwards traffic itself, so that it needs no endpoint on its own Node.
	ForwardsTraffic bool
}

// Network is a network that a host has an address of.
type Network struct {
	Prefix netip.Prefix `json:"prefix"`
	// MAC is the hardware address of the interface through which the host answers, as the host writes it; Interface is
	// the name of the interface.
	MAC       string `json:"mac"`
	Interface string `json:"interface"`
}

// CanReach reports whether the host has an address in the network of a.
func (h *Host) CanReach(a netip.Addr) bool {
	return slices.ContainsFunc(h.Networks, func(n Network) bool { return n.Prefix.Contains(a) })
}

// hasMAC reports whether the host answers with this MAC.
func (h *Host) hasMAC(mac string) bool {
	return slices.ContainsFunc(h.Networks, func(n Network) bool { return n.MAC == mac })
}

// canServe reports whether the host can serve an address that must be served on one of these Nodes; nil allows any
// Node.
func (h *Host) canServe(nodes map[string]bool) bool {
	return nodes == nil || h.ForwardsTraffic || nodes[h.Node]
}

// RankHosts returns the names of the hosts that may have an address, in the order in which they take it: those that
// reach it and can serve it. Where none can serve it, all that reach it may have it: an address that cannot be served
// stays where it is. The order is a rendezvous hash: when a host goes, the addresses of the others stay where they are.
func RankHosts(a netip.Addr, hosts []Host, nodes map[string]bool) []string {
	type scored struct {
		name  string
		score uint64
	}
	var all, fit []scored
	for i := range hosts {
		h := &hosts[i]
		if !h.CanReach(a) {
			continue
		}
		sum := sha256.Sum256([]byte(a.String() + "\x00" + h.Name))
		s := scored{h.Name, binary.BigEndian.Uint64(sum[:8])}
		if all = append(all, s); h.canServe(nodes) {
			fit = append(fit, s)
		}
	}
	if len(fit) > 0 {
		all = fit
	}
	slices.SortFunc(all, func(x, y scored) int { return cmp.Or(cmp.Compare(y.score, x.score), cmp.Compare(x.name, y.name)) })
	out := make([]string, 0, len(all))
	for _, s := range all {
		out = append(out, s.name)
	}
	return out
}
