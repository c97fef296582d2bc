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

// sessionIdle is how long a client is remembered that sends nothing and is sent nothing.
const sessionIdle = 90 * time.Second

// burst is how many answers are read before it is looked whether the session is still wanted.
const burst = 64

// session is a client of UDP: a socket that is connected to its backend.
type session struct {
	*net.UDPConn

	backend netip.AddrPort
	since   time.Time
	// last is when a packet went either way, in nanoseconds since the session began.
	last atomic.Int64
}

func newSession(backend netip.AddrPort, now time.Time) (*session, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(backend))
	if err != nil {
		return nil, err
	}
	return &session{UDPConn: c, backend: backend, since: now}, nil
}

func (s *session) used(now time.Time) { s.last.Store(int64(now.Sub(s.since))) }

// left is how long it may be idle yet.
func (s *session) left(now time.Time) time.Duration {
	return sessionIdle + time.Duration(s.last.Load()) - now.Sub(s.since)
}

// packets are buffers for answers. One is held while there is something to read, not by each session that waits.
var packets = sync.Pool{New: func() any { return new([maxPacket]byte) }}

// answer sends a client what its backend sends, by the socket that the client has sent to. It returns nil when the session was
// idle for too long, net.ErrClosed when it is ended, or why its backend cannot be reached.
func (s *session) answer(by *net.UDPConn, client netip.AddrPort, now func() time.Time, dropped *atomic.Int64) error {
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
			if _, err := by.WriteToUDPAddrPort(buffer[:n], client); err != nil {
				dropped.Add(1)
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
