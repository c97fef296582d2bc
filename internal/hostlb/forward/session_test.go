//go:build linux

package forward

import (
	"bytes"
	"container/heap"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// udp returns a UDP port with the only session that it has.
func udp(f *Forwarder, p Port) (*udpPort, *session) {
	u := f.ports[p].(*udpPort)
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.sessions {
		return u, s
	}
	return u, nil
}

// TestIdleSessionsEnd checks that a session that is idle for too long ends, and that another one does not, even if its
// deadline has passed. How long that is depends on the packets: one question that was answered, several, or none that
// was answered.
func TestIdleSessionsEnd(t *testing.T) {
	silent, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	for name, test := range map[string]struct {
		asks   int
		silent bool
		flag   time.Duration
		want   time.Duration
	}{
		"a question":                        {asks: 1, want: answeredIdleTimeout},
		"two":                               {asks: 2, want: answeredIdleTimeout},
		"more":                              {asks: 3, want: sessionIdleTimeout},
		"no answer":                         {asks: 3, silent: true, want: unansweredIdleTimeout},
		"more, where it is longer":          {asks: 3, flag: time.Hour, want: time.Hour},
		"a question, where all are shorter": {asks: 1, flag: time.Second, want: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			var later, nowCalls atomic.Int64
			p := at(t, corev1.ProtocolUDP, "127.77.0.10")
			f := &Forwarder{UDPIdleTimeout: test.flag, now: func() time.Time { nowCalls.Add(1); return begun.Add(time.Duration(later.Load())) }}
			to := silent.LocalAddr().(*net.UDPAddr).AddrPort()
			if !test.silent {
				to = echo(t, "a")
			}
			begin(t, f, p, to)
			c := client(t, p)
			later.Store(int64(time.Minute))
			for range test.asks { // with the session as new as possible
				if test.silent {
					write(t, c, "1")
				} else if got := ask(t, c, "1"); got != "a: 1" {
					t.Errorf("%q", got)
				}
			}
			until(t, func() bool {
				_, s := udp(f, p)
				return s != nil && int(s.clientPackets.Load()) == test.asks
			})
			_, s := udp(f, p)
			for _, step := range []struct {
				after time.Duration
				want  int64
			}{{test.want - 1, 1}, {test.want, 0}} {
				later.Store(int64(time.Minute + step.after))
				was := nowCalls.Load()
				until(t, func() bool {
					_ = s.SetReadDeadline(time.Unix(1, 0)) // repeatedly, as it may be about to set another deadline
					return (nowCalls.Load() > was+1 || step.want == 0) && countsForPort(f, p).Sessions == step.want
				})
			}
			if n := used(f); n != 0 {
				t.Errorf("%d files", n)
			}
			if test.silent {
				return
			}
			if got := ask(t, c, "2"); got != "a: 2" { // in a new session
				t.Errorf("%q", got)
			}
		})
	}
}

