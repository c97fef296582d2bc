package hostlb

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Report is what a host says of an address whose lock it holds.
type Report struct {
	// Lease is the IPLease that the address is shown for.
	Lease types.UID `json:"lease"`
	// Announced: the host has the address on an interface, and has told the wire.
	Announced bool `json:"announced,omitempty"`
	// Reason is a reason of v1alpha1.AnnouncedCondition, empty where nothing is wrong; Message says it with the next step.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Ports are those that the host cannot serve, ordered.
	Ports []PortReport `json:"ports,omitempty"`
}

// PortReport says why a host does not serve a port.
type PortReport struct {
	Protocol corev1.Protocol `json:"protocol"`
	Port     int32           `json:"port"`
	Reason   string          `json:"reason"`
	Message  string          `json:"message"`
}

// Equal reports whether two reports say the same.
func (r *Report) Equal(o *Report) bool {
	if r == nil || o == nil {
		return r == o
	}
	return r.Lease == o.Lease && r.Announced == o.Announced && r.Reason == o.Reason && r.Message == o.Message && slices.Equal(r.Ports, o.Ports)
}

// contestedFor is how long it is said that somebody claims an address which this host has, after he last did.
const contestedFor = time.Minute

// report is what is to be said of an address whose lock is ours; nil: nothing new.
func (m *Memory) report(now time.Time, w *Wanted) *Report {
	a := w.Address
	_, on := m.ours[a]
	asked, failed := m.wire[a], m.failed[a]
	out := &Report{Lease: types.UID(w.Lease), Announced: on, Ports: m.ports[a]}
	say := func(reason, format string, args ...any) {
		out.Reason, out.Message = reason, fmt.Sprintf(format, args...)
	}
	claim, claimed := m.claimed[a]
	switch {
	case on && claimed && now.Sub(claim.At) < contestedFor:
		say(v1alpha1.ContestedReason, "%s says that it has %s, which host %s has; %s", m.who(claim.MAC), a, m.Self.Name, m.whatToDo(claim.MAC))
	case on && !m.Self.fits(w.Nodes):
		say(v1alpha1.NoCommonNodeReason, "no host is on a Node with a ready endpoint of every Service of the lease that has externalTrafficPolicy Local; host %s has the address until there is one", m.Self.Name)
	case on:
	case asked.Word == Another:
		say(v1alpha1.ContestedReason, "%s answers for %s, and host %s does not add it before that ends; %s", m.who(asked.MAC), a, m.Self.Name, m.whatToDo(asked.MAC))
	case asked.Word == Foreign && m.owner(a) != "":
		say(v1alpha1.AddressInUseReason, "host %s has %s itself; take the address off that host, or out of the pool (spec.reserved), or use another one", m.owner(a), a)
	case asked.Word == Foreign:
		say(v1alpha1.AddressInUseReason, "%s answers for %s on the wire, so host %s does not add it; take the address off that machine, or use another one", m.who(asked.MAC), a, m.Self.Name)
	case !failed.Since.IsZero():
		say(v1alpha1.HostErrorReason, "host %s: %s", m.Self.Name, failed.Text)
	default:
		return nil
	}
	return out
}

// who names who has a MAC.
func (m *Memory) who(mac string) string {
	if name := m.hostOf(mac); name != "" {
		return fmt.Sprintf("host %s (%s)", name, mac)
	}
	return "a machine with the MAC " + mac
}

func (m *Memory) whatToDo(mac string) string {
	if m.hostOf(mac) != "" {
		return "it may be cut off from the API server, or its kube-proxy answers for addresses of Services: with IPVS that needs strictARP"
	}
	return "take the address off that machine"
}

// owner is the host that has an address itself, not for a lease; empty: none has said so.
func (m *Memory) owner(a netip.Addr) string {
	if slices.Contains(m.Self.Own, a) {
		return m.Self.Name
	}
	for _, name := range slices.Sorted(maps.Keys(m.heard)) {
		if slices.Contains(m.heard[name].host.Own, a) {
			return name
		}
	}
	return ""
}

// hostOf is the host that answers by a MAC, this one not; empty: none.
func (m *Memory) hostOf(mac string) string {
	for name, h := range m.heard {
		if h.host.answers(mac) && name != m.Self.Name {
			return name
		}
	}
	return ""
}
