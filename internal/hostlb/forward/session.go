//go:build linux

package forward

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// sessionIdleTimeout is how long a client is remembered that sends nothing and is sent nothing.
	sessionIdleTimeout = 90 * time.Second
	// unansweredIdleTimeout is how long that is while no backend has answered; answeredIdleTimeout, where the client has
	// asked one question, or the two that a resolver asks at once, and has its answer: most clients ask no more, and the
	// next question may go to any backend.
	unansweredIdleTimeout = 30 * time.Second
	answeredIdleTimeout   = 5 * time.Second
	// shortSessionPackets is up to how many packets of the client a session is over when it is answered.
	shortSessionPackets = 2
	// maxReadBurst is how many answers are read before the session is checked again for its end.
	maxReadBurst = 64
)

// session is a UDP client: a socket that is connected to its backend.
type session struct {
	*net.UDPConn

	client    netip.AddrPort
	backend   netip.AddrPort
	startedAt time.Time
	// maxIdle is how long the session may be idle at most.
	maxIdle time.Duration
	// lastPacketAt is when a packet last went either way, in nanoseconds since the session started; clientPackets is how
	// many packets the client has sent.
	lastPacketAt  atomic.Int64
	clientPackets atomic.Int64
	answered      atomic.Bool
	// earliestEnd is a time before which the session does not end; heapIndex is its place in the heap of these times. The
	// lock of the port guards both.
	earliestEnd time.Duration
	heapIndex   int
}

func newSession(client, backend netip.AddrPort, now time.Time, most time.Duration) (*session, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(backend))
	if err != nil {
		return nil, err
	}
	s := &session{UDPConn: c, client: client, backend: backend, startedAt: now, maxIdle: most}
	s.clientPackets.Store(1)
	return s, nil
}

// recordClientPacket records that the client has sent another packet.
func (s *session) recordClientPacket(now time.Time) {
	s.clientPackets.Add(1)
	s.recordPacket(now)
}

func (s *session) recordPacket(now time.Time) { s.lastPacketAt.Store(int64(now.Sub(s.startedAt))) }

// expiryOffset returns when the session ends if nothing more is sent, counted from its start.
func (s *session) expiryOffset() time.Duration {
	idle := s.maxIdle
	switch {
	case !s.answered.Load():
		idle = min(idle, unansweredIdleTimeout)
	case s.clientPackets.Load() <= shortSessionPackets:
		idle = min(idle, answeredIdleTimeout)
	}
	return time.Duration(s.lastPacketAt.Load()) + idle
}

// remainingIdle returns for how much longer the session may be idle.
func (s *session) remainingIdle(now time.Time) time.Duration {
	return s.expiryOffset() - now.Sub(s.startedAt)
}

// packetBuffers are buffers for answers. A buffer is in use while there is something to read, and not by each session
// that waits.
var packetBuffers = sync.Pool{New: func() any { return new([maxPacketSize]byte) }}

// relayReplies sends what the backend sends to the client, from the socket that the client has sent to. It returns nil
// when the session was idle for too long, net.ErrClosed when the session is closed, or why its backend cannot be
// reached.
func (s *session) relayReplies(by *net.UDPConn, now func() time.Time, dropped *atomic.Int64) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	read := func(fd uintptr) (done bool) {
		buffer := packetBuffers.Get().(*[maxPacketSize]byte)
		defer packetBuffers.Put(buffer)
		for range maxReadBurst {
			n, err := syscall.Read(int(fd), buffer[:])
			switch {
			case errors.Is(err, syscall.EAGAIN):
				return false // there is nothing to read yet
			case errors.Is(err, syscall.EINTR):
				continue
			case err != nil:
				failed = err
				return true
			}
			s.recordPacket(now())
			if _, err := by.WriteToUDPAddrPort(buffer[:n], s.client); err != nil {
				dropped.Add(1)
			}
			if !s.answered.Swap(true) {
				return true // the session may end earlier now
			}
		}
		return true
	}
	for failed == nil {
		left := s.remainingIdle(now())
		if left <= 0 {
			return nil
		}
		if err := s.SetReadDeadline(time.Now().Add(left)); err != nil {
			return err
		}
		if err := raw.Read(read); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return failed
}