// TestFullPortReplacesSession checks that where a port has as many clients as it may, a new client takes the place of
// another one: of one whose question was answered, then of one without an answer, and among those of the one that is
// idle longest. So a client that comes often takes the place of its own sessions.
func TestFullPortReplacesSession(t *testing.T) { // H28
	begun := time.Now()
	var later atomic.Int64
	at0 := func(seconds int) { later.Store(int64(time.Duration(seconds) * time.Second)) }
	p := at(t, corev1.ProtocolUDP, "127.77.0.23")
	f := &Forwarder{MaxUDPSessions: 4, now: func() time.Time { return begun.Add(time.Duration(later.Load())) }}
	begin(t, f, p, echo(t, "a"))
	var clients []*net.UDPConn
	comes := func(second, questions int) {
		t.Helper()
		at0(second)
		clients = append(clients, client(t, p))
		for range questions {
			if got := ask(t, clients[len(clients)-1], "1"); got != "a: 1" {
				t.Errorf("%q", got)
			}
		}
		until(t, func() bool {
			u, _ := udp(f, p)
			u.mu.Lock()
			defer u.mu.Unlock()
			return slices.ContainsFunc(u.expiryHeap, func(s *session) bool {
				return s.client.Port() == portOf(clients[len(clients)-1]) && s.answered.Load()
			})
		})
	}
	expectSessions := func(want ...int) {
		t.Helper()
		u, _ := udp(f, p)
		u.mu.Lock()
		defer u.mu.Unlock()
		var got []int
		for i, c := range clients {
			if slices.ContainsFunc(u.expiryHeap, func(s *session) bool { return s.client.Port() == portOf(c) }) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) || len(u.expiryHeap) != len(u.sessions) {
			t.Errorf("there are %v, want %v", got, want)
		}
	}
	comes(0, 5) // it has asked the most, and is idle longest
	comes(1, 1)
	comes(2, 1)
	comes(3, 3)
	expectSessions(0, 1, 2, 3)
	comes(4, 1)
	expectSessions(0, 2, 3, 4)
	comes(4, 1)
	comes(4, 1)
	comes(4, 1)
	expectSessions(0, 3, 6, 7) // each takes the place of one that was answered
	at0(80)
	if got := ask(t, clients[0], "2"); got != "a: 2" {
		t.Errorf("%q", got)
	}
	comes(80, 4)
	comes(80, 4)
	expectSessions(0, 3, 8, 9)
	comes(80, 1) // in the place of the one that is idle longest of those that have asked more
	expectSessions(0, 8, 9, 10)
	if c := countsForPort(f, p); c.Sessions != 4 || c.DisplacedSessions != 7 || c.DroppedPackets != 0 {
		t.Errorf("%+v", c)
	}
}

func portOf(c *net.UDPConn) uint16 { return c.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// waitForSocketError waits until a socket has the error that the other end is gone.
func waitForSocketError(t *testing.T, c syscall.Conn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, int(patience/time.Millisecond))
		if n != 1 || err != nil {
			t.Errorf("the socket has no error: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestBackendGone checks that a packet that finds its backend gone goes to the next one; if there is only one, to that
// one again.
func TestBackendGone(t *testing.T) {
	p := at(t, corev1.ProtocolUDP, "127.77.0.11")
	a, dead := echo(t, "a"), at(t, corev1.ProtocolUDP, "127.77.0.12").Address
	f := forwarder(t, p, dead)
	c := client(t, p)
	from := c.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	gone := func() {
		t.Helper()
		u, _ := udp(f, p)
		s, err := newSession(from, dead, u.now(), u.idleTimeout) // no reader sees that its backend is gone
		if err != nil {
			t.Fatal(err)
		}
		if !u.forwarder.files.tryAcquire(filesPerSession, 0, "") {
			t.Fatal("no file")
		}
		u.mu.Lock()
		u.sessions[from] = s
		heap.Push(&u.expiryHeap, s)
		u.mu.Unlock()
		u.counters.sessions.Add(1)
		write(t, s, "lost")
		waitForSocketError(t, s.UDPConn)
	}
	gone()
	write(t, c, "once more")
	until(t, func() bool { return countsForPort(f, p) == Counts{DialErrors: 2} }) // for the packet before, and for this one
	f.SetTargets(t.Context(), map[Port]Target{p: newTarget(dead, a)})
	for range 2 { // whichever backend is the next
		gone()
		if got := ask(t, c, "x"); got != "a: x" {
			t.Errorf("%q", got)
		}
		u, s := udp(f, p)
		u.endSession(from, s)
	}
}

// TestLargestPacket checks that the largest possible packet goes both ways.
func TestLargestPacket(t *testing.T) {
	p := at(t, corev1.ProtocolUDP, "127.77.0.13")
	forwarder(t, p, echo(t, "a"))
	c := client(t, p)
	sent := bytes.Repeat([]byte("x"), 65507-len("a: "))
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, maxPacketSize)
	n, err := c.Read(got)
	if err != nil || !bytes.Equal(got[:n], append([]byte("a: "), sent...)) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
