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

// Addresses of the namespaces, in which alone they exist.
const (
	clientAddress    = "10.77.1.2"
	hostAddress      = "10.77.1.1" // as the client sees it
	hostInnerAddress = "10.77.2.1" // as the backend sees it
	backendAddress   = "10.77.2.2"
)

// testbed has a client, a host and a backend, and the processes in them.
type testbed struct {
	client, host, backend *namespace
	processes             []*process
	// proxies are the proxies that run, by name.
	proxies map[string]*process
}

type process struct {
	*exec.Cmd

	name  string
	stdin io.Closer
}

// namespace is a network namespace. Its thread lives as long as the program, so that the processes that it starts can
// be set to end with it.
type namespace struct {
	tasks chan func()
	// fd is the file descriptor of the namespace for the other ones.
	fd int
}

func newNamespace() (*namespace, error) {
	n := &namespace{tasks: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		made <- err
		for f := range n.tasks {
			f()
		}
	}()
	return n, <-made
}

// runInside runs a function in the namespace.
func (n *namespace) runInside(f func() error) error {
	done := make(chan error)
	n.tasks <- func() { done <- f() }
	return <-done
}

func newTestbed() (w *testbed, err error) {
	w = &testbed{proxies: map[string]*process{}}
	for _, n := range []**namespace{&w.client, &w.host, &w.backend} {
		if *n, err = newNamespace(); err != nil {
			return nil, err
		}
		if err := (*n).runInside(func() error { return errors.Join(setLinkUp("lo"), widenPortRange()) }); err != nil {
			return nil, err
		}
	}
	return w, errors.Join(
		connectNamespaces(w.client, clientAddress, w.host, hostAddress, "outer"),
		connectNamespaces(w.host, hostInnerAddress, w.backend, backendAddress, "inner"))
}

// connectNamespaces connects two namespaces with a wire.
func connectNamespaces(a *namespace, aAddress string, b *namespace, bAddress, name string) error {
	return errors.Join(
		a.runInside(func() error {
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.fd)}
			return errors.Join(netlink.LinkAdd(link), configureLink(name, aAddress))
		}),
		b.runInside(func() error { return configureLink(name, bAddress) }))
}

func configureLink(name, a string) error {
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

func setLinkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// widenPortRange allows more connections than the default has ports for.
func widenPortRange() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("10000 65000"), 0o600)
}

// launchProcess starts a process in a namespace. The process ends with the program.
func (w *testbed) launchProcess(ctx context.Context, n *namespace, name, program string, args ...string) (*process, error) {
	p := &process{name: name, Cmd: exec.CommandContext(ctx, program, args...)}
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	p.Cancel = func() error { return p.Process.Signal(syscall.SIGTERM) }
	var err error
	if p.stdin, err = p.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.runInside(p.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	w.processes = append(w.processes, p)
	return p, nil
}

// stopProcesses ends the processes of the testbed, the backend last: open forwarded connections must not fail.
func (w *testbed) stopProcesses() {
	for _, p := range slices.Backward(w.processes) {
		_ = p.stdin.Close()
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Wait()
	}
}
