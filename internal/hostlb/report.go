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

// Report is what a host reports about an address whose lock it holds.
type Report struct {
	// LeaseUID is the UID of the IPLease that the address is shown for.
	LeaseUID types.UID `json:"lease"`
	// Announced reports whether the host has the address on an interface and has announced it.
	Announced bool `json:"announced,omitempty"`
	// Reason is a reason of v1alpha1.AnnouncedCondition, empty where nothing is wrong; Message explains it and names the
	// next step.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Ports are the ports that the host cannot serve, sorted.
	Ports []PortReport `json:"ports,omitempty"`
}

// PortReport is why a host does not serve a port.
type PortReport struct {
	Protocol corev1.Protocol `json:"protocol"`
	Port     int32           `json:"port"`
	Reason   string          `json:"reason"`
	Message  string          `json:"message"`
}

// Equal reports whether two reports have the same content.
func (r *Report) Equal(o *Report) bool {
	if r == nil || o == nil {
		return r == o
	}
	return r.LeaseUID == o.LeaseUID && r.Announced == o.Announced && r.Reason == o.Reason && r.Message == o.Message && slices.Equal(r.Ports, o.Ports)
}

// conflictReportPeriod is how long a host reports that another machine claims its address, counted from the last claim.
const conflictReportPeriod = time.Minute

// buildReport returns the report on an address whose lock is ours, or nil if there is nothing new to report.
func (hs *HostState) buildReport(now time.Time, w *WantedAddress) *Report {
	a := w.Address
	_, on := hs.managed[a]
	asked, failed := hs.probes[a], hs.failures[a]
	out := &Report{LeaseUID: types.UID(w.LeaseUID), Announced: on, Ports: hs.portReports[a]}
	setCondition := func(reason, format string, args ...any) {
		out.Reason, out.Message = reason, fmt.Sprintf(format, args...)
	}
	claim, claimed := hs.foreignClaims[a]
	switch {
	case on && claimed && now.Sub(claim.ObservedAt) < conflictReportPeriod:
		setCondition(v1alpha1.ContestedReason, "%s claims %s, which host %s has; %s", hs.describeMAC(claim.MAC), a, hs.Self.Name, hs.conflictAdvice(claim.MAC))
	case on && !hs.Self.canServe(w.Nodes):
		setCondition(v1alpha1.NoCommonNodeReason, "no host is on a Node with a ready endpoint of every Service of the lease that has externalTrafficPolicy Local; host %s has the address until there is one", hs.Self.Name)
	case on:
	case asked.Result == PeerReply:
		setCondition(v1alpha1.ContestedReason, "%s answers for %s, and host %s does not add it before that ends; %s", hs.describeMAC(asked.MAC), a, hs.Self.Name, hs.conflictAdvice(asked.MAC))
	case asked.Result == ForeignReply && hs.hostOwningAddress(a) != "":
		setCondition(v1alpha1.AddressInUseReason, "host %s has %s itself; take the address off that host, or out of the pool (spec.reserved), or use another one", hs.hostOwningAddress(a), a)
	case asked.Result == ForeignReply:
		setCondition(v1alpha1.AddressInUseReason, "%s answers for %s on the wire, so host %s does not add it; take the address off that machine, or use another one", hs.describeMAC(asked.MAC), a, hs.Self.Name)
	case !failed.Since.IsZero():
		setCondition(v1alpha1.HostErrorReason, "host %s: %s", hs.Self.Name, failed.Message)
	default:
		return nil
	}
	return out
}

// describeMAC names the host or machine that has a MAC.
func (hs *HostState) describeMAC(mac string) string {
	if name := hs.hostByMAC(mac); name != "" {
		return fmt.Sprintf("host %s (%s)", name, mac)
	}
	return "a machine with the MAC " + mac
}

func (hs *HostState) conflictAdvice(mac string) string {
	if hs.hostByMAC(mac) != "" {
		return "it may be cut off from the API server, or its kube-proxy answers for addresses of Services: with IPVS that needs strictARP"
	}
	return "take the address off that machine"
}

// hostOwningAddress returns the name of the host that has an address itself, and not for a lease, or "" if no host has
// reported that.
func (hs *HostState) hostOwningAddress(a netip.Addr) string {
	if slices.Contains(hs.Self.OwnAddresses, a) {
		return hs.Self.Name
	}
	for _, name := range slices.Sorted(maps.Keys(hs.knownHosts)) {
		if slices.Contains(hs.knownHosts[name].host.OwnAddresses, a) {
			return name
		}
	}
	return ""
}

// hostByMAC returns the name of the other host that answers with a MAC, or "" if there is none.
func (hs *HostState) hostByMAC(mac string) string {
	for name, h := range hs.knownHosts {
		if h.host.hasMAC(mac) && name != hs.Self.Name {
			return name
		}
	}
	return ""
}
