//go:build linux

// Package forward forwards ports of addresses to backends, on hosts that have no kube-proxy: TCP with splice, where
// each direction ends by itself, and UDP with a socket for each client. It listens on the addresses themselves, so they
// must be on an interface.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Port is a port of an address.
type Port struct {
	Protocol corev1.Protocol
	Address  netip.AddrPort
}

func (p Port) String() string { return fmt.Sprintf("%s %s", p.Address, p.Protocol) }

// Target is what a port is forwarded to, and for which clients.
type Target struct {
	Backends []netip.AddrPort
	// SourceRanges are the networks of the clients that are served. Nil allows all clients; an empty list allows none.
	SourceRanges []netip.Prefix
	// Owner is the name of what the port is forwarded for: each owner has a share of the files.
	Owner string
}

// allowsClient reports whether a client may be served.
func (t *Target) allowsClient(client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	return t.SourceRanges == nil || slices.ContainsFunc(t.SourceRanges, func(p netip.Prefix) bool { return p.Contains(client) })
}

// Forwarder forwards ports. Its zero value forwards none, and uses as many files as there are.
type Forwarder struct {
	// MaxFiles is how many files connections and clients may use at once, see FileLimit: a TCP connection uses six, a UDP
	// client one. Beyond that they are refused, before the process has no files left for anything else. One half of
	// MaxFiles is shared equally among the owners of ports, so that no owner takes what another one needs; the other half
	// is served first come, first served. 0 means no limit.
	MaxFiles int64
	// MaxUDPSessions is how many clients a UDP port has at once; 0 means 4096. Another client displaces the one that
	// would be the next to end.
	MaxUDPSessions int
	// UDPIdleTimeout is how long a UDP client is remembered that sends nothing and is sent nothing; 0 means 90 s.
	UDPIdleTimeout time.Duration

	// now is set by tests.
	now func() time.Time

	files fileBudget

	mu    sync.Mutex
	ports map[Port]portListener
	// resetPorts are the ports that ResetAddress has reset, and SetTargets has not closed yet.
	resetPorts map[Port]bool
	// closedCounts are the counts of ports that are not forwarded any more.
	closedCounts Counts
}

// portListener listens on a port.
type portListener interface {
	// Close closes the port and everything that is open on it: nothing of it is left when it returns.
	io.Closer
	// resetConnections ends the port as Close does, and waits for nothing. It may be called before Close.
	resetConnections()
	// updateTarget sets the target of the port, and ends what is open for clients that are not served any more.
	updateTarget(t Target)
	counts() Counts
	owner() string
}

// SetTargets forwards these ports to these targets, and no others. It ends the connections of a port that is not among
// them, or that has another owner now. The connections of the other ports stay open, even if their backend is not among
// the backends any more; UDP clients get another backend. The connections of clients that are not served any more are
// ended too. SetTargets returns why a port cannot be listened on (*InUseError among others), by port.
func (f *Forwarder) SetTargets(ctx context.Context, want map[Port]Target) map[Port]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := map[Port]error{}
	for p, l := range f.ports {
		if target, still := want[p]; still && !f.resetPorts[p] && target.Owner == l.owner() {
			continue
		}
		if err := l.Close(); err != nil {
			failed[p] = fmt.Errorf("closing %s: %w", p, err)
		}
		f.closedCounts.add(l.counts())
		delete(f.ports, p)
	}
	clear(f.resetPorts)
	owners := map[string]bool{}
	for _, target := range want {
		owners[target.Owner] = true
	}
	f.files.setOwnerCount(len(owners))
	for p, target := range want {
		l := f.ports[p]
		if l == nil {
			var err error
			if l, err = f.listenPort(ctx, p, target); err != nil {
				failed[p] = err
				continue
			}
			if f.ports == nil {
				f.ports = map[Port]portListener{}
			}
			f.ports[p] = l
		}
		l.updateTarget(target)
	}
	return failed
}

// ResetAddress resets the ports of an address, and everything that is open on them. It is called just before the
// address is taken off its interface: nothing can be sent from the address after that, and a client that only receives
// would wait for ever. It waits for nothing. SetTargets forwards the ports again.
func (f *Forwarder) ResetAddress(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p, l := range f.ports {
		if p.Address.Addr() != a {
			continue
		}
		l.resetConnections()
		if f.resetPorts == nil {
			f.resetPorts = map[Port]bool{}
		}
		f.resetPorts[p] = true
	}
}

func (f *Forwarder) listenPort(ctx context.Context, p Port, t Target) (portListener, error) {
	switch p.Protocol {
	case corev1.ProtocolTCP:
		return f.listenTCP(ctx, p, t)
	case corev1.ProtocolUDP:
		return f.listenUDP(ctx, p, t)
	default:
		return nil, fmt.Errorf("%s: %w", p, errors.ErrUnsupported)
	}
}

// roundRobinTarget is the target of a port, whose backends take turns.
type roundRobinTarget struct {
	current   atomic.Pointer[Target]
	nextIndex atomic.Uint64
}

func (t *roundRobinTarget) setTarget(target Target) { t.current.Store(&target) }

// owner returns the owner of the port. It is the same for as long as the port is forwarded.
func (t *roundRobinTarget) owner() string {
	if current := t.current.Load(); current != nil {
		return current.Owner
	}
	return ""
}

// allowsClient reports whether a client is served.
func (t *roundRobinTarget) allowsClient(client netip.Addr) bool {
	current := t.current.Load()
	return current != nil && current.allowsClient(client)
}

// rotatedBackends yields all backends, beginning with the next one, each with the number of those that follow it.
func (t *roundRobinTarget) rotatedBackends() iter.Seq2[int, netip.AddrPort] {
	return func(yield func(int, netip.AddrPort) bool) {
		current := t.current.Load()
		if current == nil || len(current.Backends) == 0 {
			return
		}
		all := current.Backends
		n := len(all)
		first := int(t.nextIndex.Add(1) % uint64(n))
		for i := range n {
			if !yield(n-1-i, all[(first+i)%n]) {
				return
			}
		}
	}
}
