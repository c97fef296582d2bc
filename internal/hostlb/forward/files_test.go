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

// TestMaxFiles checks that connections and clients are refused, and counted, before the process has no files left, and
// that those that end release their files.
func TestMaxFiles(t *testing.T) {
	tcp, udp := at(t, corev1.ProtocolTCP, "127.77.0.3"), at(t, corev1.ProtocolUDP, "127.77.0.3")
	f := &Forwarder{MaxFiles: filesPerConnection + filesPerSession}
	t.Cleanup(func() { f.SetTargets(t.Context(), nil) })
	want := map[Port]Target{tcp: newTarget(backend(t, "a")), udp: newTarget(echo(t, "a"))}
	if failed := f.SetTargets(t.Context(), want); len(failed) > 0 {
		t.Fatal(failed)
	}
	first, err := connect(t, tcp)
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return countsForPort(f, tcp).OpenConnections == 1 })
	if got := ask(t, client(t, udp), "1"); got != "a: 1" {
		t.Errorf("%q", got)
	}

	if !refused(t, tcp) {
		t.Error("the second one is not refused")
	}
	if got := ask(t, client(t, udp), "2"); got != "a: 2" { // in the place of the first one
		t.Errorf("%q", got)
	}
	if c := countsForPort(f, udp); c.Sessions != 1 || c.DisplacedSessions != 1 {
		t.Errorf("%+v", c)
	}
	if c := countsForPort(f, tcp); c.RefusedConnections != 1 || c.OpenConnections != 1 || c.Connections != 1 {
		t.Errorf("%+v", c)
	}

	_ = first.Close()
	until(t, func() bool { return countsForPort(f, tcp).OpenConnections == 0 && used(f) == filesPerSession })
	if got := sendAndReadAll(t, tcp, "3"); got != "a: 3" {
		t.Errorf("%q", got)
	}
	f.SetTargets(t.Context(), nil)
	if n := used(f); n != 0 {
		t.Errorf("%d files of ports that are closed", n)
	}
}

// TestFullPortAdviceHelps checks that a port that has no room for all its clients has room with a higher
// --open-files or --udp-sessions, and once an idle client ends (W29).
func TestFullPortAdviceHelps(t *testing.T) {
	for name, c := range map[string]struct {
		protocol      corev1.Protocol
		scarce, ample *Forwarder
	}{
		"connections, by files": {corev1.ProtocolTCP, &Forwarder{MaxFiles: filesPerConnection}, &Forwarder{MaxFiles: 2 * filesPerConnection}},
		"clients, by files":     {corev1.ProtocolUDP, &Forwarder{MaxFiles: filesPerSession}, &Forwarder{MaxFiles: 2 * filesPerSession}},
		"clients, by sessions":  {corev1.ProtocolUDP, &Forwarder{MaxUDPSessions: 1}, &Forwarder{MaxUDPSessions: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, f := range []*Forwarder{c.scarce, c.ample} {
				p := at(t, c.protocol, fmt.Sprintf("127.77.0.%d", 24+i))
				if c.protocol == corev1.ProtocolUDP {
					begin(t, f, p, echo(t, "a"))
					for range 2 {
						if got := ask(t, client(t, p), "1"); got != "a: 1" {
							t.Errorf("%q", got)
						}
					}
					if n := countsForPort(f, p).DisplacedSessions; n != int64(1-i) {
						t.Errorf("%d are displaced", n)
					}
					continue
				}
				begin(t, f, p, backend(t, "a"))
				idle := reach(t, p)
				until(t, func() bool { return countsForPort(f, p).OpenConnections == 1 })
				if i == 0 {
					if !refused(t, p) {
						t.Error("the second one is not refused")
					}
					_ = idle.Close() // it ends
					until(t, func() bool { return used(f) == 0 })
				}
				if got := sendAndReadAll(t, p, "2"); got != "a: 2" {
					t.Errorf("%q", got)
				}
				if n := countsForPort(f, p).RefusedConnections; n != int64(1-i) {
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

// TestOwnersShareFileLimit checks that an owner that uses everything leaves others their share, and gets what they do
// not use, and that an owner that comes later has a share too.
func TestOwnersShareFileLimit(t *testing.T) { // H32
	const limit = 120
	f := &fileBudget{}
	take := func(owner string) (n int) {
		for f.tryAcquire(1, limit, owner) {
			n++
		}
		return n
	}
	f.setOwnerCount(2)
	if n := take("greedy"); n != 90 {
		t.Errorf("the first of two gets %d: half of it is for all, and half of the rest is the other's", n)
	}
	if n := take("other"); n != 30 {
		t.Errorf("the other gets %d", n)
	}
	f.release(60, "greedy")
	f.setOwnerCount(3)
	if n := take("third"); n != 60 {
		t.Errorf("a third one gets %d: its share, and what is left", n)
	}
	f.release(30, "other")
	if n := take("greedy"); n != 10 {
		t.Errorf("who has more than its share gets %d of what is free, and leaves the other its share", n)
	}
	if n := take("other"); n != 20 {
		t.Errorf("the other gets %d", n)
	}
	for owner, n := range map[string]int64{"greedy": 40, "other": 20, "third": 60} {
		f.release(n, owner)
	}
	if f.used != 0 || len(f.usedByOwner) != 0 {
		t.Errorf("%d are used, %v", f.used, f.usedByOwner)
	}
	for range 2 {
		if !f.tryAcquire(int64(limit), 0, "any") {
			t.Error("a limit of 0 is none")
		}
	}
}

// TestMaxFilesOfOne checks that idle clients of one Service leave room for those of another one.
func TestMaxFilesOfOne(t *testing.T) {
	idle, other := at(t, corev1.ProtocolTCP, "127.77.0.20"), at(t, corev1.ProtocolTCP, "127.77.0.21")
	f := &Forwarder{MaxFiles: 4 * filesPerConnection}
	a := backend(t, "a")
	t.Cleanup(func() { f.SetTargets(context.Background(), nil) })
	f.SetTargets(t.Context(), map[Port]Target{
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
	until(t, func() bool {
		return countsForPort(f, idle) == Counts{Connections: 3, OpenConnections: 3, RefusedConnections: 1}
	})
	if got := sendAndReadAll(t, other, "x"); got != "a: x" {
		t.Errorf("%q", got)
	}
}

// TestOwnerChanges checks that a port that has another owner now is opened again: the connections of the previous owner
// end.
func TestOwnerChanges(t *testing.T) {
	p := at(t, corev1.ProtocolTCP, "127.77.0.22")
	f, a := &Forwarder{}, backend(t, "a")
	t.Cleanup(func() { f.SetTargets(context.Background(), nil) })
	f.SetTargets(t.Context(), map[Port]Target{p: {Backends: []netip.AddrPort{a}, Owner: "one"}})
	c := reach(t, p)
	until(t, func() bool { return sockets(f, p) == 2 })
	f.SetTargets(t.Context(), map[Port]Target{p: {Backends: []netip.AddrPort{a}, Owner: "two"}})
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
	if got := sendAndReadAll(t, p, "x"); got != "a: x" {
		t.Errorf("%q", got)
	}
}
