package forward

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/inetaf/tcpproxy"
)

// dialTimeout is how long one backend is waited for before the next is tried.
const dialTimeout = 5 * time.Second

var errNoBackend = errors.New("there is no backend")

type tcpPort struct {
	backends

	listener net.Listener
	f        *Forwarder
	// done is closed with the listener.
	done chan struct{}
}

func openTCP(p Port) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), network(p.Protocol, p.Address.Addr()), p.Address.String())
}

func (f *Forwarder) listenTCP(_ context.Context, p Port) (listener, error) {
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
	out := &tcpPort{listener: l, f: f, done: make(chan struct{})}
	go out.serve()
	return out, nil
}

// serve accepts connections until the listener is closed.
func (t *tcpPort) serve() {
	for {
		c, err := t.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select { // no file is left: who has one gives it back
			case <-t.done:
			case <-time.After(acceptAgain):
			}
			continue
		}
		if n := t.f.Counts.Open.Add(1); t.f.MaxConnections > 0 && n > t.f.MaxConnections {
			t.f.Counts.Open.Add(-1)
			t.f.Counts.Refused.Add(1)
			_ = c.Close()
			continue
		}
		t.f.Counts.Connections.Add(1)
		go func() {
			defer t.f.Counts.Open.Add(-1)
			(&tcpproxy.DialProxy{
				DialTimeout: -1, DialContext: t.dial,
				OnDialError: func(c net.Conn, _ error) { _ = c.Close() },
			}).HandleConn(c)
		}()
	}
}

// acceptAgain is how long nobody is accepted after an error.
const acceptAgain = 50 * time.Millisecond

// dial connects to the next backend that answers.
func (t *tcpPort) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	errs := []error{errNoBackend}
	for _, b := range t.from() {
		c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", b.String())
		if err == nil {
			return c, nil
		}
		t.f.Counts.DialErrors.Add(1)
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// Close ends the listener. Connections end when they end.
func (t *tcpPort) Close() error {
	close(t.done)
	return t.listener.Close()
}
