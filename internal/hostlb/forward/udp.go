package forward

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// maxSessions is how many clients a port of UDP has at once. Packets of others are dropped, and counted.
	maxSessions = 4096
	// sessionIdle is how long a client is remembered that sends nothing and is sent nothing.
	sessionIdle = 90 * time.Second
	// maxPacket is the largest payload of UDP.
	maxPacket = 1<<16 - 1
)

// udpPort has a connected socket for each client: so a backend answers to it, and its answer goes back from the address that
// the client has sent to.
type udpPort struct {
	backends

	conn *net.UDPConn
	f    *Forwarder
	max  int

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session
	closed   bool
}

type session struct {
	*net.UDPConn

	last time.Time
}

func openUDP(p Port) (*net.UDPConn, error) {
	return net.ListenUDP(network(p.Protocol, p.Address.Addr()), net.UDPAddrFromAddrPort(p.Address))
}

func (f *Forwarder) listenUDP(_ context.Context, p Port) (listener, error) {
	c, err := openUDP(p)
	if err != nil {
		return nil, inUse(p, err, func(probe Port) error {
			c, err := openUDP(probe)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	out := &udpPort{conn: c, f: f, max: maxSessions, sessions: map[netip.AddrPort]*session{}}
	go out.serve()
	return out, nil
}

// to sets the backends. Clients of one that is not among them any more get another with their next packet: it may be off, and
// nothing says so.
func (u *udpPort) to(all []netip.AddrPort) {
	u.backends.to(all)
	u.mu.Lock()
	left := map[netip.AddrPort]*session{}
	for client, s := range u.sessions {
		if of, is := s.RemoteAddr().(*net.UDPAddr); is && !slices.Contains(all, of.AddrPort()) {
			left[client] = s
		}
	}
	u.mu.Unlock()
	for client, s := range left {
		u.end(client, s)
	}
}

// serve sends what clients send to their backends, until the socket is closed.
func (u *udpPort) serve() {
	buffer := make([]byte, maxPacket)
	for {
		n, client, err := u.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // of one packet
		}
		s := u.sessionOf(client)
		if s == nil {
			u.f.Counts.Dropped.Add(1)
			continue
		}
		if _, err := s.Write(buffer[:n]); err != nil {
			u.f.Counts.Dropped.Add(1)
			u.end(client, s) // the backend is gone: the next packet goes to another one
		}
	}
}

// sessionOf is that of a client; nil: there is no room, or no backend.
func (u *udpPort) sessionOf(client netip.AddrPort) *session {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.sessions[client]; s != nil {
		s.last = time.Now()
		return s
	}
	if u.closed || len(u.sessions) >= u.max {
		return nil
	}
	for _, b := range u.from() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(b))
		if err != nil {
			u.f.Counts.DialErrors.Add(1)
			continue
		}
		s := &session{c, time.Now()}
		u.sessions[client] = s
		u.f.Counts.Sessions.Add(1)
		go u.answer(client, s)
		return s
	}
	return nil
}

// answer sends a client what its backend sends.
func (u *udpPort) answer(client netip.AddrPort, s *session) {
	buffer := make([]byte, maxPacket)
	for {
		n, err := s.Read(buffer)
		if err != nil {
			u.end(client, s)
			return
		}
		u.mu.Lock()
		s.last = time.Now()
		u.mu.Unlock()
		if _, err := u.conn.WriteToUDPAddrPort(buffer[:n], client); err != nil {
			u.f.Counts.Dropped.Add(1)
		}
	}
}

// end ends a session, once.
func (u *udpPort) end(client netip.AddrPort, s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sessions[client] != s {
		return
	}
	delete(u.sessions, client)
	u.f.Counts.Sessions.Add(-1)
	_ = s.Close()
}

// forget ends the sessions that were idle for too long.
func (u *udpPort) forget(now time.Time) {
	u.mu.Lock()
	idle := map[netip.AddrPort]*session{}
	for client, s := range u.sessions {
		if now.Sub(s.last) >= sessionIdle {
			idle[client] = s
		}
	}
	u.mu.Unlock()
	for client, s := range idle {
		u.end(client, s)
	}
}

// Close ends the socket and the sessions.
func (u *udpPort) Close() error {
	u.mu.Lock()
	u.closed = true
	all := u.sessions
	u.sessions = map[netip.AddrPort]*session{}
	u.f.Counts.Sessions.Add(-int64(len(all)))
	u.mu.Unlock()
	errs := []error{u.conn.Close()}
	for _, s := range all {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Forget ends sessions of UDP that were idle for too long. It is to be called now and then.
func (f *Forwarder) Forget(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.ports {
		if u, is := l.(*udpPort); is {
			u.forget(now)
		}
	}
}
