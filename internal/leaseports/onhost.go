package leaseports

import (
	"fmt"
	"slices"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// hostReasons are the reasons that a host may report. Any other reason that a host writes is replaced, so that the API
// server refuses no condition because of it.
var hostReasons = []string{
	v1alpha1.NoCommonNodeReason, v1alpha1.AddressInUseReason, v1alpha1.ContestedReason, v1alpha1.PortInUseOnHostReason,
	v1alpha1.PortNotSupportedReason, v1alpha1.HostErrorReason,
}

// HostStatus is the state of the address of a lease that hosts show: the content of its lock, and which hosts are
// alive.
type HostStatus struct {
	// HasLock reports whether the address has a lock. LockProblem is why the lock cannot be read, empty if it can.
	HasLock     bool
	LockProblem string
	// Holder is the host that holds the lock, empty if none does; PreviousHolder is the host that gave the address up,
	// if no host has probed the network for it since.
	Holder, PreviousHolder string
	// Alive reports whether the holder's heartbeat changed recently; Silent reports whether it has not changed for a
	// long time. Both are false while this manager has not watched the heartbeats for long enough.
	Alive, Silent bool
	// Report is what the host reports about this lease, nil if nothing.
	Report *record.Report
	// ReachableByOther reports whether another host that is not silent reaches the address, so that it can probe the
	// network for it.
	ReachableByOther bool
	// RequiresLocalEndpoint reports whether a Service of the lease must be served by Nodes with an endpoint of that
	// Service.
	RequiresLocalEndpoint bool
}

// HasReport reports whether a live host reports what it does with the address.
func (h *HostStatus) HasReport() bool { return h.Holder != "" && h.Alive && h.Report != nil }

// IsAnnounced reports whether a live host has announced the address.
func (h *HostStatus) IsAnnounced() bool { return h.HasReport() && h.Report.Announced }

// AnnouncedReason returns the condition Announced, which is True for v1alpha1.AnnouncedReason alone; the zero Reason if
// nothing new is known. waited reports whether no host has had the address for so long that the condition shows it.
func (h *HostStatus) AnnouncedReason(waited bool) Reason {
	switch gaveUp := h.Holder == "" && h.Report != nil; {
	case (h.HasReport() || gaveUp) && h.Report.Reason != "":
		return Reason{toHostReason(h.Report.Reason), h.Report.Message}
	case h.IsAnnounced() && len(h.reportedPorts()) > 0:
		var texts []string
		unserved, full := h.unservedPorts(), h.FullPorts()
		for _, p := range unserved {
			texts = append(texts, fmt.Sprintf("%s is not served: %s", Port{p.Protocol, p.Port}, p.Message))
		}
		for _, p := range full {
			texts = append(texts, fmt.Sprintf("%s is full: %s", Port{p.Protocol, p.Port}, p.Message))
		}
		out := Reason{v1alpha1.AnnouncedReason, fmt.Sprintf("host %s has the address, and %s", h.Holder, strings.Join(texts, "; "))}
		if len(unserved) > 0 {
			out.Reason = toHostReason(unserved[0].Reason)
		}
		return out
	case h.IsAnnounced():
		return Reason{v1alpha1.AnnouncedReason, fmt.Sprintf("host %s has the address", h.Holder)}
	case waited && h.Silent && h.ReachableByOther && !h.RequiresLocalEndpoint:
		return Reason{v1alpha1.ContestedReason, fmt.Sprintf("host %s, which has the address, is silent, and no other host takes it. If that host answers for the address still, "+
			"it is cut off from the API server: restore its way there, or stop butler-host-lb on it", h.Holder)}
	case waited:
		return Reason{v1alpha1.NoHostReason, h.noHostMessage()}
	}
	return Reason{}
}

// reportedPorts returns the ports about which the host reports a problem.
func (h *HostStatus) reportedPorts() []record.PortReport {
	if !h.IsAnnounced() {
		return nil
	}
	return h.Report.Ports
}

func isPortFull(p record.PortReport) bool { return p.Reason == v1alpha1.PortFullReason }

// unservedPorts returns the ports that the host does not serve.
func (h *HostStatus) unservedPorts() []record.PortReport {
	return slices.DeleteFunc(slices.Clone(h.reportedPorts()), isPortFull)
}

// FullPorts returns the ports that the host serves, but not for all clients, as they are full.
func (h *HostStatus) FullPorts() []record.PortReport {
	return slices.DeleteFunc(slices.Clone(h.reportedPorts()), func(p record.PortReport) bool { return !isPortFull(p) })
}

// toHostReason returns the reason that a host gives if it is one of hostReasons, otherwise v1alpha1.HostErrorReason.
func toHostReason(reason string) string {
	if slices.Contains(hostReasons, reason) {
		return reason
	}
	return v1alpha1.HostErrorReason
}

// noHostMessage returns why no host has the address, and what to do about it.
func (h *HostStatus) noHostMessage() string {
	switch {
	case h.LockProblem != "":
		return h.LockProblem + "; delete that Lease, the hosts make it again"
	case h.Silent:
		return fmt.Sprintf("host %s, which had the address, is silent, and no other host has taken it; start butler-host-lb there again, or on another host of its subnet", h.Holder)
	case h.Holder != "":
		return fmt.Sprintf("host %s has locked the address, and does not report that it shows it; see the log of butler-host-lb there", h.Holder)
	case h.RequiresLocalEndpoint:
		return "no host has the address; butler-host-lb has to run on a Node that has an address of the same subnet, and a ready endpoint of each Service of the lease with externalTrafficPolicy Local"
	}
	return "no host has the address; run butler-host-lb on one that has an address of the same subnet"
}

// DrainingReason returns the condition Draining of a lease that is being deleted: what keeps its address. It returns
// the zero Reason if no host shows the address, and none will: a host reads the lease after it has taken the lock, and
// this lock was read after the deletion of the lease was seen.
func (h *HostStatus) DrainingReason() Reason {
	confirming := func(format string, args ...any) Reason {
		return Reason{v1alpha1.ConfirmingReason, fmt.Sprintf(format, args...)}
	}
	had := h.Holder
	if had == "" {
		had = h.PreviousHolder
	}
	switch {
	case h.LockProblem != "":
		return confirming("%s, so it is not known which host has the address; correct its annotation", h.LockProblem)
	case !h.HasLock || had == "":
		return Reason{}
	case h.Holder != "" && !h.Silent:
		return confirming("host %s is removing the address", h.Holder)
	case h.ReachableByOther:
		return confirming("host %s had the address, and another host probes whether any machine still answers for it", had)
	}
	return Reason{v1alpha1.HostSilentReason, fmt.Sprintf("host %s had the address and has not confirmed its removal, and no other host can probe it; start butler-host-lb on a host of its subnet", had)}
}

// ConcernsPort reports whether what is wrong with the address concerns a port.
func (h *HostStatus) ConcernsPort(p Port) bool {
	return !h.IsAnnounced() || h.Report.Reason != "" || slices.ContainsFunc(h.Report.Ports, func(r record.PortReport) bool { return p == Port{r.Protocol, r.Port} })
}

// PortErrors returns the ports that the host does not serve, each with the error for the status of a Service.
func (h *HostStatus) PortErrors() map[Port]string {
	out := map[Port]string{}
	for _, p := range h.unservedPorts() {
		out[Port{p.Protocol, p.Port}] = loadBalancerClassPrefix + toHostReason(p.Reason)
	}
	return out
}
