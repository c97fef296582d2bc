//go:build linux

package forward

import (
	"math"
	"testing"

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
	write(t, client(t, udp), "2")
	until(t, func() bool { return of(f, udp).Dropped == 1 })
	if c := of(f, tcp); c.Refused != 1 || c.Open != 1 || c.Connections != 1 {
		t.Errorf("%+v", c)
	}

	_ = first.Close()
	until(t, func() bool { return of(f, tcp).Open == 0 && f.files.used.Load() == filesOfSession })
	if got := say(t, tcp, "3"); got != "a: 3" {
		t.Errorf("%q", got)
	}
	f.Set(t.Context(), nil)
	if n := f.files.used.Load(); n != 0 {
		t.Errorf("%d files of ports that are closed", n)
	}
}

func TestFileLimit(t *testing.T) {
	n, err := FileLimit()
	if err != nil || n <= 0 || n >= math.MaxInt32 {
		t.Errorf("%d, %v", n, err)
	}
}
