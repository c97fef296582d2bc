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

// proxy forwards the ports of the addresses that the host has, where it is to.
type proxy struct {
	*Agent
	*forward.Forwarder

	leases map[types.UID]*v1alpha1.IPLease
	// changed: a Service, its endpoints or a Node did. has is what the host had when the ports were last set, at when; failed,
	// that some could not be.
	changed atomic.Bool
	has     map[netip.Addr]string
	at      time.Time
	failed  bool
	// problems are what the host said of ports when they were last set; crowds, which have no room.
	problems map[netip.Addr][]hostlb.PortReport
	crowds   crowds
	// mu guards of, the Service that each port is forwarded for, for metrics.
	mu sync.Mutex
	of map[forward.Port]types.NamespacedName
}

// set forwards what is to be forwarded now, and notes what cannot be.
func (p *proxy) set(ctx context.Context) {
	has := p.memory.Has()
	if !p.Forward || !p.due(has) {
		return
	}
	p.has, p.at = has, time.Now()
	want := map[forward.Port]forward.Target{}
	reports := map[netip.Addr][]hostlb.PortReport{}
	of := map[forward.Port]types.NamespacedName{}
	nodes := &corev1.NodeList{}
	if p.Via == hostlb.NodePorts {
		if err := p.Cache.List(ctx, nodes); err != nil {
			p.tell("Nodes", err)
			p.failed = true // it is tried again: what has changed is not forwarded yet
			return
		}
	}
	for address, uid := range p.has {
		o := p.leases[types.UID(uid)]
		if o == nil {
			continue
		}
		p.want(ctx, o, address, nodes.Items, want, of, reports)
	}
	p.mu.Lock()
	p.of = of
	p.mu.Unlock()
	for port, err := range p.Set(ctx, want) {
		p.tell("port "+port.String(), err)
		reports[port.Address.Addr()] = append(reports[port.Address.Addr()], p.reportOf(port, err))
	}
	for port := range want {
		if !slices.ContainsFunc(reports[port.Address.Addr()], func(r hostlb.PortReport) bool {
			return r.Protocol == port.Protocol && r.Port == int32(port.Address.Port())
		}) {
			p.tell("port "+port.String(), nil)
		}
	}
	p.failed = len(reports) > 0
	p.problems = reports
}

// report informs the memory of what is wrong with ports now.
func (p *proxy) report(now time.Time) {
	if !p.Forward {
		return
	}
	byPort, _ := p.Counts()
	all := map[netip.Addr][]hostlb.PortReport{}
	for address, problems := range p.problems {
		all[address] = slices.Clone(problems)
	}
	for port := range p.crowds.look(now, byPort) {
		all[port.Address.Addr()] = append(all[port.Address.Addr()], p.crowded(port))
	}
	for _, reports := range all {
		slices.SortFunc(reports, func(x, y hostlb.PortReport) int {
			return cmp.Or(cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.Port, y.Port), cmp.Compare(x.Reason, y.Reason))
		})
	}
	p.memory.Ports(all)
}

// crowded says that a port has no room for all who ask.
func (p *proxy) crowded(port forward.Port) hostlb.PortReport {
	out := hostlb.PortReport{Protocol: port.Protocol, Port: int32(port.Address.Port()), Reason: v1alpha1.PortFullReason}
	if out.Message = "host " + p.Name + " refuses connections, as the Service has as many open as its share of the files of the host allows; end those that are idle, or raise --open-files"; port.Protocol == corev1.ProtocolUDP {
		out.Message = "host " + p.Name + " ends clients for those that come, as there are as many as it serves at once; raise --udp-sessions or --open-files"
	}
	return out
}

// due reports whether the ports are to be set: something has changed, or some could not be and are tried again.
func (p *proxy) due(has map[netip.Addr]string) bool {
	return p.changed.Swap(false) || !maps.Equal(has, p.has) || (p.failed && time.Since(p.at) >= p.Timing.Again)
}

// want adds the ports of a lease, each with its backends.
func (p *proxy) want(ctx context.Context, o *v1alpha1.IPLease, address netip.Addr, nodes []corev1.Node, want map[forward.Port]forward.Target, of map[forward.Port]types.NamespacedName, reports map[netip.Addr][]hostlb.PortReport) {
	services := p.servicesOf(ctx, o)
	backends := map[types.UID]map[hostlb.Port][]netip.AddrPort{}
	for uid, s := range services {
		endpoints, err := p.endpointsOf(ctx, s)
		p.tell("endpoints", err)
		backends[uid] = hostlb.Backends(s, endpoints, nodes, p.Via, address.Is6())
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
			if why := hostlb.Unreachable(s, hostlb.Port{Protocol: entry.Protocol, Number: entry.Port}, nodes, p.Via, address.Is6()); why != "" {
				unserved(entry, why)
			}
			port := forward.Port{Protocol: entry.Protocol, Address: netip.AddrPortFrom(address, uint16(entry.Port))}
			of[port] = client.ObjectKeyFromObject(s)
			want[port] = forward.Target{
				Backends: backends[entry.UID][hostlb.Port{Protocol: entry.Protocol, Number: entry.Port}],
				Sources:  hostlb.Sources(s),
				Owner:    of[port].String(),
			}
		}
	}
}

// fullFor is how long it is said that a port has no room, after it last had none.
const fullFor = time.Minute

// crowds are the ports that had no room for all who asked: how often that was so far, and when last.
type crowds struct {
	turned map[forward.Port]int64
	last   map[forward.Port]time.Time
}

// look takes in what was counted, and returns the ports that have no room now, or had none not long ago.
func (c *crowds) look(now time.Time, byPort map[forward.Port]forward.Counts) map[forward.Port]time.Time {
	turned, last := map[forward.Port]int64{}, map[forward.Port]time.Time{}
	for port, counts := range byPort {
		turned[port] = counts.Refused + counts.Displaced
		at, is := c.last[port]
		if turned[port] > c.turned[port] {
			at, is = now, true
		}
		if is && now.Sub(at) < fullFor {
			last[port] = at
		}
	}
	c.turned, c.last = turned, last
	return last
}

// reportOf says why a port is not forwarded.
func (p *proxy) reportOf(port forward.Port, err error) hostlb.PortReport {
	out := hostlb.PortReport{Protocol: port.Protocol, Port: int32(port.Address.Port()), Reason: v1alpha1.HostErrorReason, Message: "host " + p.Name + ": " + err.Error()}
	var inUse *forward.InUseError
	if errors.As(err, &inUse) {
		if out.Reason = v1alpha1.AddressInUseReason; inUse.Wildcard {
			out.Reason = v1alpha1.PortInUseOnHostReason
		}
	}
	return out
}
