//go:build linux

package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialTimeout is how long a client waits for a backend, over all that are tried.
	dialTimeout = 10 * time.Second
	// backendDialTimeout is how long one backend is tried while others are left: a SYN and one more.
	backendDialTimeout = 2 * time.Second
	// acceptRetryDelay is how long no connection is accepted after an error.
	acceptRetryDelay = 50 * time.Millisecond
)

var errNoBackend = errors.New("there is no backend")

type tcpPort struct {
	roundRobinTarget
	counters

	listener  *net.TCPListener
	forwarder *Forwarder
	// cancel ends whatever waits for a backend, or to accept again.
	cancel  context.CancelFunc
	running sync.WaitGroup
	// closeOnce closes the listener, once, and returns the result of that.
	closeOnce func() error

	mu sync.Mutex
	// conns are the sockets of clients and of backends, each with the client that it is for; nil when the port is closed.
	conns map[*net.TCPConn]netip.Addr
}

func openTCPListener(p Port) (*net.TCPListener, error) {
	return net.ListenTCP(networkName(p.Protocol, p.Address.Addr()), net.TCPAddrFromAddrPort(p.Address))
}

func (f *Forwarder) listenTCP(ctx context.Context, p Port, to Target) (portListener, error) {
	l, err := openTCPListener(p)
	if err != nil {
		return nil, wrapInUseError(p, err, func(probe Port) error {
			l, err := openTCPListener(probe)
			if err == nil {
				err = l.Close()
			}
			return err
		})
	}
	// The port is listened on until it is closed, which does not depend on the context of SetTargets.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	out := &tcpPort{listener: l, forwarder: f, cancel: stop, closeOnce: sync.OnceValue(l.Close), conns: map[*net.TCPConn]netip.Addr{}}
	out.setTarget(to)
	out.running.Go(func() { out.acceptConnections(ctx) })
	return out, nil
}

// acceptConnections accepts connections until the listener is closed.
func (t *tcpPort) acceptConnections(ctx context.Context) {
	for {
		c, err := t.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select { // no file is left: a connection that ends releases one
			case <-ctx.Done():
			case <-time.After(acceptRetryDelay):
			}
			continue
		}
		setResetOnClose(c)
		from := clientAddress(c)
		if !t.allowsClient(from) {
			t.denied.Add(1)
			resetConn(c)
			continue
		}
		if !t.forwarder.files.tryAcquire(filesPerConnection, t.forwarder.MaxFiles, t.owner()) {
			t.refusedConnections.Add(1)
			resetConn(c)
			continue
		}
		t.connections.Add(1)
		t.openConnections.Add(1)
		t.running.Go(func() { t.forwardConnection(ctx, c, from) })
	}
}

// clientAddress returns the address of the client of a connection.
func clientAddress(c *net.TCPConn) netip.Addr {
	a, _ := c.RemoteAddr().(*net.TCPAddr)
	return a.AddrPort().Addr().Unmap()
}

// updateTarget sets the target of the port, and ends the connections of clients that are not served any more.
func (t *tcpPort) updateTarget(target Target) {
	t.setTarget(target)
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, from := range t.conns {
		if !target.allowsClient(from) {
			resetConn(c)
		}
	}
}

// forwardConnection connects a client to the next backend that answers, until both directions have ended.
func (t *tcpPort) forwardConnection(ctx context.Context, client *net.TCPConn, from netip.Addr) {
	defer t.forwarder.files.release(filesPerConnection, t.owner())
	defer t.openConnections.Add(-1)
	defer t.closeConn(client)
	if !t.trackConn(client, from) {
		return
	}
	backend, err := t.dialBackend(ctx)
	if err != nil {
		resetConn(client) // as if no process listened
		return
	}
	defer t.closeConn(backend)
	if !t.trackConn(backend, from) {
		return
	}
	var asked, answered atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyDirection(client, backend, &answered, &asked)
	}()
	copyDirection(backend, client, &asked, &answered)
	<-done
}

// copyDirection copies one direction, and ends it when its source ends. After an error both sides are reset, since a
// part must not look like the whole; but where the other direction had ended well, what is still on its way there
// arrives.
func copyDirection(to, from *net.TCPConn, ended, otherEnded *atomic.Bool) {
	err := copyStream(to, from, acquirePipe)
	if err == nil {
		err = errors.Join(to.SetLinger(-1), to.CloseWrite()) // the stream is whole: it ends well from now on, whatever happens to this process
	}
	if err == nil {
		ended.Store(true)
		return
	}
	resetConn(to)
	if otherEnded.Load() {
		_ = from.Close()
	} else {
		resetConn(from)
	}
}

// setResetOnClose has a connection be reset when it is closed: also by the kernel, when this process is killed in the
// middle of an answer, which would look like the whole otherwise.
func setResetOnClose(c *net.TCPConn) { _ = c.SetLinger(0) }

func resetConn(c *net.TCPConn) {
	setResetOnClose(c)
	_ = c.Close()
}

// dialBackend connects to the next backend that answers.
func (t *tcpPort) dialBackend(ctx context.Context) (c *net.TCPConn, err error) {
	err = t.tryBackends(ctx, func(ctx context.Context, b netip.AddrPort) error {
		// DialTCP would bind first, and all backends together would then have no more ports than one.
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", b.String())
		if err == nil {
			c = conn.(*net.TCPConn)
			setResetOnClose(c)
		}
		return err
	})
	return c, err
}

// tryBackends tries the next backend, and those after it, until one connects. A backend that does not answer has only a
// part of the time.
func (t *tcpPort) tryBackends(ctx context.Context, connect func(context.Context, netip.AddrPort) error) error {
	all, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	errs, tried := []error{errNoBackend}, false
	for left, b := range t.rotatedBackends() {
		tried = true
		one, cancel := all, context.CancelFunc(func() {})
		if left > 0 {
			one, cancel = context.WithTimeout(all, backendDialTimeout)
		}
		err := connect(one, b)
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("connecting to %s: %w", b, err))
		if ctx.Err() != nil {
			break // the port is closed, which is no fault of the backend
		}
		t.dialErrors.Add(1)
		if until, _ := all.Deadline(); !time.Now().Before(until) {
			break
		}
	}
	if !tried {
		t.dialErrors.Add(1)
	}
	return errors.Join(errs...)
}

// trackConn records a socket of a client, for Close. It reports whether the port is still open, and still serves the
// client.
func (t *tcpPort) trackConn(c *net.TCPConn, of netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil || !t.allowsClient(of) {
		return false
	}
	t.conns[c] = of
	return true
}

func (t *tcpPort) closeConn(c *net.TCPConn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	_ = c.Close()
}

// resetConnections closes the listener and resets its connections: neither side must take what it has received for the
// whole.
func (t *tcpPort) resetConnections() {
	t.cancel()
	_ = t.closeOnce() // Close returns its error
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		resetConn(c)
	}
	t.conns = nil
}

// Close closes the listener, resets its connections, and waits until nothing of them runs.
func (t *tcpPort) Close() error {
	t.resetConnections()
	t.running.Wait()
	return t.closeOnce()
}
