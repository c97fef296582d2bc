//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the namespaces. They exist in them alone.
const (
	clientAddress  = "10.77.1.2"
	hostAddress    = "10.77.1.1" // as the client sees it
	hostInner      = "10.77.2.1" // as the backend does
	backendAddress = "10.77.2.2"
)

// world is a client, a host and a backend, and the processes in them.
type world struct {
	client, host, backend *namespace
	processes             []*process
	// proxies are those that run, by name.
	proxies map[string]*process
}

type process struct {
	*exec.Cmd

	name  string
	stdin io.Closer
}

// namespace is a network namespace: the thread that has it, for as long as the program runs, so that what it starts can be
// told to end with it.
type namespace struct {
	do chan func()
	// fd names it to the others.
	fd int
}

func newNamespace() (*namespace, error) {
	n := &namespace{do: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		made <- err
		for f := range n.do {
			f()
		}
	}()
	return n, <-made
}

// in does something in the namespace.
func (n *namespace) in(f func() error) error {
	done := make(chan error)
	n.do <- func() { done <- f() }
	return <-done
}

func newWorld() (w *world, err error) {
	w = &world{proxies: map[string]*process{}}
	for _, n := range []**namespace{&w.client, &w.host, &w.backend} {
		if *n, err = newNamespace(); err != nil {
			return nil, err
		}
		if err := (*n).in(func() error { return errors.Join(setUp("lo"), ports()) }); err != nil {
			return nil, err
		}
	}
	return w, errors.Join(
		wire(w.client, clientAddress, w.host, hostAddress, "outer"),
		wire(w.host, hostInner, w.backend, backendAddress, "inner"))
}

// wire joins two namespaces.
func wire(a *namespace, aAddress string, b *namespace, bAddress, name string) error {
	return errors.Join(
		a.in(func() error {
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.fd)}
			return errors.Join(netlink.LinkAdd(link), address(name, aAddress))
		}),
		b.in(func() error { return address(name, bAddress) }))
}

func address(name, a string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(a + "/24")
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, parsed), netlink.LinkSetUp(link))
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// ports allows more connections than the default has ports for.
func ports() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("10000 65000"), 0o600)
}

// launch starts a process in a namespace. It ends with the program.
func (w *world) launch(ctx context.Context, n *namespace, name, program string, args ...string) (*process, error) {
	p := &process{name: name, Cmd: exec.CommandContext(ctx, program, args...)}
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	p.Cancel = func() error { return p.Process.Signal(syscall.SIGTERM) }
	var err error
	if p.stdin, err = p.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.in(p.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	w.processes = append(w.processes, p)
	return p, nil
}

// end ends the processes that it has started, the backend last: what is forwarded still is not to fail.
func (w *world) end() {
	for _, p := range slices.Backward(w.processes) {
		_ = p.stdin.Close()
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Wait()
	}
}
