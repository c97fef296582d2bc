//go:build linux

package forward

import (
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func targetForSources(text string, backends ...netip.AddrPort) Target {
	return Target{Backends: backends, SourceRanges: []netip.Prefix{netip.MustParsePrefix(text)}}
}

// TestSourcesTCP checks that a client that the port does not serve is refused before it reaches a backend, and that
// connections end when the port does not serve their clients any more. Clients are in 127.0.0.0/8 here.
func TestSourcesTCP(t *testing.T) { // H27
	p, a := at(t, corev1.ProtocolTCP, "127.77.0.15"), backend(t, "a")
	f := forwarder(t, p)
	f.SetTargets(t.Context(), map[Port]Target{p: targetForSources("192.0.2.0/24", a)})
	if !refused(t, p) {
		t.Error("a client of another network is served")
	}
	if c := countsForPort(f, p); c != (Counts{Denied: 1}) {
		t.Errorf("%+v", c)
	}
	f.SetTargets(t.Context(), map[Port]Target{p: {Backends: []netip.AddrPort{a}, SourceRanges: []netip.Prefix{}}})
	if !refused(t, p) {
		t.Error("a client is served where none is to be")
	}
	f.SetTargets(t.Context(), map[Port]Target{p: targetForSources("127.0.0.0/8", a)})
	if got := sendAndReadAll(t, p, "x"); got != "a: x" {
		t.Errorf("%q", got)
	}
	open, err := connect(t, p)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	_ = open.SetDeadline(time.Now().Add(patience))
	write(t, open, "hel")
	until(t, func() bool { return sockets(f, p) == 2 })
	f.SetTargets(t.Context(), map[Port]Target{p: targetForSources("192.0.2.0/24", a)})
	if got, err := io.ReadAll(open); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q, %v: it goes on", got, err)
	}
	until(t, func() bool { return countsForPort(f, p).OpenConnections == 0 })
}

// TestSourcesUDP checks the same for UDP: no packet of a client that is not served is forwarded, not even in an
// existing session.
func TestSourcesUDP(t *testing.T) {
	p, a := at(t, corev1.ProtocolUDP, "127.77.0.16"), echo(t, "a")
	f := forwarder(t, p)
	f.SetTargets(t.Context(), map[Port]Target{p: targetForSources("127.0.0.0/8", a)})
	c := client(t, p)
	if got := ask(t, c, "1"); got != "a: 1" {
		t.Errorf("%q", got)
	}
	f.SetTargets(t.Context(), map[Port]Target{p: targetForSources("192.0.2.0/24", a)})
	if got := countsForPort(f, p).Sessions; got != 0 {
		t.Errorf("%d sessions of a client that is not served any more", got)
	}
	write(t, c, "2")
	until(t, func() bool { return countsForPort(f, p) == Counts{Denied: 1} })
}
