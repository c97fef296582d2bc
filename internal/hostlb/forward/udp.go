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
	// defaultMaxSessions is how many clients a UDP port has at once by default.
	defaultMaxSessions = 4096
	// maxPacketSize is the largest payload of a UDP packet.
	maxPacketSize = 1<<16 - 1
)

// udpPort has a connected socket for each client: a backend answers to that socket, and its answer goes back from the
// address that the client has sent to.
type udpPort struct {
	roundRobinTarget
	counters

	conn         *net.UDPConn
	forwarder    *Forwarder
	sessionLimit int
	idleTimeout  time.Duration
	now          func() time.Time
	running      sync.WaitGroup

	mu sync.Mutex
	// sessions are the sessions by client; nil when the port is closed. expiryHeap has the session first that is the next
	// to end.
	sessions   map[netip.AddrPort]*session
	expiryHeap sessionHeap
	// startedAt is when the port was opened; all times of the heap count from it.
	startedAt time.Time
}

// sessionHeap is a heap of sessions by a time before which each does not end. A packet delays the end of its session,
// and changes nothing in the heap: that is noticed when the session is first.
type sessionHeap []*session

// Len implements sort.Interface.
func (h sessionHeap) Len() int { return len(h) }

// Less implements sort.Interface.
func (h sessionHeap) Less(i, j int) bool { return h[i].earliestEnd < h[j].earliestEnd }

// Swap implements sort.Interface.
func (h sessionHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}

// Push implements heap.Interface.
func (h *sessionHeap) Push(s any) {
	pushed, _ := s.(*session)
	pushed.heapIndex = len(*h)
	*h = append(*h, pushed)
}

// Pop implements heap.Interface.
func (h *sessionHeap) Pop() any {
	n := len(*h) - 1
	last := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return last
}

func openUDPConn(p Port) (*net.UDPConn, error) {
	return net.ListenUDP(networkName(p.Protocol, p.Address.Addr()), net.UDPAddrFromAddrPort(p.Address))
}

