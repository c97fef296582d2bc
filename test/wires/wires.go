//go:build linux

// Package wires makes network namespaces for tests of what hosts do on a wire. Nothing of them leaves the test.
package wires

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// New moves the test into a network namespace of its own, with the two ends of a wire in it that are up: wire0 and wire1. An
// address of IPv6 may be used there at once. Where no namespace can be made, the test is skipped, and says so.
func New(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a network namespace needs root")
	}
	runtime.LockOSThread() // the thread has the namespace: it ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("SKIPPED: no network namespace can be made here: %v", err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "wire1"}); err != nil {
		t.Skipf("SKIPPED: no wire can be made here: %v", err)
	}
	for _, name := range []string{"lo", "wire0", "wire1"} {
		if err := up(name); err != nil {
			t.Fatal(err)
		}
	}
}

func up(name string) error {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0o600); err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}
