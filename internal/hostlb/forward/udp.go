//go:build linux

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
	// maxPacket is the largest payload of UDP.
	maxPacket = 1<<16 - 1
)

// udpPort has a connected socket for each client: so a backend answers to it, and its answer goes back from the address that
// the client has sent to.
type udpPort struct {
	target
	counters

	conn    *net.UDPConn
	f       *Forwarder
	max     int
	now     func() time.Time
	running sync.WaitGroup

	mu sync.Mutex
	// sessions are by client; nil when the port is closed.
	sessions map[netip.AddrPort]*session
}

func openUDP(p Port) (*net.UDPConn, error) {
	return net.ListenUDP(network(p.Protocol, p.Address.Addr()), net.UDPAddrFromAddrPort(p.Address))
}

func (f *Forwarder) listenUDP(_ context.Context, p Port, to Target) (listener, error) {
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
	out := &udpPort{conn: c, f: f, max: maxSessions, now: time.Now, sessions: map[netip.AddrPort]*session{}}
	if f.maxSessions > 0 {
		out.max = f.maxSessions
	}
	if f.now != nil {
		out.now = f.now
	}
	out.set(to)
	out.running.Go(out.serve)
	return out, nil
}

// to sets what the port is forwarded to. Clients of a backend that is not among the others any more get another with their next
// packet: it may be off, and nothing says so. Those that are not served any more are ended.
func (u *udpPort) to(is Target) {
	u.set(is)
	u.mu.Lock()
	defer u.mu.Unlock()
	for client, s := range u.sessions {
		if !slices.Contains(is.Backends, s.backend) || !is.serves(client.Addr()) {
			u.end(client, s)
		}
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
		if !u.serves(client.Addr()) {
			u.denied.Add(1)
		} else if !u.send(client, buffer[:n]) {
			u.dropped.Add(1)
		}
	}
}

// send sends a packet to the backend of its client. A backend that is gone says so of a packet before this one, which is not sent
// then: it goes to another backend, if there is one. It reports whether it was sent.
func (u *udpPort) send(client netip.AddrPort, packet []byte) bool {
	var not netip.AddrPort
	for range 2 {
		s := u.sessionOf(client, not)
		if s == nil {
			return false
		}
		if _, err := s.Write(packet); err == nil {
			return true
		}
		u.dialErrors.Add(1)
		not = s.backend
		u.over(client, s)
	}
	return false
}

// sessionOf is that of a client. A new one is to the next backend, and to one that was just found to be gone if there is no
// other. Nil: there is no room, no file, or no backend.
func (u *udpPort) sessionOf(client, not netip.AddrPort) *session {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.sessions[client]; s != nil {
		s.used(u.now())
		return s
	}
	if u.sessions == nil || len(u.sessions) >= u.max || !u.f.files.take(filesOfSession, u.f.MaxFiles) {
		return nil
	}
	for left, b := range u.turn() {
		if b == not && left > 0 {
			continue
		}
		s, err := newSession(b, u.now())
		if err != nil {
			u.dialErrors.Add(1)
			continue
		}
		u.sessions[client] = s
		u.counters.sessions.Add(1)
		u.running.Go(func() {
			if err := s.answer(u.conn, client, u.now, &u.dropped); err != nil && !errors.Is(err, net.ErrClosed) {
				u.dialErrors.Add(1)
			}
			u.over(client, s)
		})
		return s
	}
	u.f.files.give(filesOfSession)
	return nil
}

// over ends a session, of the client that has it or has another by now.
func (u *udpPort) over(client netip.AddrPort, s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sessions[client] == s {
		u.end(client, s)
	}
}

// end ends a session. The port is locked.
func (u *udpPort) end(client netip.AddrPort, s *session) {
	delete(u.sessions, client)
	u.counters.sessions.Add(-1)
	u.f.files.give(filesOfSession)
	_ = s.Close()
}

// reset does nothing: clients of UDP are told nothing.
func (u *udpPort) reset() {}

// Close ends the socket and the sessions.
func (u *udpPort) Close() error {
	err := u.conn.Close()
	u.mu.Lock()
	for client, s := range u.sessions {
		u.end(client, s)
	}
	u.sessions = nil
	u.mu.Unlock()
	u.running.Wait()
	return err
}
