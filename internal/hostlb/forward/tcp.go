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
	// dialTimeout is how long a client waits for a backend, of all that are tried.
	dialTimeout = 10 * time.Second
	// tryTimeout is how long one backend is waited for while another is left: a SYN and one more.
	tryTimeout = 2 * time.Second
	// acceptAgain is how long nobody is accepted after an error.
	acceptAgain = 50 * time.Millisecond
)

var errNoBackend = errors.New("there is no backend")

type tcpPort struct {
	target
	counters

	listener *net.TCPListener
	f        *Forwarder
	// stop ends what waits: for backends, or to accept again.
	stop    context.CancelFunc
	running sync.WaitGroup
	// over ends the listener, once, and returns what became of that.
	over func() error

	mu sync.Mutex
	// conns are the sockets of clients and of backends, each with the client that it is for; nil when the port is closed.
	conns map[*net.TCPConn]netip.Addr
}

func openTCP(p Port) (*net.TCPListener, error) {
	return net.ListenTCP(network(p.Protocol, p.Address.Addr()), net.TCPAddrFromAddrPort(p.Address))
}

func (f *Forwarder) listenTCP(ctx context.Context, p Port, to Target) (listener, error) {
	l, err := openTCP(p)
	if err != nil {
		return nil, inUse(p, err, func(probe Port) error {
			l, err := openTCP(probe)
			if err == nil {
				err = l.Close()
			}
			return err
		})
	}
	// It is listened on until it is closed, not for as long as somebody waits for Set.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	out := &tcpPort{listener: l, f: f, stop: stop, over: sync.OnceValue(l.Close), conns: map[*net.TCPConn]netip.Addr{}}
	out.set(to)
	out.running.Go(func() { out.serve(ctx) })
	return out, nil
}

// serve accepts connections until the listener is closed.
func (t *tcpPort) serve(ctx context.Context) {
	for {
		c, err := t.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select { // no file is left: who has one gives it back
			case <-ctx.Done():
			case <-time.After(acceptAgain):
			}
			continue
		}
		distrust(c)
		from := clientOf(c)
		if !t.serves(from) {
			t.denied.Add(1)
			reset(c)
			continue
		}
		if !t.f.files.take(filesOfConnection, t.f.MaxFiles, t.owner()) {
			t.refused.Add(1)
			reset(c)
			continue
		}
		t.connections.Add(1)
		t.open.Add(1)
		t.running.Go(func() { t.forward(ctx, c, from) })
	}
}

// clientOf is who has connected.
func clientOf(c *net.TCPConn) netip.Addr {
	a, _ := c.RemoteAddr().(*net.TCPAddr)
	return a.AddrPort().Addr().Unmap()
}

// to sets what the port is forwarded to, and ends the connections of clients that are not served any more.
func (t *tcpPort) to(is Target) {
	t.set(is)
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, from := range t.conns {
		if !is.serves(from) {
			reset(c)
		}
	}
}

// forward connects a client to the next backend that answers, until both have ended.
func (t *tcpPort) forward(ctx context.Context, client *net.TCPConn, from netip.Addr) {
	defer t.f.files.give(filesOfConnection, t.owner())
	defer t.open.Add(-1)
	defer t.end(client)
	if !t.keep(client, from) {
		return
	}
	backend, err := t.dial(ctx)
	if err != nil {
		reset(client) // as if nobody listened
		return
	}
	defer t.end(backend)
	if !t.keep(backend, from) {
		return
	}
	var asked, answered atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		half(client, backend, &answered, &asked)
	}()
	half(backend, client, &asked, &answered)
	<-done
}

// half copies one direction, and ends that when it ends. What ends by an error is reset on both sides, for a part is not to look
// like the whole; but where the other direction had ended well, what is still on its way there arrives.
func half(to, from *net.TCPConn, ended, otherEnded *atomic.Bool) {
	err := move(to, from, takePipe)
	if err == nil {
		err = errors.Join(to.SetLinger(-1), to.CloseWrite()) // it is whole: it ends well from now on, whatever becomes of this process
	}
	if err == nil {
		ended.Store(true)
		return
	}
	reset(to)
	if otherEnded.Load() {
		_ = from.Close()
	} else {
		reset(from)
	}
}

// distrust has a connection be reset where it is closed: also by the kernel, when this process is killed in the middle of an answer,
// which would look like the whole otherwise.
func distrust(c *net.TCPConn) { _ = c.SetLinger(0) }

func reset(c *net.TCPConn) {
	distrust(c)
	_ = c.Close()
}

// dial connects to the next backend that answers.
func (t *tcpPort) dial(ctx context.Context) (c *net.TCPConn, err error) {
	err = t.try(ctx, func(ctx context.Context, b netip.AddrPort) error {
		// Not DialTCP, which binds first: then ports of all backends together are no more than those of one.
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", b.String())
		if err == nil {
			c = conn.(*net.TCPConn)
			distrust(c)
		}
		return err
	})
	return c, err
}

// try tries the next backend, and those after it, until one does. One that does not answer has but a part of the time.
func (t *tcpPort) try(ctx context.Context, connect func(context.Context, netip.AddrPort) error) error {
	all, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	errs, tried := []error{errNoBackend}, false
	for left, b := range t.turn() {
		tried = true
		one, cancel := all, context.CancelFunc(func() {})
		if left > 0 {
			one, cancel = context.WithTimeout(all, tryTimeout)
		}
		err := connect(one, b)
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("connecting to %s: %w", b, err))
		if ctx.Err() != nil {
			break // the port is closed, and that is no fault of the backend
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

// keep remembers a socket for a client, for Close. It reports whether the port is open still, and serves the client still.
func (t *tcpPort) keep(c *net.TCPConn, of netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil || !t.serves(of) {
		return false
	}
	t.conns[c] = of
	return true
}

func (t *tcpPort) end(c *net.TCPConn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	_ = c.Close()
}

// reset ends the listener and its connections: neither side is to take what it has got for the whole.
func (t *tcpPort) reset() {
	t.stop()
	_ = t.over() // Close returns it
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		reset(c)
	}
	t.conns = nil
}

// Close ends the listener and its connections, by a reset, and waits until nothing of them runs.
func (t *tcpPort) Close() error {
	t.reset()
	t.running.Wait()
	return t.over()
}
