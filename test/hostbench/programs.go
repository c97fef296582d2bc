//go:build linux

package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
)

const (
	roleForward = "forward"
	roleBackend = "backend"
	roleLoad    = "load"

	ours    = "ours"
	haproxy = "HAProxy"
	nginx   = "nginx"
)

// Ports of the backend; each program listens on others of the host, see listens.
const (
	portBytes       = 9001
	portConnections = 9002
	portUDP         = 9003
)

// start starts the backend, and what is measured on the host.
func (w *world) start(ctx context.Context, o options, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := w.launch(ctx, w.backend, roleBackend, self, roleBackend); err != nil {
		return err
	}
	if w.proxies[ours], err = w.launch(ctx, w.host, ours, self, roleForward, "-profile="+o.profile); err != nil {
		return err
	}
	cpus := runtime.NumCPU()
	if program := filepath.Join(o.proxies, "haproxy"); executable(program) {
		config, err := write(dir, "haproxy.cfg", haproxyConfig(cpus, o.splice))
		if err != nil {
			return err
		}
		if w.proxies[haproxy], err = w.launch(ctx, w.host, haproxy, program, "-db", "-q", "-f", config); err != nil {
			return err
		}
	}
	if program := filepath.Join(o.proxies, "nginx"); executable(program) {
		config, err := write(dir, "nginx.conf", nginxConfig(cpus, dir, filepath.Join(o.proxies, "modules")))
		if err != nil {
			return err
		}
		if w.proxies[nginx], err = w.launch(ctx, w.host, nginx, program, "-c", config); err != nil {
			return err
		}
	}
	for name, port := range map[string]int{ours: 7001, haproxy: 8001} {
		if w.proxies[name] == nil {
			continue
		}
		if err := w.ready(ctx, name, port); err != nil {
			return err
		}
	}
	return nil
}

func executable(path string) bool {
	at, err := os.Stat(path)
	return err == nil && at.Mode()&0o111 != 0
}

func write(dir, name, text string) (path string, err error) {
	path = filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func haproxyConfig(threads int, splice string) string {
	option := map[string]string{
		"auto":   "option splice-auto",
		"always": "option splice-request\n\toption splice-response",
	}[splice]
	return fmt.Sprintf(`
global
	nbthread %d
	maxconn 3000
defaults
	mode tcp
	%s
	timeout connect 10s
	timeout client 1m
	timeout server 1m
listen bytes
	bind %s:8001
	server a %s:%d
listen connections
	bind %[3]s:8002
	server a %[4]s:%[6]d
`, threads, option, hostAddress, backendAddress, portBytes, portConnections)
}

func nginxConfig(workers int, dir, modules string) string {
	return fmt.Sprintf(`
daemon off;
user root;
pid %s/nginx.pid;
load_module %s/ngx_stream_module.so;
worker_processes %d;
events { worker_connections 8192; }
stream {
	server {
		listen %s:8003 udp reuseport;
		proxy_pass %s:%d;
		proxy_responses 1;
		proxy_timeout 30s;
	}
	server {
		listen %[4]s:8004 udp reuseport;
		proxy_pass %[5]s:%[6]d;
		proxy_timeout 30s;
	}
}
`, dir, modules, workers, hostAddress, backendAddress, portUDP)
}

// serveForward is the forwarder, until its input ends.
func serveForward(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(roleForward, flag.ContinueOnError)
	profile := flags.String("profile", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		out, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { _ = out.Close() }()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	limit, err := forward.FileLimit()
	if err != nil {
		return err
	}
	host, backend := netip.MustParseAddr(hostAddress), netip.MustParseAddr(backendAddress)
	want := map[forward.Port]forward.Target{}
	for _, p := range []struct {
		protocol corev1.Protocol
		port, to uint16
	}{{corev1.ProtocolTCP, 7001, portBytes}, {corev1.ProtocolTCP, 7002, portConnections}, {corev1.ProtocolUDP, 7003, portUDP}} {
		want[forward.Port{Protocol: p.protocol, Address: netip.AddrPortFrom(host, p.port)}] = forward.To(netip.AddrPortFrom(backend, p.to))
	}
	f := &forward.Forwarder{MaxFiles: limit}
	for _, err := range f.Set(ctx, want) {
		return err
	}
	untilEnd(ctx)
	f.Set(ctx, nil)
	return nil
}

// untilEnd waits until the program that has started this one ends, or ends it.
func untilEnd(ctx context.Context) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	go func() {
		defer stop()
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}()
	<-ctx.Done()
}

// ready waits until the client gets a byte from a port: what serves it has started then, and the wires carry.
func (w *world) ready(ctx context.Context, name string, port int) error {
	const patience, again = 10 * time.Second, 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := w.client.in(func() error { return firstByte(ctx, fmt.Sprintf("%s:%d", hostAddress, port)) })
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not serve: %w", name, err)
		}
		time.Sleep(again)
	}
}

func firstByte(ctx context.Context, address string) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	until, _ := ctx.Deadline()
	if err := c.SetDeadline(until); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}
