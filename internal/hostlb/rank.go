// Package hostlb decides what a host does that shows addresses of leases by itself: which address it takes, asks the wire
// for, adds, keeps and gives up. It reads and writes nothing, and knows no clock but the one that it is given: the rules
// that the code names, T1 to T6, are in docs/design.md.
//
// An address is on one host of a wire: that which holds its lock, a coordination Lease. The kernel takes an address away
// that is not refreshed, so a host that is frozen or killed shows nothing after that; a host that is cut off from the API
// server keeps what it has, and who would take an address over asks the wire first whether somebody answers for it.
//
// Memory is what a host knows. Its Next says what to do now, and whoever does it tells Done what became of it; in between
// the world goes on. So the program and the tests drive the same code.
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
	// Networks are those that it has an address of: it can answer for addresses of these.
	Networks []Network
	// Network names the layer-2 or routing domain that these are in: spec.network of pools.
	Network string
	// Node is the name of its Node, empty if it is outside of the cluster.
	Node string
	// Lifetime is how long its addresses stay that it does not refresh; 0: as long as those of whoever asks.
	Lifetime time.Duration
	// Own are the addresses of those networks that it has itself, ordered: it cannot show them for leases, and answers for them.
	Own []netip.Addr
	// Forwards: it forwards by itself, so it needs no endpoint of its own.
	Forwards bool
}

// Network is a network that a host has an address of.
type Network struct {
	Prefix netip.Prefix `json:"prefix"`
	// MAC is that of the interface by which the host answers, as it writes itself; Interface, its name.
	MAC       string `json:"mac"`
	Interface string `json:"interface"`
}

// Reaches reports whether a host has an address of the network of another address.
func (h *Host) Reaches(a netip.Addr) bool {
	return slices.ContainsFunc(h.Networks, func(n Network) bool { return n.Prefix.Contains(a) })
}

// answers reports whether a MAC is one that the host answers by.
func (h *Host) answers(mac string) bool {
	return slices.ContainsFunc(h.Networks, func(n Network) bool { return n.MAC == mac })
}

// fits reports whether a host can serve what is to be served on one of these Nodes; nil: on any.
func (h *Host) fits(nodes map[string]bool) bool { return nodes == nil || h.Forwards || nodes[h.Node] }

// Rank orders the hosts that may have an address: those that reach it, and that fit. Where none fits, all that reach it may:
// an address that cannot be served stays where it is. It is rendezvous hashing: when a host goes, the addresses of the others
// stay where they are. It returns their names.
func Rank(a netip.Addr, hosts []Host, nodes map[string]bool) []string {
	type scored struct {
		name  string
		score uint64
	}
	var all, fit []scored
	for i := range hosts {
		h := &hosts[i]
		if !h.Reaches(a) {
			continue
		}
		sum := sha256.Sum256([]byte(a.String() + "\x00" + h.Name))
		s := scored{h.Name, binary.BigEndian.Uint64(sum[:8])}
		if all = append(all, s); h.fits(nodes) {
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
