//go:build linux

package forward

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// maxSessions is how many clients a port of UDP has at once.
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
	idle    time.Duration
	now     func() time.Time
	running sync.WaitGroup

	mu sync.Mutex
	// sessions are by client; nil when the port is closed. Order has the one first that is the next to end.
	sessions map[netip.AddrPort]*session
	order    order
	// begun is when the port was, which all times of the order are since.
	begun time.Time
}

// order is a heap of sessions by a time before which each does not end. What is sent puts an end off, and nothing in the order: that
// is found when it is first.
type order []*session

// Len is of sort.Interface.
func (o order) Len() int { return len(o) }

// Less is of sort.Interface.
func (o order) Less(i, j int) bool { return o[i].ends < o[j].ends }

// Swap is of sort.Interface.
func (o order) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].place, o[j].place = i, j
}

// Push is of heap.Interface.
func (o *order) Push(s any) {
	is, _ := s.(*session)
	is.place = len(*o)
	*o = append(*o, is)
}

// Pop is of heap.Interface.
func (o *order) Pop() any {
	n := len(*o) - 1
	last := (*o)[n]
	(*o)[n] = nil
	*o = (*o)[:n]
	return last
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
	out := &udpPort{conn: c, f: f, max: cmp.Or(f.MaxSessions, maxSessions), idle: cmp.Or(f.Idle, sessionIdle), now: time.Now, sessions: map[netip.AddrPort]*session{}}
	if f.now != nil {
		out.now = f.now
	}
	out.begun = out.now()
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
// other. Nil: there is no file, or no backend.
func (u *udpPort) sessionOf(client, not netip.AddrPort) *session {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.sessions[client]; s != nil {
		s.asks(u.now())
		return s
	}
	if u.sessions == nil || !u.room() {
		return nil
	}
	for left, b := range u.turn() {
		if b == not && left > 0 {
			continue
		}
		s, err := newSession(client, b, u.now(), u.idle)
		if err != nil {
			u.dialErrors.Add(1)
			continue
		}
		u.begin(s)
		return s
	}
	u.f.files.give(filesOfSession, u.owner())
	return nil
}

// room takes a file for another session, and reports whether there is one. Where there are as many sessions as may be, or no file is
// left for another one, one ends: so who asks is served, however many others have asked before.
func (u *udpPort) room() bool {
	take := func() bool { return u.f.files.take(filesOfSession, u.f.MaxFiles, u.owner()) }
	if len(u.sessions) < u.max && take() {
		return true
	}
	return u.displace() && take()
}

// displace ends the session that would be the next to end, which is mostly the one that is idle longest: of those that had the one
// answer that they asked for, of those that have none, and then of others. It reports whether there is one.
func (u *udpPort) displace() bool {
	for range 2 * len(u.order) { // some may be used meanwhile
		s := u.order[0]
		if ends := u.endOf(s); ends > s.ends {
			s.ends = ends
			heap.Fix(&u.order, 0)
			continue
		}
		break
	}
	if len(u.order) == 0 {
		return false
	}
	u.displaced.Add(1)
	u.end(u.order[0].client, u.order[0])
	return true
}

// endOf is when a session ends if nothing more is sent, since the port was begun.
func (u *udpPort) endOf(s *session) time.Duration { return s.since.Sub(u.begun) + s.end() }

// begin begins a session. The port is locked.
func (u *udpPort) begin(s *session) {
	u.sessions[s.client] = s
	s.ends = s.since.Sub(u.begun) + min(answeredIdle, u.idle)
	heap.Push(&u.order, s)
	u.counters.sessions.Add(1)
	u.running.Go(func() {
		if err := s.answer(u.conn, u.now, &u.dropped); err != nil && !errors.Is(err, net.ErrClosed) {
			u.dialErrors.Add(1)
		}
		u.over(s.client, s)
	})
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
	heap.Remove(&u.order, s.place)
	u.counters.sessions.Add(-1)
	u.f.files.give(filesOfSession, u.owner())
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
