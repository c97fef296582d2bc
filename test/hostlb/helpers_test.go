//go:build linux

package hostlb

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isAlone checks that an address is alone in its prefix, has a limited lifetime, and is never a source.
func isAlone(a netip.Addr) error {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, o := range all {
		if !o.IP.Equal(net.IP(a.AsSlice())) {
			continue
		}
		ones, bits := o.Mask.Size()
		if ones != bits || o.ValidLft < 1 || o.ValidLft > int(lifetime.Seconds()) || o.PreferedLft != 0 || o.Flags&unix.IFA_F_DEPRECATED == 0 {
			return fmt.Errorf("%s is there as %v, valid %d, preferred %d, flags %x", a, o.IPNet, o.ValidLft, o.PreferedLft, o.Flags)
		}
		return nil
	}
	return fmt.Errorf("%s is not there", a)
}

// writer keeps the output of a process.
type writer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *writer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}
