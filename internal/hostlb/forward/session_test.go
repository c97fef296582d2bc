//go:build linux

package forward

import (
	"bytes"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// udp is a port of UDP, with the only session that it has.
func udp(f *Forwarder, p Port) (*udpPort, *session) {
	u := f.ports[p].(*udpPort)
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.sessions {
		return u, s
	}
	return u, nil
}

// A session that is idle for too long is ended; one that is not, is not, though its deadline has passed.
func TestIdle(t *testing.T) {
	begun := time.Now()
	var later, looked atomic.Int64
	p := at(t, corev1.ProtocolUDP, "127.77.0.10")
	f := &Forwarder{now: func() time.Time { looked.Add(1); return begun.Add(time.Duration(later.Load())) }}
	begin(t, f, p, echo(t, "a"))
	c := client(t, p)
	later.Store(int64(sessionIdle))
	if got := ask(t, c, "1"); got != "a: 1" { // as new as can be
		t.Errorf("%q", got)
	}
	_, s := udp(f, p)
	for _, test := range []struct {
		after time.Duration
		want  int64
	}{{sessionIdle - 1, 1}, {sessionIdle, 0}} {
		later.Store(int64(sessionIdle + test.after))
		was := looked.Load()
		until(t, func() bool {
			_ = s.SetReadDeadline(time.Unix(1, 0)) // again, for it may be about to set another one
			return (looked.Load() > was+1 || test.want == 0) && of(f, p).Sessions == test.want
		})
	}
	if n := f.files.used.Load(); n != 0 {
		t.Errorf("%d files", n)
	}
	if got := ask(t, c, "2"); got != "a: 2" { // begins anew
		t.Errorf("%q", got)
	}
}

// told waits until a socket has been told that there is nobody at the other end.
func told(t *testing.T, c syscall.Conn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, int(patience/time.Millisecond))
		if n != 1 || err != nil {
			t.Errorf("it is not told: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// The packet that finds its backend gone goes to the next one; if there is only one, to that once more.
func TestBackendGone(t *testing.T) {
	p := at(t, corev1.ProtocolUDP, "127.77.0.11")
	a, dead := echo(t, "a"), at(t, corev1.ProtocolUDP, "127.77.0.12").Address
	f := forwarder(t, p, dead)
	c := client(t, p)
	from := c.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	gone := func() {
		t.Helper()
		u, _ := udp(f, p)
		s, err := newSession(dead, time.Now()) // of which nobody reads that it is gone
		if err != nil {
			t.Fatal(err)
		}
		if !u.f.files.take(filesOfSession, 0) {
			t.Fatal("no file")
		}
		u.mu.Lock()
		u.sessions[from] = s
		u.mu.Unlock()
		u.counters.sessions.Add(1)
		write(t, s, "lost")
		told(t, s.UDPConn)
	}
	gone()
	write(t, c, "once more")
	until(t, func() bool { return of(f, p) == Counts{DialErrors: 2} }) // of the packet before, and of this one
	f.Set(t.Context(), map[Port]Target{p: To(dead, a)})
	for range 2 { // whoever's turn it is
		gone()
		if got := ask(t, c, "x"); got != "a: x" {
			t.Errorf("%q", got)
		}
		u, s := udp(f, p)
		u.over(from, s)
	}
}

// The largest packet there is goes both ways.
func TestLargest(t *testing.T) {
	p := at(t, corev1.ProtocolUDP, "127.77.0.13")
	forwarder(t, p, echo(t, "a"))
	c := client(t, p)
	sent := bytes.Repeat([]byte("x"), 65507-len("a: "))
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, maxPacket)
	n, err := c.Read(got)
	if err != nil || !bytes.Equal(got[:n], append([]byte("a: "), sent...)) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
