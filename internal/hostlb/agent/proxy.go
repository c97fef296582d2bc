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
	p.handOver(ctx, want, of)
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
	for _, all := range reports {
		slices.SortFunc(all, func(x, y hostlb.PortReport) int {
			return cmp.Or(cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.Port, y.Port))
		})
	}
	p.failed = len(reports) > 0
	p.memory.Ports(reports)
}

// due reports whether the ports are to be set: something has changed, or some could not be and are tried again.
func (p *proxy) due(has map[netip.Addr]string) bool {
	return p.changed.Swap(false) || !maps.Equal(has, p.has) || (p.failed && time.Since(p.at) >= p.Timing.Again)
}

// handOver ends the connections of ports that are another Service's now.
func (p *proxy) handOver(ctx context.Context, want map[forward.Port]forward.Target, of map[forward.Port]types.NamespacedName) {
	p.mu.Lock()
	was := p.of
	p.of = of
	p.mu.Unlock()
	stays := maps.Clone(want)
	maps.DeleteFunc(stays, func(port forward.Port, _ forward.Target) bool {
		before, is := was[port]
		return is && before != of[port]
	})
	if len(stays) < len(want) {
		p.Set(ctx, stays) // what fails is told by the next one
	}
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
	for i := range o.Status.Ports {
		entry := &o.Status.Ports[i]
		if entry.Protocol == corev1.ProtocolSCTP {
			reports[address] = append(reports[address], hostlb.PortReport{
				Protocol: entry.Protocol, Port: entry.Port, Reason: v1alpha1.PortNotSupportedReason,
				Message: "host " + p.Name + " forwards TCP and UDP; SCTP needs a host with kube-proxy (--forward none)",
			})
			continue
		}
		if services[entry.UID] != nil {
			port := forward.Port{Protocol: entry.Protocol, Address: netip.AddrPortFrom(address, uint16(entry.Port))}
			of[port] = client.ObjectKeyFromObject(services[entry.UID])
			want[port] = forward.Target{
				Backends: backends[entry.UID][hostlb.Port{Protocol: entry.Protocol, Number: entry.Port}],
				Sources:  hostlb.Sources(services[entry.UID]),
			}
		}
	}
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
