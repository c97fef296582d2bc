//go:build linux

// Package wire probes which machine of a wire, a layer-2 segment, answers for an address, announces addresses of this
// host, and receives the claims of other machines: by ARP for IPv4, as in RFC 5227, and by neighbour discovery for
// IPv6.
package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// probeCount is how many packets a probe sends; sendInterval is the interval between them, and between announcements.
	probeCount   = 3
	sendInterval = 200 * time.Millisecond
	// maxQueuedClaims is how many claims are queued; more are dropped, as a machine repeats its claims.
	maxQueuedClaims = 64
)

// Claim reports that a machine answers for an address.
type Claim struct {
	Address netip.Addr
	MAC     net.HardwareAddr
	// IsProbe reports whether the machine only asks for the address, and is about to use it. The machine that has the
	// address still has it.
	IsProbe bool
}

// familyConn sends and receives for addresses of one family.
type familyConn interface {
	sendProbe(a netip.Addr) error
	sendAnnouncement(a netip.Addr) error
	// readClaim returns the next claim, or an error when the connection is closed.
	readClaim() (Claim, error)
	Close() error
}

// Conn is the connection to the wire of one interface.
type Conn struct {
	netInterface *net.Interface
	isManaged    func(netip.Addr) bool
	isOwnMAC     func(net.HardwareAddr) bool
	claims       chan Claim
	done         chan struct{}

	mu      sync.Mutex
	conns   map[bool]familyConn // the key reports whether it is for IPv6
	waiters map[netip.Addr][]chan net.HardwareAddr
	readers sync.WaitGroup
}

// OpenInterface listens on the wire of an interface for machines that claim an address for which isManaged returns true.
// Claims by a MAC for which own returns true, of any interface of the host, are ignored. It needs the right to raw
// sockets (CAP_NET_RAW). IPv6 begins once the interface has a link-local address.
func OpenInterface(name string, isManaged func(netip.Addr) bool, own func(net.HardwareAddr) bool) (*Conn, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("finding the interface %s: %w", name, err)
	}
	w := &Conn{netInterface: ifi, isManaged: isManaged, isOwnMAC: own, conns: map[bool]familyConn{}, claims: make(chan Claim, maxQueuedClaims), done: make(chan struct{}), waiters: map[netip.Addr][]chan net.HardwareAddr{}}
	if _, err := w.connForFamily(false); err != nil {
		return nil, err
	}
	_, _ = w.connForFamily(true) // it is opened again when it is needed, and returns its error then
	return w, nil
}

// connForFamily returns the connection for a family, and opens it if it is not open yet.
func (cn *Conn) connForFamily(isIPv6 bool) (familyConn, error) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	if f := cn.conns[isIPv6]; f != nil {
		return f, nil
	}
	select {
	case <-cn.done:
		return nil, net.ErrClosed
	default:
	}
	f, err := cn.openFamily(isIPv6)
	if err != nil {
		return nil, err
	}
	cn.conns[isIPv6] = f
	cn.readers.Go(func() { cn.receiveClaims(f) })
	return f, nil
}

func (cn *Conn) openFamily(isIPv6 bool) (familyConn, error) {
	if isIPv6 {
		f, err := openNDP(cn.netInterface)
		if err != nil {
			return nil, fmt.Errorf("listening for neighbours on %s: %w", cn.netInterface.Name, err)
		}
		return f, nil
	}
	f, err := openARP(cn.netInterface)
	if err != nil {
		return nil, fmt.Errorf("listening for ARP on %s: %w", cn.netInterface.Name, err)
	}
	return f, nil
}

// Close closes the connections of both families, and the channel of claims.
func (cn *Conn) Close() error {
	cn.mu.Lock()
	close(cn.done)
	var errs []error
	for _, f := range cn.conns {
		errs = append(errs, f.Close())
	}
	cn.mu.Unlock()
	cn.readers.Wait()
	close(cn.claims)
	return errors.Join(errs...)
}

// Claims returns the channel of claims by other machines of addresses of this host. Claims that are not received in
// time are dropped. Close closes the channel.
func (cn *Conn) Claims() <-chan Claim { return cn.claims }

// ProbeAddress asks three times which machine answers for an address, 200 ms apart, and returns the MAC of the first
// that does, or nil if none does. It takes 600 ms where none does.
func (cn *Conn) ProbeAddress(ctx context.Context, a netip.Addr) (net.HardwareAddr, error) {
	f, err := cn.connForFamily(a.Is6())
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", a, err)
	}
	answers := make(chan net.HardwareAddr, 1)
	cn.mu.Lock()
	cn.waiters[a] = append(cn.waiters[a], answers)
	cn.mu.Unlock()
	defer cn.removeWaiter(a, answers)
	for range probeCount {
		if err := f.sendProbe(a); err != nil {
			return nil, fmt.Errorf("asking for %s: %w", a, err)
		}
		select {
		case mac := <-answers:
			return mac, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("asking for %s: %w", a, ctx.Err())
		case <-time.After(sendInterval):
		}
	}
	return nil, nil
}

// removeWaiter removes the channel of a probe.
func (cn *Conn) removeWaiter(a netip.Addr, answers chan net.HardwareAddr) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	all := cn.waiters[a]
	for i, c := range all {
		if c == answers {
			all = append(all[:i], all[i+1:]...)
			break
		}
	}
	if cn.waiters[a] = all; len(all) == 0 {
		delete(cn.waiters, a)
	}
}

// AnnounceAddress announces, that many times and 200 ms apart, that this host answers for an address.
func (cn *Conn) AnnounceAddress(ctx context.Context, a netip.Addr, times int) error {
	f, err := cn.connForFamily(a.Is6())
	if err != nil {
		return fmt.Errorf("announcing %s: %w", a, err)
	}
	for i := range times {
		if err := f.sendAnnouncement(a); err != nil {
			return fmt.Errorf("announcing %s: %w", a, err)
		}
		if i == times-1 {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("announcing %s: %w", a, ctx.Err())
		case <-time.After(sendInterval):
		}
	}
	return nil
}

// receiveClaims receives the claims of one family, until its connection is closed.
func (cn *Conn) receiveClaims(f familyConn) {
	for {
		c, err := f.readClaim()
		if err != nil {
			select { // an error of one packet, or of an interface that is down
			case <-cn.done:
				return
			case <-time.After(sendInterval):
			}
			continue
		}
		if bytes.Equal(c.MAC, cn.netInterface.HardwareAddr) || cn.isOwnMAC(c.MAC) {
			continue // our own packet
		}
		managed := cn.isManaged(c.Address)
		cn.mu.Lock()
		for _, answers := range cn.waiters[c.Address] {
			if c.IsProbe && managed {
				break // a machine that asks for an address of this host does not have it
			}
			select {
			case answers <- c.MAC:
			default: // it has one already
			}
		}
		cn.mu.Unlock()
		if !managed {
			continue
		}
		select {
		case cn.claims <- c:
		default:
		}
	}
}
