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

// A session that is idle for too long is ended; one that is not, is not, though its deadline has passed. How long that is goes by
// what was said: a question that was answered, several, or none.
func TestIdle(t *testing.T) {
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
		"a question":                        {asks: 1, want: answeredIdle},
		"two":                               {asks: 2, want: answeredIdle},
		"more":                              {asks: 3, want: sessionIdle},
		"no answer":                         {asks: 3, silent: true, want: unansweredIdle},
		"more, where it is longer":          {asks: 3, flag: time.Hour, want: time.Hour},
		"a question, where all are shorter": {asks: 1, flag: time.Second, want: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			var later, looked atomic.Int64
			p := at(t, corev1.ProtocolUDP, "127.77.0.10")
			f := &Forwarder{Idle: test.flag, now: func() time.Time { looked.Add(1); return begun.Add(time.Duration(later.Load())) }}
			to := silent.LocalAddr().(*net.UDPAddr).AddrPort()
			if !test.silent {
				to = echo(t, "a")
			}
			begin(t, f, p, to)
			c := client(t, p)
			later.Store(int64(time.Minute))
			for range test.asks { // as new as can be
				if test.silent {
					write(t, c, "1")
				} else if got := ask(t, c, "1"); got != "a: 1" {
					t.Errorf("%q", got)
				}
			}
			until(t, func() bool {
				_, s := udp(f, p)
				return s != nil && int(s.asked.Load()) == test.asks
			})
			_, s := udp(f, p)
			for _, step := range []struct {
				after time.Duration
				want  int64
			}{{test.want - 1, 1}, {test.want, 0}} {
				later.Store(int64(time.Minute + step.after))
				was := looked.Load()
				until(t, func() bool {
					_ = s.SetReadDeadline(time.Unix(1, 0)) // again, for it may be about to set another one
					return (looked.Load() > was+1 || step.want == 0) && of(f, p).Sessions == step.want
				})
			}
			if n := used(f); n != 0 {
				t.Errorf("%d files", n)
			}
			if test.silent {
				return
			}
			if got := ask(t, c, "2"); got != "a: 2" { // begins anew
				t.Errorf("%q", got)
			}
		})
	}
}

// Where a port has as many clients as may be, a new one is served in the place of another: of one whose question was answered, then of
// one that was answered nothing, and of those of the one that is idle longest. So who asks often takes the place of its own.
func TestFull(t *testing.T) { // H28
	begun := time.Now()
	var later atomic.Int64
	at0 := func(seconds int) { later.Store(int64(time.Duration(seconds) * time.Second)) }
	p := at(t, corev1.ProtocolUDP, "127.77.0.23")
	f := &Forwarder{MaxSessions: 4, now: func() time.Time { return begun.Add(time.Duration(later.Load())) }}
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
			return slices.ContainsFunc(u.order, func(s *session) bool {
				return s.client.Port() == portOf(clients[len(clients)-1]) && s.answered.Load()
			})
		})
	}
	has := func(want ...int) {
		t.Helper()
		u, _ := udp(f, p)
		u.mu.Lock()
		defer u.mu.Unlock()
		var got []int
		for i, c := range clients {
			if slices.ContainsFunc(u.order, func(s *session) bool { return s.client.Port() == portOf(c) }) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) || len(u.order) != len(u.sessions) {
			t.Errorf("there are %v, want %v", got, want)
		}
	}
	comes(0, 5) // it has asked most, and is idle longest
	comes(1, 1)
	comes(2, 1)
	comes(3, 3)
	has(0, 1, 2, 3)
	comes(4, 1)
	has(0, 2, 3, 4)
	comes(4, 1)
	comes(4, 1)
	comes(4, 1)
	has(0, 3, 6, 7) // each comes in the place of one that was answered
	at0(80)
	if got := ask(t, clients[0], "2"); got != "a: 2" {
		t.Errorf("%q", got)
	}
	comes(80, 4)
	comes(80, 4)
	has(0, 3, 8, 9)
	comes(80, 1) // the one that is idle longest of those that have asked more
	has(0, 8, 9, 10)
	if c := of(f, p); c.Sessions != 4 || c.Displaced != 7 || c.Dropped != 0 {
		t.Errorf("%+v", c)
	}
}

func portOf(c *net.UDPConn) uint16 { return c.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

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
		s, err := newSession(from, dead, u.now(), u.idle) // of which no reader sees that it is gone
		if err != nil {
			t.Fatal(err)
		}
		if !u.f.files.take(filesOfSession, 0, "") {
			t.Fatal("no file")
		}
		u.mu.Lock()
		u.sessions[from] = s
		heap.Push(&u.order, s)
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
