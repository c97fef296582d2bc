//go:build linux

package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestDialTime checks that a client waits ten seconds, however many backends do not answer, and two seconds for one of
// them.
func TestDialTime(t *testing.T) {
	silent := func(ctx context.Context, _ netip.AddrPort) error { <-ctx.Done(); return ctx.Err() }
	b := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 80) }
	for name, test := range map[string]struct {
		backends   []netip.AddrPort
		answers    netip.AddrPort
		wantAfter  time.Duration
		wantErrors int64
		want       error
	}{
		"no backend":             {wantErrors: 1, want: errNoBackend},
		"one, silent":            {backends: []netip.AddrPort{b(1)}, wantAfter: dialTimeout, wantErrors: 1, want: context.DeadlineExceeded},
		"one answers":            {backends: []netip.AddrPort{b(1), b(2)}, answers: b(2)},
		"one is silent":          {backends: []netip.AddrPort{b(1), b(2)}, answers: b(1), wantAfter: backendDialTimeout, wantErrors: 1},
		"the last has the rest":  {backends: []netip.AddrPort{b(1), b(2)}, wantAfter: dialTimeout, wantErrors: 2, want: context.DeadlineExceeded},
		"more than time is for":  {backends: []netip.AddrPort{b(1), b(2), b(3), b(4), b(5), b(6), b(7), b(8)}, wantAfter: dialTimeout, wantErrors: 5, want: context.DeadlineExceeded},
		"many, and the last one": {backends: []netip.AddrPort{b(1), b(2), b(3), b(4)}, answers: b(1), wantAfter: 3 * backendDialTimeout, wantErrors: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &tcpPort{}
				p.updateTarget(newTarget(test.backends...)) // the second one is tried first
				begun := time.Now()
				err := p.tryBackends(t.Context(), func(ctx context.Context, b netip.AddrPort) error {
					if b == test.answers {
						return nil
					}
					return silent(ctx, b)
				})
				if !errors.Is(err, test.want) || time.Since(begun) != test.wantAfter || p.dialErrors.Load() != test.wantErrors {
					t.Errorf("%v after %v, %d errors", err, time.Since(begun), p.dialErrors.Load())
				}
			})
		})
	}
	// A port that is closed does not wait, and its backends are not at fault.
	p := &tcpPort{}
	p.updateTarget(newTarget(b(1), b(2)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.tryBackends(ctx, silent); !errors.Is(err, context.Canceled) || p.dialErrors.Load() != 0 {
		t.Errorf("%v, %d errors", err, p.dialErrors.Load())
	}
}

// TestResetIsPassedOn checks that a reset is passed on as a reset: so a whole answer can be distinguished from a part.
func TestResetIsPassedOn(t *testing.T) {
	l, err := openTCPListener(Port{corev1.ProtocolTCP, netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := at(t, corev1.ProtocolTCP, "127.77.0.14")
	f := forwarder(t, p, l.Addr().(*net.TCPAddr).AddrPort())
	for name, end := range map[string]func(client, backend *net.TCPConn) (sees *net.TCPConn){
		"by the backend": func(client, backend *net.TCPConn) *net.TCPConn { resetConn(backend); return client },
		"by the client":  func(client, backend *net.TCPConn) *net.TCPConn { resetConn(client); return backend },
	} {
		t.Run(name, func(t *testing.T) {
			client, err := connect(t, p)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			backend, err := l.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = backend.Close() }()
			sees := end(client.(*net.TCPConn), backend)
			_ = sees.SetDeadline(time.Now().Add(patience))
			if got, err := io.ReadAll(sees); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%q, %v", got, err)
			}
			until(t, func() bool { return countsForPort(f, p).OpenConnections == 0 })
		})
	}
}

// TestAnswerOfClosedBackendArrives checks that the answer of a backend arrives as a whole, even if the backend is gone
// before it has read everything.
func TestAnswerOfClosedBackendArrives(t *testing.T) {
	for _, answered := range []bool{true, false} {
		client, from := pair(t)
		to, backend := pair(t)
		resetConn(backend)
		waitForSocketError(t, to)
		write(t, client, "more")
		var ended, otherEnded atomic.Bool
		otherEnded.Store(answered)
		copyDirection(to, from, &ended, &otherEnded)
		if _, err := io.ReadAll(client); errors.Is(err, syscall.ECONNRESET) == answered || ended.Load() {
			t.Errorf("answered %t: %v, ended well: %t", answered, err, ended.Load())
		}
	}
}

// pair returns the two ends of a connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := openTCPListener(Port{corev1.ProtocolTCP, netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if a, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)); err == nil {
		b, err = l.AcceptTCP()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	_ = a.SetDeadline(time.Now().Add(patience))
	return a, b
}

// TestConnectionsEnd checks that connections stay when their backend is not among the backends any more, and that they
// are reset when their port is not forwarded any more: a whole answer can be distinguished from a part. The counts of
// the port stay in the sum.
func TestConnectionsEnd(t *testing.T) {
	p, other := at(t, corev1.ProtocolTCP, "127.77.0.8"), at(t, corev1.ProtocolTCP, "127.77.0.9")
	a := backend(t, "a")
	f := forwarder(t, p, a)
	stays, err := connect(t, p)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stays.Close() }()
	_ = stays.SetDeadline(time.Now().Add(patience))
	write(t, stays, "hel")
	until(t, func() bool { return sockets(f, p) == 2 })
	f.SetTargets(t.Context(), map[Port]Target{p: {}, other: newTarget(a)})
	write(t, stays, "lo")
	if c := countsForPort(f, p); c.OpenConnections != 1 {
		t.Errorf("%+v, and only backends have changed", c)
	}
	if got := sendAndReadAll(t, other, "x"); got != "a: x" {
		t.Errorf("%q", got)
	}
	f.SetTargets(t.Context(), map[Port]Target{other: newTarget(a)})
	if got, err := io.ReadAll(stays); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q, %v", got, err)
	}
	until(t, func() bool { return countsForPort(f, other) == Counts{Connections: 1} })
	if byPort, sum := f.Counts(); len(byPort) != 1 || sum != (Counts{Connections: 2}) {
		t.Errorf("%+v, in all %+v", byPort, sum)
	}
}

func sockets(f *Forwarder, p Port) int {
	t := f.ports[p].(*tcpPort)
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}
