//go:build linux

package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The variables that make a process of this test the forwarder, with the addresses that it forwards from and to.
const fromVariable, toVariable = "FORWARD_FROM", "FORWARD_TO"

// TestKilledProcessResetsConnections checks that a process that is killed in the middle of an answer, and of what it
// sends to a backend, ends neither as if that were the whole, although the kernel closes its sockets. A stream that had
// ended well before arrives.
func TestKilledProcessResetsConnections(t *testing.T) {
	if from := os.Getenv(fromVariable); from != "" {
		forwarder(t, Port{corev1.ProtocolTCP, netip.MustParseAddrPort(from)}, netip.MustParseAddrPort(os.Getenv(toVariable)))
		select {}
	}
	for name, whole := range map[string]bool{"a part": false, "a whole answer": true} {
		t.Run(name, func(t *testing.T) {
			l, err := openTCPListener(Port{corev1.ProtocolTCP, netip.MustParseAddrPort("127.0.0.1:0")})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			p := at(t, corev1.ProtocolTCP, "127.77.0.17")
			process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledProcessResetsConnections$")
			process.Env = append(os.Environ(), fromVariable+"="+p.Address.String(), toVariable+"="+l.Addr().String())
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			client := reach(t, p)
			backend, err := l.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = backend.Close() }()
			for _, c := range []*net.TCPConn{client, backend} {
				_ = c.SetDeadline(time.Now().Add(patience))
			}
			write(t, backend, "answer")
			if whole {
				if err := backend.CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, len("answer"))
			if _, err := io.ReadFull(client, got); err != nil {
				t.Fatal(err)
			}
			if whole {
				if n, err := client.Read(got); !errors.Is(err, io.EOF) {
					t.Errorf("%d, %v after the end", n, err)
				}
			}
			_ = process.Process.Kill()
			_ = process.Wait()
			if _, err := client.Read(got); whole != errors.Is(err, io.EOF) || !whole && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client sees %v", err)
			}
			if _, err := backend.Read(got); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the backend sees %v", err)
			}
		})
	}
}

// reach connects to a port as soon as a process listens on it.
func reach(t *testing.T, p Port) *net.TCPConn {
	t.Helper()
	var c net.Conn
	until(t, func() (ok bool) {
		var err error
		c, err = (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", p.Address.String())
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// TestResetOfAnAddress checks that the connections of an address are ended before SetTargets is called, and that its
// ports may be forwarded again.
func TestResetOfAnAddress(t *testing.T) {
	p, other := at(t, corev1.ProtocolTCP, "127.77.0.18"), at(t, corev1.ProtocolTCP, "127.77.0.19")
	a := backend(t, "a")
	want := map[Port]Target{p: newTarget(a), other: newTarget(a)}
	f := &Forwarder{}
	f.SetTargets(t.Context(), want)
	t.Cleanup(func() { f.SetTargets(context.Background(), nil) })
	ends, stays := reach(t, p), reach(t, other)
	until(t, func() bool { return sockets(f, p) == 2 && sockets(f, other) == 2 })
	f.ResetAddress(p.Address.Addr())
	_ = ends.SetDeadline(time.Now().Add(patience))
	if _, err := ends.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
	f.SetTargets(t.Context(), want)
	if got := sendAndReadAll(t, p, "x"); got != "a: x" {
		t.Errorf("%q", got)
	}
	write(t, stays, "y")
	if c := countsForPort(f, other); c.OpenConnections != 1 {
		t.Errorf("%+v of another address", c)
	}
}
