//go:build linux

package agent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
)

// proxy forwards the ports of the addresses that the host has, if the host forwards traffic.
type proxy struct {
	*Agent
	*forward.Forwarder

	leases map[types.UID]*v1alpha1.IPLease
	// portsChanged reports whether a lease, a Service, its endpoints or a Node has changed. servedLeases is what the host
	// had when the ports were last set, at updatedAt; needsRetry reports whether some ports could not be set.
	portsChanged atomic.Bool
	servedLeases map[netip.Addr]string
	updatedAt    time.Time
	needsRetry   bool
	// portProblems are the reports on ports from when they were last set; fullPorts tracks the ports that have no room.
	portProblems map[netip.Addr][]hostlb.PortReport
	fullPorts    fullPortTracker
	// mu guards servicesByPort, the Service that each port is forwarded for; metrics use it.
	mu             sync.Mutex
	servicesByPort map[forward.Port]types.NamespacedName
}

// syncPorts forwards the ports that must be forwarded now, and records those that cannot be.
func (p *proxy) syncPorts(ctx context.Context) {
	served := p.state.ServedAddresses()
	if !p.ForwardTraffic || !p.needsPortSync(served) {
		return
	}
	p.servedLeases, p.updatedAt = served, time.Now()
	want := map[forward.Port]forward.Target{}
	reports := map[netip.Addr][]hostlb.PortReport{}
	of := map[forward.Port]types.NamespacedName{}
	nodes := &corev1.NodeList{}
	if p.BackendType == hostlb.NodePortBackends {
		if err := p.Cache.List(ctx, nodes); err != nil {
			p.logOnChange("Nodes", err)
			p.needsRetry = true // it is retried: the change is not forwarded yet
			return
		}
	}
	for address, uid := range p.servedLeases {
		o := p.leases[types.UID(uid)]
		if o == nil {
			continue
		}
		p.addLeasePorts(ctx, o, address, nodes.Items, want, of, reports)
	}
	p.mu.Lock()
	p.servicesByPort = of
	p.mu.Unlock()
	for port, err := range p.SetTargets(ctx, want) {
		p.logOnChange("port "+port.String(), err)
		reports[port.Address.Addr()] = append(reports[port.Address.Addr()], p.portErrorReport(port, err))
	}
	for port := range want {
		if !slices.ContainsFunc(reports[port.Address.Addr()], func(r hostlb.PortReport) bool {
			return r.Protocol == port.Protocol && r.Port == int32(port.Address.Port())
		}) {
			p.logOnChange("port "+port.String(), nil)
		}
	}
	p.needsRetry = len(reports) > 0
	p.portProblems = reports
}

// updatePortReports sets the current reports on ports in the state of the host.
func (p *proxy) updatePortReports(now time.Time) {
	if !p.ForwardTraffic {
		return
	}
	byPort, _ := p.Counts()
	all := map[netip.Addr][]hostlb.PortReport{}
	for address, problems := range p.portProblems {
		all[address] = slices.Clone(problems)
	}
	for port := range p.fullPorts.observeCounts(now, byPort) {
		all[port.Address.Addr()] = append(all[port.Address.Addr()], p.fullPortReport(port))
	}
	for _, reports := range all {
		slices.SortFunc(reports, func(x, y hostlb.PortReport) int {
			return cmp.Or(cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.Port, y.Port), cmp.Compare(x.Reason, y.Reason))
		})
	}
	p.state.SetPortReports(all)
}

// fullPortReport returns the report on a port that has no room for all its clients.
func (p *proxy) fullPortReport(port forward.Port) hostlb.PortReport {
	out := hostlb.PortReport{Protocol: port.Protocol, Port: int32(port.Address.Port()), Reason: v1alpha1.PortFullReason}
	if out.Message = "host " + p.Name + " refuses connections, as the Service has as many open as its share of the files of the host allows; end those that are idle, or raise --open-files"; port.Protocol == corev1.ProtocolUDP {
		out.Message = "host " + p.Name + " ends clients for those that come, as there are as many as it serves at once; raise --udp-sessions or --open-files"
	}
	return out
}

