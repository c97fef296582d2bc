// Package forward forwards ports of addresses to backends, on hosts that have no kube-proxy: TCP by tcpproxy, which splices
// and closes each half by itself, and UDP by a socket for each client. It listens on the addresses themselves, so they have to
// be on an interface.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
)

// Port is a port of an address.
type Port struct {
	Protocol corev1.Protocol
	Address  netip.AddrPort
}

func (p Port) String() string { return fmt.Sprintf("%s %s", p.Address, p.Protocol) }

// Counts are what was forwarded, and what was not. Bytes are not counted: counting them would cost the splice.
type Counts struct {
	// Connections were accepted of TCP, Open are those that are now, and Refused those beyond the limit.
	Connections, Open, Refused atomic.Int64
	// DialErrors are backends that could not be reached.
	DialErrors atomic.Int64
	// Sessions are the clients of UDP now, Dropped the packets that no session or backend was there for.
	Sessions, Dropped atomic.Int64
}

// Forwarder forwards ports. Its zero value forwards none.
type Forwarder struct {
	// MaxConnections is how many connections of TCP there are at once; more are refused, before the process has no files
	// left for anything else. 0: any number.
	MaxConnections int64
	// Counts are what it has done.
	Counts Counts

	mu    sync.Mutex
	ports map[Port]listener
}

// listener is a port that is listened on.
type listener interface {
	io.Closer
	// to sets its backends.
	to(backends []netip.AddrPort)
}

// Set forwards these ports to these backends, and no others: what is open stays open, and connections to a backend that is
// not among them any more end when they end. It returns why a port cannot be listened on (*InUseError among others), by port.
func (f *Forwarder) Set(ctx context.Context, want map[Port][]netip.AddrPort) map[Port]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := map[Port]error{}
	for p, l := range f.ports {
		if _, still := want[p]; still {
			continue
		}
		if err := l.Close(); err != nil {
			failed[p] = fmt.Errorf("closing %s: %w", p, err)
		}
		delete(f.ports, p)
	}
	for p, backends := range want {
		l := f.ports[p]
		if l == nil {
			var err error
			if l, err = f.listen(ctx, p); err != nil {
				failed[p] = err
				continue
			}
			if f.ports == nil {
				f.ports = map[Port]listener{}
			}
			f.ports[p] = l
		}
		l.to(backends)
	}
	return failed
}

func (f *Forwarder) listen(ctx context.Context, p Port) (listener, error) {
	switch p.Protocol {
	case corev1.ProtocolTCP:
		return f.listenTCP(ctx, p)
	case corev1.ProtocolUDP:
		return f.listenUDP(ctx, p)
	default:
		return nil, fmt.Errorf("%s: %w", p, errors.ErrUnsupported)
	}
}

// Ports are those that are listened on.
func (f *Forwarder) Ports() map[Port]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[Port]bool{}
	for p := range maps.Keys(f.ports) {
		out[p] = true
	}
	return out
}

// backends are those of a port, taken by turns.
type backends struct {
	all  atomic.Pointer[[]netip.AddrPort]
	next atomic.Uint64
}

func (b *backends) to(all []netip.AddrPort) { b.all.Store(&all) }

// from are all backends, beginning with the next one.
func (b *backends) from() []netip.AddrPort {
	all := b.all.Load()
	if all == nil || len(*all) == 0 {
		return nil
	}
	first := int(b.next.Add(1) % uint64(len(*all)))
	return append(append([]netip.AddrPort{}, (*all)[first:]...), (*all)[:first]...)
}
