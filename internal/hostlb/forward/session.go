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
	// sessionIdle is how long a client is remembered that sends nothing and is sent nothing.
	sessionIdle = 90 * time.Second
	// unanswered is how long, where no backend has answered yet; answered, where the client has asked a question, or the two that a
	// resolver asks at once, and has its answer: most ask no more, and the next question may go to any backend.
	unansweredIdle = 30 * time.Second
	answeredIdle   = 5 * time.Second
	// questions are those that are over when they are answered.
	questions = 2
	// burst is how many answers are read before it is looked whether the session is still wanted.
	burst = 64
)

// session is a client of UDP: a socket that is connected to its backend.
type session struct {
	*net.UDPConn

	client  netip.AddrPort
	backend netip.AddrPort
	since   time.Time
	// most is how long it may be idle at most.
	most time.Duration
	// last is when a packet went either way, in nanoseconds since the session began; asked, how many the client has sent.
	last     atomic.Int64
	asked    atomic.Int64
	answered atomic.Bool
	// ends is a time before which it does not end, at its place in the order of those. The port guards both.
	ends  time.Duration
	place int
}

func newSession(client, backend netip.AddrPort, now time.Time, most time.Duration) (*session, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(backend))
	if err != nil {
		return nil, err
	}
	s := &session{UDPConn: c, client: client, backend: backend, since: now, most: most}
	s.asked.Store(1)
	return s, nil
}

// asks notes that the client has sent another packet.
func (s *session) asks(now time.Time) {
	s.asked.Add(1)
	s.used(now)
}

func (s *session) used(now time.Time) { s.last.Store(int64(now.Sub(s.since))) }

// end is when it ends if nothing more is sent, since it began.
func (s *session) end() time.Duration {
	idle := s.most
	switch {
	case !s.answered.Load():
		idle = min(idle, unansweredIdle)
	case s.asked.Load() <= questions:
		idle = min(idle, answeredIdle)
	}
	return time.Duration(s.last.Load()) + idle
}

// left is how long it may be idle yet.
func (s *session) left(now time.Time) time.Duration { return s.end() - now.Sub(s.since) }

// packets are buffers for answers. One is held while there is something to read, not by each session that waits.
var packets = sync.Pool{New: func() any { return new([maxPacket]byte) }}

// answer sends a client what its backend sends, by the socket that the client has sent to. It returns nil when the session was
// idle for too long, net.ErrClosed when it is ended, or why its backend cannot be reached.
func (s *session) answer(by *net.UDPConn, now func() time.Time, dropped *atomic.Int64) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	read := func(fd uintptr) (done bool) {
		buffer := packets.Get().(*[maxPacket]byte)
		defer packets.Put(buffer)
		for range burst {
			n, err := syscall.Read(int(fd), buffer[:])
			switch {
			case errors.Is(err, syscall.EAGAIN):
				return false // nothing is there yet: wait
			case errors.Is(err, syscall.EINTR):
				continue
			case err != nil:
				failed = err
				return true
			}
			s.used(now())
			if _, err := by.WriteToUDPAddrPort(buffer[:n], s.client); err != nil {
				dropped.Add(1)
			}
			if !s.answered.Swap(true) {
				return true // it may end sooner now
			}
		}
		return true
	}
	for failed == nil {
		left := s.left(now())
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