// needsPortSync reports whether the ports must be set: something has changed, or some could not be set and are retried.
func (p *proxy) needsPortSync(served map[netip.Addr]string) bool {
	return p.portsChanged.Swap(false) || !maps.Equal(served, p.servedLeases) || (p.needsRetry && time.Since(p.updatedAt) >= p.Timing.RetryInterval)
}

// addLeasePorts adds the ports of a lease, each with its backends, and reports on those that cannot be served.
func (p *proxy) addLeasePorts(ctx context.Context, o *v1alpha1.IPLease, address netip.Addr, nodes []corev1.Node, want map[forward.Port]forward.Target, of map[forward.Port]types.NamespacedName, reports map[netip.Addr][]hostlb.PortReport) {
	services := p.servicesForLease(ctx, o)
	backends := map[types.UID]map[hostlb.Port][]netip.AddrPort{}
	for uid, s := range services {
		endpoints, err := p.endpointSlicesForService(ctx, s)
		p.logOnChange("endpoints", err)
		backends[uid] = hostlb.BackendsByPort(s, endpoints, nodes, p.BackendType, address.Is6())
	}
	unserved := func(entry *v1alpha1.LeasedPort, why string) {
		reports[address] = append(reports[address], hostlb.PortReport{Protocol: entry.Protocol, Port: entry.Port, Reason: v1alpha1.PortNotSupportedReason, Message: "host " + p.Name + ": " + why})
	}
	for i := range o.Status.Ports {
		entry := &o.Status.Ports[i]
		if entry.Protocol == corev1.ProtocolSCTP {
			unserved(entry, "it forwards TCP and UDP; SCTP needs a host with kube-proxy (--forward=none)")
			continue
		}
		if s := services[entry.UID]; s != nil {
			if why := hostlb.UnreachableReason(s, hostlb.Port{Protocol: entry.Protocol, Number: entry.Port}, nodes, p.BackendType, address.Is6()); why != "" {
				unserved(entry, why)
			}
			port := forward.Port{Protocol: entry.Protocol, Address: netip.AddrPortFrom(address, uint16(entry.Port))}
			of[port] = client.ObjectKeyFromObject(s)
			want[port] = forward.Target{
				Backends:     backends[entry.UID][hostlb.Port{Protocol: entry.Protocol, Number: entry.Port}],
				SourceRanges: hostlb.ClientSourceRanges(s),
				Owner:        of[port].String(),
			}
		}
	}
}

// fullReportPeriod is how long a port is reported to have no room, after it last had none.
const fullReportPeriod = time.Minute

// fullPortTracker tracks the ports that had no room for all their clients: how often that was so far, and when last.
type fullPortTracker struct {
	rejectedCounts map[forward.Port]int64
	lastFullAt     map[forward.Port]time.Time
}

// observeCounts records the counts, and returns the ports that have no room now, or had none within fullReportPeriod.
func (c *fullPortTracker) observeCounts(now time.Time, byPort map[forward.Port]forward.Counts) map[forward.Port]time.Time {
	turned, last := map[forward.Port]int64{}, map[forward.Port]time.Time{}
	for port, counts := range byPort {
		turned[port] = counts.RefusedConnections + counts.DisplacedSessions
		at, ok := c.lastFullAt[port]
		if turned[port] > c.rejectedCounts[port] {
			at, ok = now, true
		}
		if ok && now.Sub(at) < fullReportPeriod {
			last[port] = at
		}
	}
	c.rejectedCounts, c.lastFullAt = turned, last
	return last
}

// portErrorReport returns the report on a port that is not forwarded.
func (p *proxy) portErrorReport(port forward.Port, err error) hostlb.PortReport {
	out := hostlb.PortReport{Protocol: port.Protocol, Port: int32(port.Address.Port()), Reason: v1alpha1.HostErrorReason, Message: "host " + p.Name + ": " + err.Error()}
	var inUse *forward.InUseError
	if errors.As(err, &inUse) {
		if out.Reason = v1alpha1.AddressInUseReason; inUse.Wildcard {
			out.Reason = v1alpha1.PortInUseOnHostReason
		}
	}
	return out
}
