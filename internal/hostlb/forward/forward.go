//go:build linux

// Package forward forwards ports of addresses to backends, on hosts that have no kube-proxy: TCP by splicing, each half ended by
// itself, and UDP by a socket for each client. It listens on the addresses themselves, so they have to be on an interface.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
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

// Target is what a port is forwarded to, and for whom.
type Target struct {
	Backends []netip.AddrPort
	// Sources are the networks of the clients that are served. Nil: all are; none: no client is.
	Sources []netip.Prefix
	// Owner is whom the port is forwarded for: each owner has a share of the files.
	Owner string
}

// To is a target for all clients.
func To(backends ...netip.AddrPort) Target { return Target{Backends: backends} }

// serves reports whether a client may be served.
func (t *Target) serves(client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	return t.Sources == nil || slices.ContainsFunc(t.Sources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// Forwarder forwards ports. Its zero value forwards none, and uses as many files as there are.
type Forwarder struct {
	// MaxFiles is how many files connections and clients may use at once, see FileLimit: a connection of TCP six, a client of
	// UDP one. More are refused, before the process has no files left for anything else. Half of them is shared equally among
	// the owners of ports, so that no one takes what another one needs; the rest is whose comes first. 0: any number.
	MaxFiles int64
	// MaxSessions is how many clients a port of UDP has at once: of more, the one ends that would be the next to end (0: 4096).
	MaxSessions int
	// Idle is how long a client of UDP is remembered that sends nothing and is sent nothing (0: 90 s).
	Idle time.Duration

	// now: for tests.
	now func() time.Time

	files files

	mu    sync.Mutex
	ports map[Port]listener
	// ended are the ports that Reset has ended, and Set has not closed yet.
	ended map[Port]bool
	// gone is what was done for ports that are not forwarded any more.
	gone Counts
}

// listener is a port that is listened on.
type listener interface {
	// Close ends it, and all that is open of it: nothing of it is left when it returns.
	io.Closer
	// reset ends it, as Close does, and waits for nothing. It may be called before Close.
	reset()
	// to sets what it is forwarded to, and ends what is open of clients that are not served any more.
	to(t Target)
	counts() Counts
	owner() string
}

// Set forwards these ports to these targets, and no others: connections of a port that is not among them, or that has
// another owner now, are ended. Those of a port that is stay open, though their backend is not among its backends any more; clients of UDP get another one. Connections
// of clients that are not served any more are ended too. It returns why a port cannot be listened on (*InUseError among others),
// by port.
func (f *Forwarder) Set(ctx context.Context, want map[Port]Target) map[Port]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := map[Port]error{}
	for p, l := range f.ports {
		if is, still := want[p]; still && !f.ended[p] && is.Owner == l.owner() {
			continue
		}
		if err := l.Close(); err != nil {
			failed[p] = fmt.Errorf("closing %s: %w", p, err)
		}
		f.gone.add(l.counts())
		delete(f.ports, p)
	}
	clear(f.ended)
	owners := map[string]bool{}
	for _, target := range want {
		owners[target.Owner] = true
	}
	f.files.share(len(owners))
	for p, target := range want {
		l := f.ports[p]
		if l == nil {
			var err error
			if l, err = f.listen(ctx, p, target); err != nil {
				failed[p] = err
				continue
			}
			if f.ports == nil {
				f.ports = map[Port]listener{}
			}
			f.ports[p] = l
		}
		l.to(target)
	}
	return failed
}

// Reset ends what is open of the ports of an address, and those: it is called just before the address is taken off, as nothing can
// be sent from it after that, and a client that only receives would wait for ever. It waits for nothing. Set forwards them again.
func (f *Forwarder) Reset(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p, l := range f.ports {
		if p.Address.Addr() != a {
			continue
		}
		l.reset()
		if f.ended == nil {
			f.ended = map[Port]bool{}
		}
		f.ended[p] = true
	}
}

func (f *Forwarder) listen(ctx context.Context, p Port, t Target) (listener, error) {
	switch p.Protocol {
	case corev1.ProtocolTCP:
		return f.listenTCP(ctx, p, t)
	case corev1.ProtocolUDP:
		return f.listenUDP(ctx, p, t)
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

// target is that of a port, whose backends are taken by turns.
type target struct {
	is   atomic.Pointer[Target]
	next atomic.Uint64
}

func (t *target) set(is Target) { t.is.Store(&is) }

// owner is whom the port is forwarded for. It is the same for as long as the port is.
func (t *target) owner() string {
	if is := t.is.Load(); is != nil {
		return is.Owner
	}
	return ""
}

// serves reports whether a client is served.
func (t *target) serves(client netip.Addr) bool {
	is := t.is.Load()
	return is != nil && is.serves(client)
}

// turn are all backends, beginning with the next one, with how many are left after each.
func (t *target) turn() iter.Seq2[int, netip.AddrPort] {
	return func(yield func(int, netip.AddrPort) bool) {
		is := t.is.Load()
		if is == nil || len(is.Backends) == 0 {
			return
		}
		all := is.Backends
		n := len(all)
		first := int(t.next.Add(1) % uint64(n))
		for i := range n {
			if !yield(n-1-i, all[(first+i)%n]) {
				return
			}
		}
	}
}
