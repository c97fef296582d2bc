//go:build linux

package forward

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// InUseError means that a port of an address is already listened on.
type InUseError struct {
	Port Port
	// Wildcard reports whether a process listens on the port on all addresses of the host, so that no other address would
	// help. Otherwise a process listens on this address.
	Wildcard bool
}

func (e *InUseError) Error() string {
	if e.Wildcard {
		return fmt.Sprintf("%s is in use: a process of the host listens on port %d of all its addresses; stop it, or choose another port", e.Port, e.Port.Address.Port())
	}
	return fmt.Sprintf("%s is in use: a process of the host listens on it", e.Port)
}

// wrapInUseError distinguishes an address that is in use from a port that is, by opening the port on a loopback address
// that no process has a reason to listen on. Any other error is only wrapped.
func wrapInUseError(p Port, err error, open func(Port) error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listening on %s: %w", p, err)
	}
	probe := Port{p.Protocol, netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), p.Address.Port())}
	if p.Address.Addr().Is6() {
		probe.Address = netip.AddrPortFrom(netip.IPv6Loopback(), p.Address.Port())
	}
	return &InUseError{Port: p, Wildcard: errors.Is(open(probe), syscall.EADDRINUSE)}
}

// networkName returns the name that package net has for a protocol and the family of an address.
func networkName(protocol corev1.Protocol, a netip.Addr) string {
	out := map[corev1.Protocol]string{corev1.ProtocolTCP: "tcp", corev1.ProtocolUDP: "udp"}[protocol]
	if a.Is6() {
		return out + "6"
	}
	return out + "4"
}
