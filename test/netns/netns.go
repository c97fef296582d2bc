//go:build linux

// Package netns makes network namespaces on one machine that stand for hosts on a switch: for tests and demonstrations of what
// hosts do on a wire. Nothing that is sent in them leaves them.
package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotAllowed says that no network namespace can be made here.
var ErrNotAllowed = errors.New("no network namespace can be made here: that needs root, and a kernel that lets root do it")

// Net is a switch, with hosts on it. It has two sides, which Part takes apart.
type Net struct {
	space *Space

	mu    sync.Mutex
	hosts []*Space
	stops []func()
}

// Space is a network namespace.
type Space struct {
	Name string

	net    *Net
	handle netns.NsHandle
}

const bridge, otherBridge, port = "br0", "br1", "eth0"

// New makes a switch. Where that is not allowed, the error is ErrNotAllowed.
func New() (*Net, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotAllowed
	}
	n := &Net{}
	space, err := n.make("switch")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	n.space = space
	err = space.Do(func() error {
		for _, name := range []string{bridge, otherBridge} {
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
				return fmt.Errorf("%w: %w", ErrNotAllowed, err)
			}
			if err := up(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// make makes a namespace, on a thread that ends with it being made.
func (n *Net) make(name string) (*Space, error) {
	s := &Space{Name: name, net: n}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // it is not unlocked: the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.handle, err = netns.Get()
		}
		if err == nil {
			err = up("lo")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("making the network namespace %s: %w", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts = append(n.hosts, s)
	return s, nil
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	// An address of IPv6 may be used at once.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return netlink.LinkSetUp(l)
}

// Join makes a host on the switch, whose interface eth0 has these addresses.
func (n *Net) Join(name string, addresses ...netip.Prefix) (*Space, error) {
	s, err := n.make(name)
	if err == nil {
		err = s.plug(name, port, addresses...)
	}
	if err != nil {
		return nil, fmt.Errorf("joining %s to the switch: %w", name, err)
	}
	return s, nil
}

// Plug gives a host another interface on the switch, with these addresses. It returns how to pull its cable, and to put it in again.
func (s *Space) Plug(name string, addresses ...netip.Prefix) (unplug func(out bool) error, err error) {
	end := s.Name + "-" + name
	if err := s.plug(end, name, addresses...); err != nil {
		return nil, fmt.Errorf("joining %s to the switch once more: %w", s.Name, err)
	}
	return func(out bool) error { return s.net.unplug(end, out) }, nil
}

// plug makes an interface of a host, and the end of it on the switch.
func (s *Space) plug(end, name string, addresses ...netip.Prefix) error {
	err := s.net.space.Do(func() error {
		br, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: end, MasterIndex: br.Attrs().Index}, PeerName: name, PeerNamespace: netlink.NsFd(s.handle),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return up(end)
	})
	if err == nil {
		err = s.Do(func() error { return up(name) })
	}
	for _, a := range addresses {
		if err == nil {
			err = s.Do(func() error { return add(name, a) })
		}
	}
	return err
}

func add(name string, a netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(a.String())
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, address)
}

// Bridge puts the interface of a host into a bridge on the host, which has its addresses from then on.
func (s *Space) Bridge(name string) error {
	return s.Do(func() error {
		l, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, br); err != nil {
			return err
		}
		if err := up(name); err != nil {
			return err
		}
		for i := range addresses {
			if addresses[i].IP.IsLinkLocalUnicast() {
				continue
			}
			if err := netlink.AddrDel(l, &addresses[i]); err != nil {
				return err
			}
			prefix, err := netip.ParsePrefix(addresses[i].IPNet.String())
			if err != nil {
				return err
			}
			if err := add(name, prefix); err != nil {
				return err
			}
		}
		return nil
	})
}

// Do does something in the namespace: on a thread of its own, which ends then. What it begins on others is not in there, but
// processes that it starts and sockets that it opens stay in it.
func (s *Space) Do(what func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it is not unlocked: the thread ends here
		if err := netns.Set(s.handle); err != nil {
			done <- fmt.Errorf("entering the network namespace %s: %w", s.Name, err)
			return
		}
		done <- what()
	}()
	return <-done
}

// Start starts a process in the namespace.
func (s *Space) Start(cmd *exec.Cmd) error { return s.Do(cmd.Start) }

// Part puts a host on the other side of the switch, or back: it hears only who is there. Its cable stays in.
func (s *Space) Part(parted bool) error {
	to := bridge
	if parted {
		to = otherBridge
	}
	return s.net.space.Do(func() error {
		l, err := netlink.LinkByName(s.Name)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName(to)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, br)
	})
}

// Unplug pulls the cable of a host, or puts it in again.
func (s *Space) Unplug(out bool) error { return s.net.unplug(s.Name, out) }

func (n *Net) unplug(end string, out bool) error {
	return n.space.Do(func() error {
		l, err := netlink.LinkByName(end)
		if err != nil {
			return err
		}
		if out {
			return netlink.LinkSetDown(l)
		}
		return netlink.LinkSetUp(l)
	})
}

// Listen listens in the namespace.
func (s *Space) Listen(ctx context.Context, address string) (net.Listener, error) {
	var l net.Listener
	err := s.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		return err
	})
	return l, err
}

// Dial connects from the namespace.
func (s *Space) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var c net.Conn
	err := s.Do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Relay is a way out of a namespace to one address of the machine, such as that of an API server.
type Relay struct {
	// Address is where it is reached in the namespace.
	Address string

	space  *Space
	target string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
}

// Relay begins a way out.
func (s *Space) Relay(ctx context.Context, target string) (*Relay, error) {
	r := &Relay{Address: "127.0.0.1:6443", space: s, target: target, open: map[net.Conn]bool{}}
	s.net.mu.Lock()
	s.net.stops = append(s.net.stops, r.Cut)
	s.net.mu.Unlock()
	err := r.Mend(ctx)
	return r, err
}

// Cut ends the way, and all that is on it.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != nil {
		_ = r.listener.Close()
		r.listener = nil
	}
	for c := range r.open {
		_ = c.Close()
	}
	clear(r.open)
}

// Mend opens it again.
func (r *Relay) Mend(ctx context.Context) error {
	l, err := r.space.Listen(ctx, r.Address)
	if err != nil {
		return fmt.Errorf("listening in the network namespace %s: %w", r.space.Name, err)
	}
	r.mu.Lock()
	r.listener = l
	r.mu.Unlock()
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(ctx, l, in)
		}
	}()
	return nil
}

// pass passes on what is sent either way, until one end closes.
func (r *Relay) pass(ctx context.Context, of net.Listener, in net.Conn) {
	defer func() { _ = in.Close() }()
	out, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.target)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	r.mu.Lock()
	if r.listener != of { // it was cut meanwhile
		r.mu.Unlock()
		return
	}
	r.open[in], r.open[out] = true, true
	r.mu.Unlock()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, in)
	delete(r.open, out)
}

// Close ends all namespaces: what is in them has to have ended.
func (n *Net) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, stop := range n.stops {
		stop()
	}
	var errs []error
	for _, s := range n.hosts {
		errs = append(errs, s.handle.Close())
	}
	n.hosts, n.stops = nil, nil
	return errors.Join(errs...)
}
