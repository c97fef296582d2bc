package leaseports

import (
	"fmt"
	"slices"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// ofHosts are the reasons that a host gives. Whatever else it writes, no condition is refused for it.
var ofHosts = []string{
	v1alpha1.NoCommonNodeReason, v1alpha1.AddressInUseReason, v1alpha1.ContestedReason, v1alpha1.PortInUseOnHostReason,
	v1alpha1.PortNotSupportedReason, v1alpha1.HostErrorReason,
}

// OnHost is what is known of the address of a lease that hosts show: what its lock says, and who lives.
type OnHost struct {
	// Locked: the address has a lock. Problem says why that cannot be read, empty: it can.
	Locked  bool
	Problem string
	// Holder is who holds it, empty: nobody; Left, who gave the address up, where nobody has asked the wire since.
	Holder, Left string
	// Alive: the holder was heard a short while ago; Silent: it was not for long. Neither: this manager has not listened for
	// long enough.
	Alive, Silent bool
	// Report is what the host says of this lease, nil: nothing.
	Report *record.Report
	// Reached: another host that is not silent reaches the address, so it can ask the wire.
	Reached bool
	// Local: a Service of the lease is to be served by Nodes with an endpoint of its own.
	Local bool
}

// Has reports whether a host that lives says what it does with the address.
func (h *OnHost) Has() bool { return h.Holder != "" && h.Alive && h.Report != nil }

// Announces reports whether a host that lives has announced the address.
func (h *OnHost) Announces() bool { return h.Has() && h.Report.Announced }

// Announced is the condition of that name, which is True for v1alpha1.AnnouncedReason alone; the zero one: nothing new is known.
// Waited: no host has had the address for so long that it is said.
func (h *OnHost) Announced(waited bool) Verdict {
	switch gaveUp := h.Holder == "" && h.Report != nil; {
	case (h.Has() || gaveUp) && h.Report.Reason != "":
		return Verdict{reasonOf(h.Report.Reason), h.Report.Message}
	case h.Announces() && len(h.ports()) > 0:
		var texts []string
		unserved, full := h.unserved(), h.Full()
		for _, p := range unserved {
			texts = append(texts, fmt.Sprintf("%s is not served: %s", Port{p.Protocol, p.Port}, p.Message))
		}
		for _, p := range full {
			texts = append(texts, fmt.Sprintf("%s is full: %s", Port{p.Protocol, p.Port}, p.Message))
		}
		out := Verdict{v1alpha1.AnnouncedReason, fmt.Sprintf("host %s has the address, and %s", h.Holder, strings.Join(texts, "; "))}
		if len(unserved) > 0 {
			out.Reason = reasonOf(unserved[0].Reason)
		}
		return out
	case h.Announces():
		return Verdict{v1alpha1.AnnouncedReason, fmt.Sprintf("host %s has the address", h.Holder)}
	case waited && h.Silent && h.Reached && !h.Local:
		return Verdict{v1alpha1.ContestedReason, fmt.Sprintf("host %s, which has the address, is silent, and no other host takes it. If that host answers for the address still, "+
			"it is cut off from the API server: restore its way there, or stop butler-host-lb on it", h.Holder)}
	case waited:
		return Verdict{v1alpha1.NoHostReason, h.without()}
	}
	return Verdict{}
}

// ports are those of which the host says something.
func (h *OnHost) ports() []record.PortReport {
	if !h.Announces() {
		return nil
	}
	return h.Report.Ports
}

func full(p record.PortReport) bool { return p.Reason == v1alpha1.PortFullReason }

// unserved are the ports that the host does not serve.
func (h *OnHost) unserved() []record.PortReport {
	return slices.DeleteFunc(slices.Clone(h.ports()), full)
}

// Full are the ports that the host serves, and that have no room for all clients.
func (h *OnHost) Full() []record.PortReport {
	return slices.DeleteFunc(slices.Clone(h.ports()), func(p record.PortReport) bool { return !full(p) })
}

// reasonOf is the reason that a host gives, if that is one.
func reasonOf(said string) string {
	if slices.Contains(ofHosts, said) {
		return said
	}
	return v1alpha1.HostErrorReason
}

// without says why no host has the address, and what to do.
func (h *OnHost) without() string {
	switch {
	case h.Problem != "":
		return h.Problem + "; delete that Lease, the hosts make it again"
	case h.Silent:
		return fmt.Sprintf("host %s, which had the address, is silent, and no other one has taken it; start butler-host-lb there again, or on another host of its subnet", h.Holder)
	case h.Holder != "":
		return fmt.Sprintf("host %s has taken the address, and does not say that it shows it; look at the log of butler-host-lb there", h.Holder)
	case h.Local:
		return "no host has the address; butler-host-lb has to run on a Node that has an address of the same subnet, and a ready endpoint of each Service of the lease with externalTrafficPolicy Local"
	}
	return "no host has the address; run butler-host-lb on one that has an address of the same subnet"
}

// Draining is the condition of that name of a lease that is being deleted: what keeps its address. The zero one: no host shows
// it, and none will: it reads the lease after it has taken the lock, and this lock was read after the lease was being deleted.
func (h *OnHost) Draining() Verdict {
	confirming := func(format string, args ...any) Verdict {
		return Verdict{v1alpha1.ConfirmingReason, fmt.Sprintf(format, args...)}
	}
	had := h.Holder
	if had == "" {
		had = h.Left
	}
	switch {
	case h.Problem != "":
		return confirming("%s, so it is not known which host has the address; correct its annotation", h.Problem)
	case !h.Locked || had == "":
		return Verdict{}
	case h.Holder != "" && !h.Silent:
		return confirming("host %s takes the address off", h.Holder)
	case h.Reached:
		return confirming("host %s had the address, and another one asks the wire whether somebody answers for it still", had)
	}
	return Verdict{v1alpha1.HostSilentReason, fmt.Sprintf("host %s had the address and does not say that it is off, and no other host reaches it to ask the wire; start butler-host-lb on a host of its subnet", had)}
}

// Concerns reports whether what is wrong with the address concerns a port.
func (h *OnHost) Concerns(p Port) bool {
	return !h.Announces() || h.Report.Reason != "" || slices.ContainsFunc(h.Report.Ports, func(r record.PortReport) bool { return p == Port{r.Protocol, r.Port} })
}

// Errors are the ports that the host does not serve, with why, as the status of a Service names such.
func (h *OnHost) Errors() map[Port]string {
	out := map[Port]string{}
	for _, p := range h.unserved() {
		out[Port{p.Protocol, p.Port}] = classPrefix + reasonOf(p.Reason)
	}
	return out
}
