//go:build linux

package forward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Connections and clients are refused, and counted, before the process has no files left; what ends gives its files back.
func TestMaxFiles(t *testing.T) {
	tcp, udp := at(t, corev1.ProtocolTCP, "127.77.0.3"), at(t, corev1.ProtocolUDP, "127.77.0.3")
	f := &Forwarder{MaxFiles: filesOfConnection + filesOfSession}
	t.Cleanup(func() { f.Set(t.Context(), nil) })
	want := map[Port]Target{tcp: To(backend(t, "a")), udp: To(echo(t, "a"))}
	if failed := f.Set(t.Context(), want); len(failed) > 0 {
		t.Fatal(failed)
	}
	first, err := connect(t, tcp)
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return of(f, tcp).Open == 1 })
	if got := ask(t, client(t, udp), "1"); got != "a: 1" {
		t.Errorf("%q", got)
	}

	if !refused(t, tcp) {
		t.Error("the second one is not refused")
	}
	if got := ask(t, client(t, udp), "2"); got != "a: 2" { // in the place of the first one
		t.Errorf("%q", got)
	}
	if c := of(f, udp); c.Sessions != 1 || c.Displaced != 1 {
		t.Errorf("%+v", c)
	}
	if c := of(f, tcp); c.Refused != 1 || c.Open != 1 || c.Connections != 1 {
		t.Errorf("%+v", c)
	}

	_ = first.Close()
	until(t, func() bool { return of(f, tcp).Open == 0 && used(f) == filesOfSession })
	if got := say(t, tcp, "3"); got != "a: 3" {
		t.Errorf("%q", got)
	}
	f.Set(t.Context(), nil)
	if n := used(f); n != 0 {
		t.Errorf("%d files of ports that are closed", n)
	}
}

// W29: a port that has no room for all who ask has it with a higher --open-files or --udp-sessions, and where one that is idle ends.
func TestAFullPortHasRoomWithMore(t *testing.T) {
	for name, c := range map[string]struct {
		protocol    corev1.Protocol
		scarce, has *Forwarder
	}{
		"connections, by files": {corev1.ProtocolTCP, &Forwarder{MaxFiles: filesOfConnection}, &Forwarder{MaxFiles: 2 * filesOfConnection}},
		"clients, by files":     {corev1.ProtocolUDP, &Forwarder{MaxFiles: filesOfSession}, &Forwarder{MaxFiles: 2 * filesOfSession}},
		"clients, by sessions":  {corev1.ProtocolUDP, &Forwarder{MaxSessions: 1}, &Forwarder{MaxSessions: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, f := range []*Forwarder{c.scarce, c.has} {
				p := at(t, c.protocol, fmt.Sprintf("127.77.0.%d", 24+i))
				if c.protocol == corev1.ProtocolUDP {
					begin(t, f, p, echo(t, "a"))
					for range 2 {
						if got := ask(t, client(t, p), "1"); got != "a: 1" {
							t.Errorf("%q", got)
						}
					}
					if n := of(f, p).Displaced; n != int64(1-i) {
						t.Errorf("%d are displaced", n)
					}
					continue
				}
				begin(t, f, p, backend(t, "a"))
				idle := reach(t, p)
				until(t, func() bool { return of(f, p).Open == 1 })
				if i == 0 {
					if !refused(t, p) {
						t.Error("the second one is not refused")
					}
					_ = idle.Close() // it ends
					until(t, func() bool { return used(f) == 0 })
				}
				if got := say(t, p, "2"); got != "a: 2" {
					t.Errorf("%q", got)
				}
				if n := of(f, p).Refused; n != int64(1-i) {
					t.Errorf("%d are refused", n)
				}
			}
		})
	}
}

func TestFileLimit(t *testing.T) {
	n, err := FileLimit()
	if err != nil || n <= 0 || n >= math.MaxInt32 {
		t.Errorf("%d, %v", n, err)
	}
}

func used(f *Forwarder) int64 {
	f.files.mu.Lock()
	defer f.files.mu.Unlock()
	return f.files.used
}

// Who uses all that there is leaves others their share, and gets what they do not use; who comes later has one too.
func TestShares(t *testing.T) { // H32
	const limit = 120
	f := &files{}
	take := func(owner string) (n int) {
		for f.take(1, limit, owner) {
			n++
		}
		return n
	}
	f.share(2)
	if n := take("greedy"); n != 90 {
		t.Errorf("the first of two gets %d: half of it is for all, and half of the rest is the other's", n)
	}
	if n := take("other"); n != 30 {
		t.Errorf("the other gets %d", n)
	}
	f.give(60, "greedy")
	f.share(3)
	if n := take("third"); n != 60 {
		t.Errorf("a third one gets %d: its share, and what is left", n)
	}
	f.give(30, "other")
	if n := take("greedy"); n != 10 {
		t.Errorf("who has more than its share gets %d of what is free, and leaves the other its share", n)
	}
	if n := take("other"); n != 20 {
		t.Errorf("the other gets %d", n)
	}
	for owner, n := range map[string]int64{"greedy": 40, "other": 20, "third": 60} {
		f.give(n, owner)
	}
	if f.used != 0 || len(f.of) != 0 {
		t.Errorf("%d are used, %v", f.used, f.of)
	}
	for range 2 {
		if !f.take(int64(limit), 0, "any") {
			t.Error("a limit of 0 is none")
		}
	}
}

// Idle clients of one Service leave those of another one room.
func TestMaxFilesOfOne(t *testing.T) {
	idle, other := at(t, corev1.ProtocolTCP, "127.77.0.20"), at(t, corev1.ProtocolTCP, "127.77.0.21")
	f := &Forwarder{MaxFiles: 4 * filesOfConnection}
	a := backend(t, "a")
	t.Cleanup(func() { f.Set(context.Background(), nil) })
	f.Set(t.Context(), map[Port]Target{
		idle: {Backends: []netip.AddrPort{a}, Owner: "idle"}, other: {Backends: []netip.AddrPort{a}, Owner: "other"},
	})
	for range 3 {
		c, err := connect(t, idle)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if !refused(t, idle) {
		t.Error("it has more than its share, and what is for all")
	}
	until(t, func() bool { return of(f, idle) == Counts{Connections: 3, Open: 3, Refused: 1} })
	if got := say(t, other, "x"); got != "a: x" {
		t.Errorf("%q", got)
	}
}

// A port that is another owner's now is begun anew: what the one before has open ends.
func TestOwnerChanges(t *testing.T) {
	p := at(t, corev1.ProtocolTCP, "127.77.0.22")
	f, a := &Forwarder{}, backend(t, "a")
	t.Cleanup(func() { f.Set(context.Background(), nil) })
	f.Set(t.Context(), map[Port]Target{p: {Backends: []netip.AddrPort{a}, Owner: "one"}})
	c := reach(t, p)
	until(t, func() bool { return sockets(f, p) == 2 })
	f.Set(t.Context(), map[Port]Target{p: {Backends: []netip.AddrPort{a}, Owner: "two"}})
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
	if got := say(t, p, "x"); got != "a: x" {
		t.Errorf("%q", got)
	}
}