func (f *Forwarder) listenUDP(_ context.Context, p Port, to Target) (portListener, error) {
	c, err := openUDPConn(p)
	if err != nil {
		return nil, wrapInUseError(p, err, func(probe Port) error {
			c, err := openUDPConn(probe)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	out := &udpPort{conn: c, forwarder: f, sessionLimit: cmp.Or(f.MaxUDPSessions, defaultMaxSessions), idleTimeout: cmp.Or(f.UDPIdleTimeout, sessionIdleTimeout), now: time.Now, sessions: map[netip.AddrPort]*session{}}
	if f.now != nil {
		out.now = f.now
	}
	out.startedAt = out.now()
	out.setTarget(to)
	out.running.Go(out.receivePackets)
	return out, nil
}

// updateTarget sets the target of the port. Clients of a backend that is not among the backends any more get another
// one with their next packet: the backend may be off, and no error shows that. Clients that are not served any more are
// ended.
func (u *udpPort) updateTarget(target Target) {
	u.setTarget(target)
	u.mu.Lock()
	defer u.mu.Unlock()
	for client, s := range u.sessions {
		if !slices.Contains(target.Backends, s.backend) || !target.allowsClient(client.Addr()) {
			u.removeSession(client, s)
		}
	}
}

// receivePackets sends the packets of clients to their backends, until the socket is closed.
func (u *udpPort) receivePackets() {
	buffer := make([]byte, maxPacketSize)
	for {
		n, client, err := u.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an error of one packet
		}
		if !u.allowsClient(client.Addr()) {
			u.denied.Add(1)
		} else if !u.sendPacket(client, buffer[:n]) {
			u.droppedPackets.Add(1)
		}
	}
}

// sendPacket sends a packet to the backend of its client, and reports whether it was sent. A backend that is gone
// reports an error for an earlier packet, and this one is not sent then: it goes to another backend, if there is one.
func (u *udpPort) sendPacket(client netip.AddrPort, packet []byte) bool {
	var not netip.AddrPort
	for range 2 {
		s := u.sessionForClient(client, not)
		if s == nil {
			return false
		}
		if _, err := s.Write(packet); err == nil {
			return true
		}
		u.dialErrors.Add(1)
		not = s.backend
		u.endSession(client, s)
	}
	return false
}

// sessionForClient returns the session of a client. A new session is to the next backend, and to the backend not, which
// was just found to be gone, only if there is no other. It returns nil if there is no file, or no backend.
func (u *udpPort) sessionForClient(client, not netip.AddrPort) *session {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.sessions[client]; s != nil {
		s.recordClientPacket(u.now())
		return s
	}
	if u.sessions == nil || !u.reserveSession() {
		return nil
	}
	for left, b := range u.rotatedBackends() {
		if b == not && left > 0 {
			continue
		}
		s, err := newSession(client, b, u.now(), u.idleTimeout)
		if err != nil {
			u.dialErrors.Add(1)
			continue
		}
		u.startSession(s)
		return s
	}
	u.forwarder.files.release(filesPerSession, u.owner())
	return nil
}

// reserveSession takes a file for another session, and reports whether there is one. Where the port has as many
// sessions as it may, or no file is left for another one, one session ends: so a new client is served, however many
// others have come before.
func (u *udpPort) reserveSession() bool {
	take := func() bool { return u.forwarder.files.tryAcquire(filesPerSession, u.forwarder.MaxFiles, u.owner()) }
	if len(u.sessions) < u.sessionLimit && take() {
		return true
	}
	return u.displaceSession() && take()
}

// displaceSession ends the session that would be the next to end, which is mostly the one that is idle longest: first
// of those that had the one answer that they asked for, then of those that have none, then of the others. It reports
// whether there is one.
func (u *udpPort) displaceSession() bool {
	for range 2 * len(u.expiryHeap) { // some may be used meanwhile
		s := u.expiryHeap[0]
		if ends := u.sessionExpiry(s); ends > s.earliestEnd {
			s.earliestEnd = ends
			heap.Fix(&u.expiryHeap, 0)
			continue
		}
		break
	}
	if len(u.expiryHeap) == 0 {
		return false
	}
	u.displacedSessions.Add(1)
	u.removeSession(u.expiryHeap[0].client, u.expiryHeap[0])
	return true
}

// sessionExpiry returns when a session ends if nothing more is sent, counted from the start of the port.
func (u *udpPort) sessionExpiry(s *session) time.Duration {
	return s.startedAt.Sub(u.startedAt) + s.expiryOffset()
}

// startSession starts a session. The caller holds the lock of the port.
func (u *udpPort) startSession(s *session) {
	u.sessions[s.client] = s
	s.earliestEnd = s.startedAt.Sub(u.startedAt) + min(answeredIdleTimeout, u.idleTimeout)
	heap.Push(&u.expiryHeap, s)
	u.counters.sessions.Add(1)
	u.running.Go(func() {
		if err := s.relayReplies(u.conn, u.now, &u.droppedPackets); err != nil && !errors.Is(err, net.ErrClosed) {
			u.dialErrors.Add(1)
		}
		u.endSession(s.client, s)
	})
}

// endSession ends a session, if its client does not have another one by now.
func (u *udpPort) endSession(client netip.AddrPort, s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sessions[client] == s {
		u.removeSession(client, s)
	}
}

// removeSession ends a session. The caller holds the lock of the port.
func (u *udpPort) removeSession(client netip.AddrPort, s *session) {
	delete(u.sessions, client)
	heap.Remove(&u.expiryHeap, s.heapIndex)
	u.counters.sessions.Add(-1)
	u.forwarder.files.release(filesPerSession, u.owner())
	_ = s.Close()
}

// resetConnections does nothing: UDP clients are not notified.
func (u *udpPort) resetConnections() {}

// Close closes the socket and the sessions.
func (u *udpPort) Close() error {
	err := u.conn.Close()
	u.mu.Lock()
	for client, s := range u.sessions {
		u.removeSession(client, s)
	}
	u.sessions = nil
	u.mu.Unlock()
	u.running.Wait()
	return err
}
