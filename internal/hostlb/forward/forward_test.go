//go:build linux

package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

const patience = 10 * time.Second

func at(t *testing.T, protocol corev1.Protocol, address string) Port {
	t.Helper()
	a := netip.MustParseAddr(address)
	// The port is free now, and stays free: nothing else takes ports of this address.
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		t.Skipf("%s cannot be listened on here: %v", address, err)
	}
	defer func() { _ = l.Close() }()
	return Port{protocol, l.Addr().(*net.TCPAddr).AddrPort()}
}

// forwarder forwards one port, and expects that this succeeds.
func forwarder(t *testing.T, p Port, backends ...netip.AddrPort) *Forwarder {
	t.Helper()
	f := &Forwarder{}
	begin(t, f, p, backends...)
	return f
}

// newTarget returns a target for all clients.
func newTarget(backends ...netip.AddrPort) Target { return Target{Backends: backends} }

func begin(t *testing.T, f *Forwarder, p Port, backends ...netip.AddrPort) {
	t.Helper()
	if failed := f.SetTargets(t.Context(), map[Port]Target{p: newTarget(backends...)}); len(failed) > 0 {
		t.Fatal(failed)
	}
	t.Cleanup(func() { f.SetTargets(context.Background(), nil) })
}

// backend starts a TCP server that sends back what it was sent, after its name, when the client has ended.
func backend(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l, err := openTCPListener(Port{corev1.ProtocolTCP, netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				text, err := io.ReadAll(c) // until the client closes its half
				if err == nil {
					_, _ = io.WriteString(c, name+": "+string(text))
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func connect(t *testing.T, to Port) (net.Conn, error) {
	t.Helper()
	return (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", to.Address.String())
}

// refused reports whether a connection is reset, now or when it is read from.
func refused(t *testing.T, to Port) bool {
	t.Helper()
	c, err := connect(t, to)
	if err == nil {
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	return errors.Is(err, syscall.ECONNRESET)
}

// sendAndReadAll sends a text, closes that half, and returns what comes back.
func sendAndReadAll(t *testing.T, to Port, text string) string {
	t.Helper()
	c, err := connect(t, to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	back, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(back)
}

// TestTCP checks that a client may close its half and is answered, that backends take turns, and that a backend that
// does not answer is skipped.
func TestTCP(t *testing.T) {
	p, a, b := at(t, corev1.ProtocolTCP, "127.77.0.1"), backend(t, "a"), backend(t, "b")
	dead := at(t, corev1.ProtocolTCP, "127.77.0.2").Address
	f := forwarder(t, p, a, b, dead)
	got := map[string]int{}
	for range 6 {
		got[sendAndReadAll(t, p, "hello")]++
	}
	if got["a: hello"]+got["b: hello"] != 6 || got["a: hello"] < 2 || got["b: hello"] < 2 {
		t.Errorf("%v", got)
	}
	if _, c := f.Counts(); c.Connections != 6 || c.DialErrors < 2 {
		t.Errorf("%+v", c)
	}
	// The next connection has another backend; without a backend, the connection is closed.
	f.SetTargets(t.Context(), map[Port]Target{p: newTarget(b)})
	if got := sendAndReadAll(t, p, "x"); got != "b: x" {
		t.Errorf("%q", got)
	}
	f.SetTargets(t.Context(), map[Port]Target{p: {}})
	if !refused(t, p) {
		t.Error("it is not refused, and there is no backend")
	}
	f.SetTargets(t.Context(), nil)
	if c, err := connect(t, p); err == nil {
		_ = c.Close()
		t.Error("it is listened on still")
	}
}

// TestAddressOrPortInUse checks that an address that is in use is distinguished from a port that is: then no other
// address helps.
func TestAddressOrPortInUse(t *testing.T) {
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		all, port := open(t, Port{protocol, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)})
		p := Port{protocol, netip.AddrPortFrom(netip.MustParseAddr("127.77.0.7"), port)}
		var in *InUseError
		failed := (&Forwarder{}).SetTargets(t.Context(), map[Port]Target{p: {}})
		if err := failed[p]; !errors.As(err, &in) || !in.Wildcard || !strings.Contains(err.Error(), "stop it, or choose another port") {
			t.Errorf("%s on all addresses: %v", protocol, failed)
		}
		forwards := func(p Port) { // W29
			f := &Forwarder{}
			if failed := f.SetTargets(t.Context(), map[Port]Target{p: {}}); len(failed) > 0 {
				t.Errorf("%s: %v", protocol, failed)
			}
			f.SetTargets(t.Context(), nil)
		}
		forwards(at(t, protocol, "127.77.0.7")) // another port
		_ = all.Close()
		forwards(p) // it is stopped
		held, _ := open(t, p)
		failed = (&Forwarder{}).SetTargets(t.Context(), map[Port]Target{p: {}})
		if err := failed[p]; !errors.As(err, &in) || in.Wildcard || !strings.Contains(err.Error(), "a process of the host listens on it") {
			t.Errorf("%s: %v", protocol, failed)
		}
		_ = held.Close()
	}
	odd := Port{corev1.ProtocolSCTP, netip.MustParseAddrPort("127.0.0.1:1")}
	if failed := (&Forwarder{}).SetTargets(t.Context(), map[Port]Target{odd: {}}); !errors.Is(failed[odd], errors.ErrUnsupported) {
		t.Errorf("SCTP: %v", failed)
	}
	gone := Port{corev1.ProtocolTCP, netip.MustParseAddrPort("192.0.2.1:80")}
	if failed := (&Forwarder{}).SetTargets(t.Context(), map[Port]Target{gone: {}}); failed[gone] == nil || errors.As(failed[gone], new(*InUseError)) {
		t.Errorf("an address that is not here: %v", failed)
	}
}

func open(t *testing.T, p Port) (held io.Closer, port uint16) {
	t.Helper()
	if p.Protocol == corev1.ProtocolUDP {
		c, err := openUDPConn(p)
		if err != nil {
			t.Fatal(err)
		}
		return c, c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	}
	l, err := openTCPListener(p)
	if err != nil {
		t.Fatal(err)
	}
	return l, l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// echo starts a UDP server that sends back what it is sent, after its name.
func echo(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buffer := make([]byte, maxPacketSize)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(append([]byte(name+": "), buffer[:n]...), from)
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func client(t *testing.T, to Port) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to.Address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func ask(t *testing.T, c *net.UDPConn, text string) string {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return string(buffer[:n])
}

// TestUDP checks that a client stays with its backend, and gets its answers from the address that it has sent to, and
// that another client gets another backend.
func TestUDP(t *testing.T) {
	p := at(t, corev1.ProtocolUDP, "127.77.0.4")
	a, b := echo(t, "a"), echo(t, "b")
	f := forwarder(t, p, a, b)
	first, second := client(t, p), client(t, p)
	was, other := ask(t, first, "1"), ask(t, second, "1")
	if was == other {
		t.Errorf("both get %q", was)
	}
	for range 3 {
		if got := ask(t, first, "1"); got != was {
			t.Errorf("%q, was %q", got, was)
		}
	}
	if _, c := f.Counts(); c.Sessions != 2 {
		t.Errorf("%+v", c)
	}
	now := ask(t, first, "1")
	// Its backend goes: the other one answers.
	left := a
	if now == "a: 1" {
		left = b
	}
	f.SetTargets(t.Context(), map[Port]Target{p: newTarget(left)})
	if got := ask(t, first, "1"); got == now {
		t.Errorf("%q, and that backend is gone", got)
	}
	f.SetTargets(t.Context(), nil)
	if _, c := f.Counts(); c.Sessions != 0 {
		t.Errorf("%+v of a port that is closed", c)
	}
}

// TestUDPDrops checks that packets to a port without a backend are dropped and counted.
func TestUDPDrops(t *testing.T) {
	p := at(t, corev1.ProtocolUDP, "127.77.0.5")
	f := &Forwarder{}
	begin(t, f, p)
	write(t, client(t, p), "1")
	until(t, func() bool { return countsForPort(f, p).DroppedPackets == 1 })
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// countsForPort returns the counts of a port.
func countsForPort(f *Forwarder, p Port) Counts {
	byPort, _ := f.Counts()
	return byPort[p]
}

func until(t *testing.T, condition func() bool) {
	t.Helper()
	NewWithT(t).Eventually(condition).WithTimeout(patience).WithPolling(time.Millisecond).Should(BeTrue())
}
