//go:build linux

// Package wires creates network namespaces for tests of hosts on a wire. Nothing that is sent in them leaves the test.
package wires

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// New moves the test into a network namespace of its own, which has the two ends of a wire, wire0 and wire1, that are
// up. An IPv6 address may be used there at once. Where no namespace can be created, the test is skipped, with the
// reason.
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
