//go:build linux

// Package netns creates network namespaces on one machine that act as hosts on a switch: for tests and demonstrations
// of hosts on a wire. Nothing that is sent in them leaves them.
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

// ErrNotAllowed means that no network namespace can be created here.
var ErrNotAllowed = errors.New("no network namespace can be made here: that needs root, and a kernel that lets root do it")

// Switch is a switch with hosts on it. It has two sides; SetIsolated moves a host between them.
type Switch struct {
	namespace *Namespace

	mu         sync.Mutex
	namespaces []*Namespace
	cleanups   []func()
}

// Namespace is a network namespace.
type Namespace struct {
	Name string

	parent *Switch
	handle netns.NsHandle
}

const bridgeName, isolatedBridgeName, hostInterface = "br0", "br1", "eth0"

// NewSwitch creates a switch. Where that is not allowed, the error is ErrNotAllowed.
func NewSwitch() (*Switch, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotAllowed
	}
	n := &Switch{}
	space, err := n.createNamespace("switch")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	n.namespace = space
	err = space.RunInside(func() error {
		for _, name := range []string{bridgeName, isolatedBridgeName} {
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
				return fmt.Errorf("%w: %w", ErrNotAllowed, err)
			}
			if err := setLinkUp(name); err != nil {
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

// createNamespace creates a namespace, on a thread that ends after that.
func (n *Switch) createNamespace(name string) (*Namespace, error) {
	s := &Namespace{Name: name, parent: n}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // it is not unlocked, so the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.handle, err = netns.Get()
		}
		if err == nil {
			err = setLinkUp("lo")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("making the network namespace %s: %w", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.namespaces = append(n.namespaces, s)
	return s, nil
}

func setLinkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	// An IPv6 address may be used at once.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return netlink.LinkSetUp(l)
}

// JoinHost creates a host on the switch, whose interface eth0 has these addresses.
func (n *Switch) JoinHost(name string, addresses ...netip.Prefix) (*Namespace, error) {
	s, err := n.createNamespace(name)
	if err == nil {
		err = s.connectInterface(name, hostInterface, addresses...)
	}
	if err != nil {
		return nil, fmt.Errorf("joining %s to the switch: %w", name, err)
	}
	return s, nil
}

// AddInterface gives a host another interface on the switch, with these addresses. It returns a function that pulls the
// cable of that interface, or plugs it in again.
func (s *Namespace) AddInterface(name string, addresses ...netip.Prefix) (unplug func(out bool) error, err error) {
	end := s.Name + "-" + name
	if err := s.connectInterface(end, name, addresses...); err != nil {
		return nil, fmt.Errorf("joining %s to the switch once more: %w", s.Name, err)
	}
	return func(out bool) error { return s.parent.setUnplugged(end, out) }, nil
}

// connectInterface creates an interface of a host, and its end on the switch.
func (s *Namespace) connectInterface(end, name string, addresses ...netip.Prefix) error {
	err := s.parent.namespace.RunInside(func() error {
		br, err := netlink.LinkByName(bridgeName)
		if err != nil {
			return err
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: end, MasterIndex: br.Attrs().Index}, PeerName: name, PeerNamespace: netlink.NsFd(s.handle),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return setLinkUp(end)
	})
	if err == nil {
		err = s.RunInside(func() error { return setLinkUp(name) })
	}
	for _, a := range addresses {
		if err == nil {
			err = s.RunInside(func() error { return addAddress(name, a) })
		}
	}
	return err
}

func addAddress(name string, a netip.Prefix) error {
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

// BridgeInterface puts the interface of a host into a new bridge on the host, which has the addresses of the interface
// from then on.
func (s *Namespace) BridgeInterface(name string) error {
	return s.RunInside(func() error {
		l, err := netlink.LinkByName(hostInterface)
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
		if err := setLinkUp(name); err != nil {
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
			if err := addAddress(name, prefix); err != nil {
				return err
			}
		}
		return nil
	})
}

// RunInside runs a function in the namespace, on a thread of its own, which ends after that. What the function starts
// on other threads is outside of the namespace, but processes that it starts and sockets that it opens stay inside.
func (s *Namespace) RunInside(run func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it is not unlocked, so the thread ends here
		if err := netns.Set(s.handle); err != nil {
			done <- fmt.Errorf("entering the network namespace %s: %w", s.Name, err)
			return
		}
		done <- run()
	}()
	return <-done
}

// StartProcess starts a process in the namespace.
func (s *Namespace) StartProcess(cmd *exec.Cmd) error { return s.RunInside(cmd.Start) }

// SetIsolated moves a host to the other side of the switch, or back: it receives only from hosts on its side. Its cable
// stays in.
func (s *Namespace) SetIsolated(parted bool) error {
	to := bridgeName
	if parted {
		to = isolatedBridgeName
	}
	return s.parent.namespace.RunInside(func() error {
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

// SetUnplugged pulls the cable of a host, or plugs it in again.
func (s *Namespace) SetUnplugged(out bool) error { return s.parent.setUnplugged(s.Name, out) }

func (n *Switch) setUnplugged(end string, out bool) error {
	return n.namespace.RunInside(func() error {
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
func (s *Namespace) Listen(ctx context.Context, address string) (net.Listener, error) {
	var l net.Listener
	err := s.RunInside(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		return err
	})
	return l, err
}

// Dial connects from the namespace.
func (s *Namespace) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var c net.Conn
	err := s.RunInside(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Relay connects a namespace to one address of the machine, for example that of an API server.
type Relay struct {
	// Address is the address of the relay in the namespace.
	Address string

	namespace *Namespace
	target    string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

// OpenRelay opens a relay to target.
func (s *Namespace) OpenRelay(ctx context.Context, target string) (*Relay, error) {
	r := &Relay{Address: "127.0.0.1:6443", namespace: s, target: target, conns: map[net.Conn]bool{}}
	s.parent.mu.Lock()
	s.parent.cleanups = append(s.parent.cleanups, r.Disconnect)
	s.parent.mu.Unlock()
	err := r.Reconnect(ctx)
	return r, err
}

// Disconnect closes the relay and all its connections.
func (r *Relay) Disconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != nil {
		_ = r.listener.Close()
		r.listener = nil
	}
	for c := range r.conns {
		_ = c.Close()
	}
	clear(r.conns)
}

// Reconnect opens the relay again.
func (r *Relay) Reconnect(ctx context.Context) error {
	l, err := r.namespace.Listen(ctx, r.Address)
	if err != nil {
		return fmt.Errorf("listening in the network namespace %s: %w", r.namespace.Name, err)
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
			go r.relayConn(ctx, l, in)
		}
	}()
	return nil
}

// relayConn copies both directions of a connection, until one end closes.
func (r *Relay) relayConn(ctx context.Context, of net.Listener, in net.Conn) {
	defer func() { _ = in.Close() }()
	out, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.target)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	r.mu.Lock()
	if r.listener != of { // the relay was disconnected meanwhile
		r.mu.Unlock()
		return
	}
	r.conns[in], r.conns[out] = true, true
	r.mu.Unlock()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, in)
	delete(r.conns, out)
}

// Close closes all namespaces: the processes in them must have ended.
func (n *Switch) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, stop := range n.cleanups {
		stop()
	}
	var errs []error
	for _, s := range n.namespaces {
		errs = append(errs, s.handle.Close())
	}
	n.namespaces, n.cleanups = nil, nil
	return errors.Join(errs...)
}
